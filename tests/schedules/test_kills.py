"""Killed at each step of what is done beside the ticks: all of it is there, or nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from postroad.schedules import operate, settle
from postroad.schedules.policy import Overlap
from postroad.schedules.registry import Release, register
from schedules.planbench import APP, SCHEMA, at, begin_at, finish, killed, office, schedule, settled, tick

TOLD = (
    "SELECT name, definition::text, cursor, failures, paused_at, revision FROM schedule",
    "SELECT due, kind, key, state, reason, request FROM occurrence ORDER BY due, kind",
    "SELECT act, subject, items FROM audit ORDER BY id",
    "SELECT cursor, planned, passed, ended_at FROM schedule_backfill ORDER BY id",
)


async def look(sql: Any) -> list[Any]:
    """Everything that an operator or the next scheduler can see."""
    return [await sql.fetch(text) for text in TOLD]


async def steps_of(url: str, sql: Any, make: Callable[[], Any], *, begin: str = "BEGIN") -> int:
    """Kill it at its first step, at its second, and so on until it comes through; how often."""
    before, lives = await look(sql), 0
    while await killed(url, make(), lives, begin=begin):
        assert await look(sql) == before, f"killed after {lives} statements"
        lives += 1
    assert await look(sql) != before
    return lives


async def failing(here: Any, sql: Any) -> Callable[[], Any]:
    """A run has failed for good: it is noted, and its schedule paused, with what was due by then."""
    held = await office(here, schedule(pause_on_failure=True))
    await begin_at(sql)
    await tick(here, held, at("02 00:01"))
    await sql.execute("DELETE FROM work")
    return lambda: settle.settle(SCHEMA, held, now=at("02 00:02"))


async def rerunning(here: Any, sql: Any) -> Callable[[], Any]:
    """A backfill of which one part has run before, by another backfill."""
    held = await office(here, schedule(cron="0 * * * *"))
    for first, rerun in (("02 02:00", False), ("02 01:00", True)):
        asked = operate.backfill(
            SCHEMA, "reports.daily", first=at(first), last=at("02 03:00"), overlap=Overlap.ALLOW, rerun=rerun, by="ada"
        )
        await here.run(asked)
        if not rerun:
            await here.run(settle.backfill(SCHEMA, held))
            await tick(here, held, await sql.fetchval("SELECT clock_timestamp()"))
            await finish(sql)
            await settled(here, held)
    return lambda: settle.backfill(SCHEMA, held)


async def changing(here: Any, sql: Any) -> Callable[[], Any]:
    """A release that changes one schedule while something of it is overdue, and takes another one out."""
    await office(here, schedule(at=at("02 12:00")), schedule("reports.other", at=at("02 12:00")))
    await begin_at(sql)
    release = Release.of(APP, [schedule(at=at("03 12:00"))], tz_version="2026a")
    return lambda: register(SCHEMA, release)


@pytest.mark.parametrize(("given", "least"), [(failing, 10), (rerunning, 7), (changing, 12)])
async def test_killed_at_any_step_all_of_it_is_there_or_nothing(
    here, sql, runtime_url, given: Callable[[Any, Any], Awaitable[Any]], least: int
) -> None:
    assert await steps_of(runtime_url, sql, await given(here, sql)) >= least, "there are that many steps"


@pytest.mark.sabotage
@pytest.mark.parametrize("given", [failing, rerunning, changing])
async def test_with_a_commit_after_each_statement_a_kill_would_leave_a_part(here, sql, runtime_url, given) -> None:
    make = await given(here, sql)
    with pytest.raises(AssertionError, match="killed after"):
        await steps_of(runtime_url, sql, make, begin="SELECT 1")


async def test_what_was_killed_comes_to_the_same_when_another_does_it(here, sql, runtime_url) -> None:
    make = await rerunning(here, sql)
    await steps_of(runtime_url, sql, make)
    rows = await sql.fetch("SELECT due, state, request FROM occurrence ORDER BY due")
    assert [(row["due"], row["state"], row["request"]) for row in rows] == [
        (at(f"02 0{hour}:00"), "pending", "2") for hour in (1, 2, 3)
    ]
    await here.run(make())
    assert await sql.fetchval("SELECT count(*) FROM occurrence") == 3
