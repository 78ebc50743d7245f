"""The Django example as its reader runs it: `manage.py` migrates, checks, tests, and runs the App beside the views."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from postroad.clock import seconds
from postroad.sql.migrations import steps
from postroad.testing.process import wait_until
from runtime.processes import environment

HERE = Path(__file__).parents[2] / "examples" / "django"
PLACE = "from django.test import Client; assert Client().post('/orders/A-1/2').status_code == 201"
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


def command(url, *words, ok=True, **settings):
    given = {"DATABASE_URL": url, "POSTROAD_BROKER_URL": "postgres:", "PYTHONWARNINGS": "error", **settings}
    done = subprocess.run(
        [sys.executable, "manage.py", *words], cwd=HERE, env=environment(**given), capture_output=True, text=True,
        timeout=150, check=False,
    )  # fmt: skip
    if ok:
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done


@pytest.fixture
def read(empty_database):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        yield lambda query: connection.execute(query).fetchall()


def test_django_has_a_migration_for_each_numbered_step():
    folder = Path(__file__).parents[2] / "src" / "postroad" / "django" / "migrations"
    assert sorted(path.stem for path in folder.glob("0*.py")) == [f"{one.number:04}_{one.name}" for one in steps()]


def test_an_order_goes_from_the_view_to_the_receipt(empty_database, read):
    url = empty_database
    early = command(url, "check", "--database", "default")
    assert "schema 'postroad' is missing" in early.stderr
    command(url, "migrate")
    assert read("SELECT max(number) FROM postroad.migration") == [(steps()[-1].number,)]
    assert command(url, "check", "--database", "default", "--fail-level", "INFO").stdout.endswith(
        "no issues (0 silenced).\n"
    )
    assert '"applied": []' in command(url, "postroad", "migrate", "--json").stdout
    command(url, "postroad", "topology", "apply", "shop.app:app")
    given = {"DATABASE_URL": url, "POSTROAD_BROKER_URL": "postgres:", "POSTROAD_HEALTH_PORT": "0"}
    process = subprocess.Popen(
        [sys.executable, "manage.py", "postroad", "run", "shop.app:app"], cwd=HERE, env=environment(**given),
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        command(url, "shell", "-c", PLACE)
        receipts = "SELECT order_number, receipt FROM shop_reservation"
        written = wait_until(
            lambda: read(receipts) == [("A-1", "Thank you for A-1")], within=seconds(60), every=seconds(0.1)
        )
        process.terminate()
        log = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()
    assert written, log
    assert process.returncode == 0, log


def test_its_own_test_cases_pass(empty_database):
    done = command(empty_database, "test", "--noinput", PYTHONWARNINGS="default")
    assert "Ran 4 tests" in done.stderr


def test_wrong_input_is_one_line(empty_database):
    done = command(empty_database, "postroad", "--database", "nowhere", "doctor", "shop.app:app", ok=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "DATABASES has no 'nowhere'" in done.stderr
    done = command(empty_database, "postroad", "run", "shop.app:nothing", ok=False)
    assert done.returncode == 2
    assert "not an App" in done.stderr
