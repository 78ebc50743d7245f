"""An App with jobs alone: PostgreSQL is all that it needs, to be looked at, run and stopped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from postroad.runtime.declarations import Declarations
from postroad.runtime.exits import Exit
from runtime.processes import Running, fetch, import_app, postroad

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

pytestmark = pytest.mark.heavy
APP = "reports:app"
ENQUEUE = ("jobs", "enqueue", APP, "reports.render", '{"day": "2026-05-04"}', "--json")


@pytest.mark.parametrize("roles", [{}, {"POSTROAD_ROLES": "dispatch,consume,work,maintain"}], ids=["default", "all"])
def test_it_runs_without_a_broker_whatever_its_roles(
    runtime_url: str, postgres: Postgres, database: str, roles: dict[str, str]
) -> None:
    given = {"POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_LOG_LEVEL": "debug", **roles}
    with Running(APP, **given) as running:
        port = running.ready()
        assert "work" in json.loads(fetch(port, "/health/ready")[1])["services"]
        done = postroad(*ENQUEUE, **given)
        assert done.returncode == 0, done.stderr
        running.wait_for("work_settled", job="reports.render", result="ok")
        running.stop()
    assert running.process.returncode == Exit.OK
    rows = postgres.execute("SELECT id, outcome FROM postroad.finished", database=database.rpartition("/")[2])
    assert rows == [(str(json.loads(done.stdout)["id"]), "handled")]


def test_the_doctor_asks_nothing_of_a_broker(runtime_url: str) -> None:
    done = postroad("doctor", APP, "--json", POSTROAD_DATABASE_URL=runtime_url)
    assert done.returncode == 0, done.stdout
    found = {one["name"]: (one["severity"], one["found"]) for one in json.loads(done.stdout)["findings"]}
    assert found["broker"] == ("ok", "none is needed: the App neither sends nor takes events")
    assert not found.keys() & {"installation", "deliveries.waiting", "topology.bindings", "queue.policy"}
    assert "work" in found["connections"][1]


def test_an_app_with_events_is_told_what_it_lacks(runtime_url: str) -> None:
    done = postroad("run", "orders:app", POSTROAD_DATABASE_URL=runtime_url)
    assert done.returncode == Exit.SETTINGS
    assert "POSTROAD_BROKER_URL is not set" in done.stderr


@pytest.mark.sabotage
def test_asked_for_a_broker_like_the_others_it_would_not_start(
    runtime_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Declarations, "events", property(lambda _: True))
    monkeypatch.setenv("POSTROAD_DATABASE_URL", runtime_url)
    monkeypatch.delenv("POSTROAD_BROKER_URL", raising=False)
    assert import_app("reports").app.execute() is Exit.SETTINGS
    assert "POSTROAD_BROKER_URL is not set" in capsys.readouterr().err
