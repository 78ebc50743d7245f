"""Versions: an event of an older version is lifted to the one that is read, and never quoted when that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel, Field

from postroad.errors import ContractError, UsageError
from postroad.events import Producer, Subscription, as_subscription
from postroad.events.envelope import CONTENT_TYPE, decode

GOLDEN = Path(__file__).parent / "golden"
TYPE = "envelopes.flight.departed"


class Departure(BaseModel):
    flight: str
    delay: float = Field(alias="delayMinutes")


def renamed(data: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had a number, and hours and minutes apart."""
    return {"flight": data["number"], "delayMinutes": data["late"]["hours"] * 60 + data["late"]["minutes"]}


@pytest.mark.parametrize(("version", "flight", "delay"), [(1, "UA 1545", 2.0), (2, 'UA "1545" é', 2.5)])
def test_golden_envelopes_of_every_version_are_read_by_todays_subscription(version, flight, delay):
    reader = Subscription(TYPE, version=2, model=Departure, upcasts={1: renamed})
    envelope = decode((GOLDEN / f"departed.v{version}.json").read_bytes(), content_type=CONTENT_TYPE, headers={})
    assert envelope.version == version
    assert reader.accepts(version)
    read = reader.decode(envelope.data, version=envelope.version)
    assert (read.flight, read.delay) == (flight, delay)


@pytest.mark.parametrize(
    ("upcasts", "read"), [({}, {3}), ({2: renamed}, {2, 3}), ({1: renamed, 2: renamed}, {1, 2, 3})]
)
def test_the_versions_that_are_read_are_those_from_which_upcasts_lead_up(upcasts, read):
    reader = Subscription(TYPE, version=3, model=Departure, upcasts=upcasts)
    assert {version for version in range(6) if reader.accepts(version)} == read


def test_an_upcast_that_changes_what_it_is_given_meets_it_afresh_each_time():
    def impure(data: dict[str, Any]) -> dict[str, Any]:
        data["late"]["minutes"] += 60
        return renamed(data)

    reader = Subscription(TYPE, version=2, model=Departure, upcasts={1: impure})
    data = {"number": "UA", "late": {"hours": 0, "minutes": 1}}
    assert [reader.decode(data, version=1).delay for _ in range(2)] == [61, 61]


@pytest.mark.parametrize(
    ("upcast", "said"),
    [
        (lambda data: data["absent"], "KeyError"), (lambda data: [data], "gave list"),
        (lambda _: None, "gave NoneType"),
        (lambda data: int(data["number"]), "ValueError"), (lambda data: {"flight": data["number"]}, "missing"),
    ],
)  # fmt: skip
def test_an_upcast_that_fails_is_told_without_the_payload(upcast, said):
    reader = Subscription(TYPE, version=2, model=Departure, upcasts={1: upcast})
    with pytest.raises(ContractError, match=rf"{said}.*PR505") as caught:
        reader.decode({"number": "hush"}, version=1)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_later_changes_of_the_mapping_change_no_declaration():
    upcasts = {1: renamed}
    reader = Subscription(TYPE, version=2, model=Departure, upcasts=upcasts)
    upcasts.clear()
    assert reader.accepts(1)


async def late(data: dict[str, Any]) -> dict[str, Any]:
    return data


@pytest.mark.parametrize("upcasts", [{1: renamed}, {2: renamed, 1: renamed, 3: renamed}, {0: renamed}, {2: late}])
def test_upcasts_that_lead_nowhere_are_refused_at_declaration(upcasts):
    with pytest.raises(UsageError, match="PR101"):
        Subscription(TYPE, version=3, model=Departure, upcasts=upcasts)


def test_the_producers_own_upcasts_are_those_of_its_readers():
    producer = Producer(f"p{uuid4().hex}")

    @producer.event("flight.departed", version=2, upcasts={1: renamed})
    class Departed(BaseModel):
        """A flight left the gate."""

        flight: str = Field(description="Its number.")
        delay: float = Field(alias="delayMinutes", description="Minutes late.")

    reader = as_subscription(Departed)
    assert reader.decode({"number": "UA", "late": {"hours": 1, "minutes": 0}}, version=1) == Departed(
        flight="UA", delayMinutes=60
    )
