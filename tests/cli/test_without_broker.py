"""The commands where the database carries events: topology by subscriptions, and what needs a broker refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from postroad.runtime.exits import Exit
from runtime.processes import postroad

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

APP = "road.apps.board:app"
TESTS = str(Path(__file__).parent.parent)


@pytest.fixture
def settings(runtime_url: str) -> dict[str, str]:
    return {"PYTHONPATH": TESTS, "POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": "postgres:"}


def document(settings: dict[str, str], *arguments: str, code: int = 0) -> dict:
    done = postroad(*arguments, "--json", **settings)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_topology_is_subscriptions(settings: dict[str, str], postgres: Postgres, database: str) -> None:
    missing = document(settings, "topology", "verify", APP, code=1)["differences"]
    assert {(one["kind"], one["problem"]) for one in missing} == {("subscription", "is missing")}
    assert document(settings, "topology", "apply", APP) == {"applied": {"subscriptions": 2}}
    assert document(settings, "topology", "verify", APP)["differences"] == []
    more = "INSERT INTO postroad.subscription (consumer, event_type) VALUES ('board.moves', 'parcels.parcel.lost')"
    postgres.execute(more, database=database.rpartition("/")[2])
    (found,) = document(settings, "topology", "verify", APP, code=1)["differences"]
    assert (found["name"], found["problem"]) == (
        "board.moves to parcels.parcel.lost", "stands, but is declared no more"
    )  # fmt: skip
    document(settings, "topology", "apply", APP)
    assert document(settings, "topology", "verify", APP)["differences"] == []
    assert document(settings, "topology", "retire", "board.moves") == {
        "consumer": "board.moves", "subscriptions": 1, "deliveries": 0,
    }  # fmt: skip


def test_the_topology_that_is_shown_is_subscriptions(settings: dict[str, str]) -> None:
    shown = postroad("topology", "show", APP, **settings).stdout
    assert "subscriptions" in shown
    assert "board.moves" in shown
    assert "exchange" not in shown


def test_a_start_without_its_subscriptions_is_refused_with_what_to_do(settings: dict[str, str]) -> None:
    done = postroad("run", APP, "--only", "consume", **settings)
    assert done.returncode == Exit.TOPOLOGY
    assert "the database lacks subscription 'board.moves to parcels.parcel.moved'" in done.stderr
    assert "postroad topology apply" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("adopt",), "no broker to be bound to"), (("topology", "retire", "nobody"), "subscribes to nothing")],
)
def test_what_makes_no_sense_is_one_line(settings: dict[str, str], arguments: tuple[str, ...], words: str) -> None:
    done = postroad(*arguments, **settings)
    assert done.returncode == Exit.USAGE
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
