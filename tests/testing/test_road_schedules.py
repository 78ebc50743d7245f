"""Schedules in a user's tests: time passes when the test says so, and each due time runs once, in order."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from postroad import App, BlockingRun, Overlap, Run, Schedule, hours, job, minutes, seconds
from postroad.errors import UsageError
from postroad.schedules import operate
from postroad.schedules.policy import Missed
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.testing import BlockingRoad, Road, timetable
from postroad.testing.timetable import Timetable

RAN: list[tuple[str, datetime | None]] = []


class Day(BaseModel):
    day: str


@job("almanac.close")
async def close(request: Day, run: Run) -> None:
    RAN.append((request.day, run.due))
    if request.day == "never":
        raise ArithmeticError


@job("almanac.print")
def print_day(request: Day, run: BlockingRun) -> None:
    RAN.append((request.day, run.due))


def day(due: datetime) -> Day:
    return Day(day=f"{due:%Y-%m-%d}")


def almanac(url: str, *schedules: Schedule) -> Road:
    RAN.clear()
    return Road(App("almanac", jobs=[close, print_day], schedules=schedules), url)


def nightly(name: str = "almanac.nightly", **options: Any) -> Schedule:
    given = {"cron": "15 2 * * *", "zone": "Europe/Paris", "job": close, "args": day, **options}
    return Schedule(name, **given)


def dues() -> list[datetime]:
    return [due for _, due in RAN if due is not None]


async def nights(url: str) -> None:
    road = almanac(url, nightly())
    assert (await road.drain()).jobs == 0, "time stands still until a test moves it"
    for _ in range(2):
        await road.advance(days=1)
        assert (await road.drain()).jobs == 1
        assert (await road.drain()).jobs == 0
    first, second = dues()
    assert (f"{first:%H:%M}", second.date() - first.date()) == ("02:15", timedelta(days=1))
    assert [name for name, _ in RAN] == [f"{due:%Y-%m-%d}" for due in (first, second)]


async def test_a_due_time_comes_when_that_much_time_has_passed_and_runs_once(database) -> None:
    await nights(database)


@pytest.mark.sabotage
async def test_if_advance_forgot_the_schedules_nothing_would_ever_be_due(database, monkeypatch) -> None:
    async def still(self, hand, by):
        await real(self, hand, timedelta(0))

    real = Timetable.advance
    monkeypatch.setattr(Timetable, "advance", still)
    with pytest.raises(AssertionError):
        await nights(database)


@pytest.mark.parametrize("missed", Missed)
async def test_what_is_passed_over_in_one_step_runs_one_after_the_other_and_none_is_late(database, missed) -> None:
    road = almanac(database, nightly(cron=None, every=hours(6), missed=missed))
    await road.advance(days=1)
    assert (await road.drain()).jobs == 4, "each has ended before the next is due: none overlaps either"
    assert [later - earlier for earlier, later in zip(dues(), dues()[1:], strict=False)] == [hours(6)] * 3


@pytest.mark.sabotage
async def test_if_all_of_a_step_were_planned_at_its_end_it_would_be_an_outage(database, monkeypatch) -> None:
    real = timetable.planner.tick

    def late(schema, office, now):
        return real(schema, office, now=now + hours(24))

    monkeypatch.setattr(timetable.planner, "tick", late)
    with pytest.raises(AssertionError, match="none overlaps either"):
        await test_what_is_passed_over_in_one_step_runs_one_after_the_other_and_none_is_late(database, Missed.LATEST)


async def test_schedules_keep_their_order_among_each_other_and_def_jobs_run_too(database) -> None:
    road = almanac(
        database,
        nightly("almanac.six", cron=None, every=hours(2), phase=hours(1), job=print_day),
        nightly("almanac.two", cron=None, every=hours(2)),
    )
    await road.advance(hours=6)
    assert (await road.drain()).jobs == 6
    assert dues() == sorted(dues())


async def test_jitter_and_queues_are_kept(database) -> None:
    road = almanac(database, nightly(cron=None, every=hours(1), jitter=minutes(30), overlap=Overlap.QUEUE_ONE))
    await road.advance(hours=1)
    await road.drain()
    await road.advance(minutes=30)
    await road.drain()
    assert RAN
    async with road.transaction() as tx:
        row = await tx.fetchrow("SELECT due, start_at, state FROM postroad.occurrence ORDER BY due LIMIT 1")
    assert row["state"] == "succeeded"
    assert row["due"] <= row["start_at"] < row["due"] + minutes(30)


async def test_a_run_that_fails_comes_out_of_the_drain(database) -> None:
    road = almanac(database, nightly(args=lambda due: Day(day="never")))
    await road.advance(days=1)
    with pytest.raises(ArithmeticError):
        await road.drain()


async def test_a_request_that_cannot_be_made_comes_out_of_the_drain(database) -> None:
    declared: list[bool] = []

    def made(due: datetime) -> Day:
        if declared:
            raise KeyError("4111")
        return day(due)

    road = almanac(database, nightly(args=made), nightly("almanac.sound"))
    declared.append(True)
    await road.advance(days=1)
    with pytest.raises(AssertionError, match=r"almanac.nightly failed and was not started: args raised KeyError"):
        await road.drain()
    assert len(RAN) == 1, "its neighbour has run"


async def test_runs_by_hand_and_pauses_hold_in_a_drain(database) -> None:
    road = almanac(database, nightly())
    await road.drain()
    async with road.transaction() as tx:
        await drive(operate.pause("postroad", "almanac.nightly", by="ada", reason=None), AsyncpgHand(tx))
        await drive(operate.trigger("postroad", "almanac.nightly", request="one", by="ada"), AsyncpgHand(tx))
    await road.advance(days=3)
    assert (await road.drain()).jobs == 1


async def test_another_road_on_the_database_goes_on_from_there_and_clear_forgets(database) -> None:
    road = almanac(database, nightly())
    await road.advance(days=2)
    await road.drain()
    again = Road(road.app, database)
    await again.advance(days=1)
    await again.drain()
    assert len(set(dues())) == len(dues()) == 3
    await again.clear()
    await again.advance(days=1)
    await again.drain()
    assert len(dues()) == 4
    assert dues()[3] == dues()[0], "as if nothing had been"


async def test_more_than_can_be_run_in_time_is_told(database) -> None:
    road = almanac(database, nightly(cron=None, every=seconds(1)))
    await road.advance(days=1)
    with pytest.raises(TimeoutError, match=r"drain: not done within 0.5 s; left: 1 in almanac.close"):
        await road.drain(within=seconds(0.5))


async def test_the_blocking_road_does_the_same_for_schedules(database) -> None:
    road = almanac(database, nightly())

    def blocking() -> int:
        mine = BlockingRoad(road.app, database)
        mine.advance(days=2)
        return mine.drain().jobs

    assert await asyncio.to_thread(blocking) == 2


async def test_time_only_passes(database) -> None:
    with pytest.raises(UsageError, match="time only passes"):
        await almanac(database, nightly()).advance(days=-1)
