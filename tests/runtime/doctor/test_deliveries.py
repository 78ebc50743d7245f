from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from postroad.runtime.doctor import Limits, examine_broker, examine_deliveries, examine_installation
from postroad.runtime.doctor.deliveries import judge_former, judge_left, judge_subscriptions, judge_waiting
from postroad.runtime.operations import apply_topology, retire_consumer
from postroad.runtime.settings import POSTGRES, Settings
from postroad.transport.postgres.store import Waiting
from postroad.transport.postgres.transport import subscriptions_in
from runtime.doctor.patients import SUBJECT, by_name, severity

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

LIMITS = Limits(waiting_age=timedelta(minutes=5))
STANDING = subscriptions_in(SUBJECT.topology)
CONSUMER = next(iter(STANDING))[0]


def waits(minutes: int, consumer: str = CONSUMER) -> Waiting:
    return Waiting(consumer, 3, 0, timedelta(minutes=minutes))


@pytest.mark.parametrize(
    ("rows", "judgement"),
    [([], "ok"), ([waits(4)], "ok"), ([waits(6)], "warning"), ([waits(1, "gone.by")], "warning")],
)
def test_what_waits_for_long_or_for_somebody_who_is_gone_is_warned_of(rows, judgement):
    found = judge_waiting(rows, STANDING, LIMITS)
    assert severity(found) == judgement
    assert (judgement == "ok") or "topology retire" in found[0].remedy


def test_what_is_left_in_the_database_beside_a_broker_is_told_with_its_number():
    (found,) = judge_left([waits(1)])
    assert (found.severity, found.found) == (
        "warning",
        f"3 in the database for consumer {CONSUMER!r}, the oldest for 60 seconds",
    )
    assert severity(judge_left([])) == "ok"


def test_a_missing_subscription_is_an_error_and_one_too_many_a_warning():
    assert severity(judge_subscriptions(SUBJECT, STANDING)) == "ok"
    assert {one.severity for one in judge_subscriptions(SUBJECT, frozenset())} == {"error"}
    more = STANDING | {(CONSUMER, "some.other.type")}
    assert severity(judge_subscriptions(SUBJECT, more)) == "warning"
    assert severity(judge_subscriptions(None, more)) == "not checked"


def test_a_former_broker_is_noted():
    assert judge_former(None).severity == "ok"
    assert "rabbit@one" in judge_former("rabbit@one").found


def test_a_database_that_carries_events_needs_no_broker(runtime_url: str, postgres: Postgres, database: str):
    settings = Settings(database_url=runtime_url, direct_url=runtime_url, broker_url=POSTGRES)

    async def examine():
        return [
            *await examine_broker(settings, SUBJECT), *await examine_installation(settings),
            *await examine_deliveries(settings, SUBJECT),
        ]  # fmt: skip

    assert severity(by_name(asyncio.run(examine()))["topology"][:1]) == "error"
    asyncio.run(apply_topology(settings, SUBJECT.topology, by="ada"))
    found = {name: severity(rows) for name, rows in by_name(asyncio.run(examine())).items()}
    assert found == {
        "broker": "ok", "installation": "ok", "deliveries.waiting": "ok", "topology": "ok", "transport.former": "ok",
    }  # fmt: skip
    ended, dropped = asyncio.run(retire_consumer(settings, CONSUMER, by="ada"))
    assert (ended > 0, dropped) == (True, 0)
