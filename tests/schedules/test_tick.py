"""One tick: what is due becomes rows, once, whatever happens to the process that plans."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from postroad.clock import seconds
from postroad.errors import LeaseLost
from postroad.leases import interrupt
from postroad.schedules import planner, store
from postroad.schedules.policy import Missed, Overlap
from postroad.schedules.registry import Release, register
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.statement import Statement
from schedules.planbench import (
    APP,
    SCHEMA,
    START,
    Killed,
    Mortal,
    at,
    begin_at,
    daily,
    killed,
    occurrences,
    office,
    schedule,
    states,
    tick,
)

ALL = {"missed": Missed.ALL, "overlap": Overlap.ALLOW, "limit": 10_000, "max_catch_up": 2000}


async def test_what_is_due_becomes_an_occurrence_and_a_row_of_work(here, sql) -> None:
    held = await office(here, schedule(cron="15 2 * * *", zone="America/New_York"))
    await begin_at(sql)
    done = await tick(here, held, at("02 07:15:01"))
    assert done.queues == {"reports.render"}
    [one] = await occurrences(sql)
    [row] = await sql.fetch("SELECT * FROM work")
    assert (one["state"], one["work_id"], one["queue"]) == ("started", row["id"], "reports.render")
    assert one["due"] == at("02 07:15")
    assert row["key"] == one["key"] == f"sched:{one['schedule']}:2026-03-02T07:15:00+00:00"
    assert row["body"] == b'{"day":"2026-03-02"}'
    assert (one["token"], one["tz_version"], one["revision"]) == (held.lease.token, "2025b", 1)


async def test_nothing_is_due_twice(here, sql) -> None:
    held = await office(here, schedule())
    await begin_at(sql)
    for _ in range(3):
        await tick(here, held, at("02 00:01"))
    assert await states(sql) == [("02 00:01", "started", None)]
    assert await sql.fetchval("SELECT next_at FROM schedule") == at("02 00:02")


async def test_only_what_is_due_is_read(here, sql) -> None:
    held = await office(here, *(schedule(f"reports.{number}", cron=f"{number} * * * *") for number in range(10)))
    await begin_at(sql)
    assert (await tick(here, held, at("02 00:00:30"))).visited == 10, "each is looked at once"
    assert (await tick(here, held, at("02 00:04:30"))).visited == 4
    assert (await tick(here, held, at("02 00:04:30"))).visited == 0


async def test_a_request_that_cannot_be_made_stalls_no_neighbour(here, sql) -> None:
    def broken(due: Any) -> Any:
        if due > START:
            raise KeyError("4111-1111")
        return daily(due)

    held = await office(here, schedule("reports.broken", args=broken), schedule("reports.sound"))
    await begin_at(sql)
    await tick(here, held, at("02 00:01"))
    assert await states(sql, "reports.broken") == [("02 00:01", "started", "args raised KeyError")]
    assert await states(sql, "reports.sound") == [("02 00:01", "started", None)]
    assert await sql.fetchval("SELECT count(*) FROM work") == 1


async def test_a_schedule_that_cannot_be_decided_stalls_no_neighbour(here, sql, monkeypatch) -> None:
    held = await office(here, schedule("reports.broken"), schedule("reports.sound"))
    await begin_at(sql)
    decide = planner.Sheet.visit

    def visit(self, row, known, found):
        if row.name == "reports.broken":
            raise ValueError("no")
        decide(self, row, known, found)

    monkeypatch.setattr(planner.Sheet, "visit", visit)
    done = await tick(here, held, at("02 00:01"))
    assert [signal.task for signal in done.told if hasattr(signal, "task")] == ["schedule:reports.broken"]
    assert await states(sql, "reports.sound") == [("02 00:01", "started", None)]
    assert await sql.fetchval("SELECT next_at FROM schedule WHERE name = 'reports.broken'") == at("02 00:02")


# --- ten at once --------------------------------------------------------------------------------------------------


async def race(url: str, here: Any, sql: Any, *, until: timedelta, racers: int = 10) -> None:
    """Ten processes that all believe to be the one: each with a lease of its own, and a clock that jumps at will."""
    declared = schedule(**ALL)
    held = [await office(here, declared, name=f"scheduler:{number}") for number in range(racers)]
    await begin_at(sql)
    chance = random.Random(7)

    async def run(mine: planner.Office) -> None:
        connection = await asyncpg.connect(url)
        now, stays = START, True
        while stays:
            now = min(now + timedelta(minutes=chance.randint(1, 30)), START + until)
            stays = now < START + until
            async with connection.transaction():
                await drive(planner.tick(SCHEMA, mine, now=now), AsyncpgHand(connection))
        async with connection.transaction():  # Who was passed over by all is looked at once more.
            await drive(planner.tick(SCHEMA, mine, now=now), AsyncpgHand(connection))
        await connection.close()

    await asyncio.gather(*map(run, held))


async def counts(sql: Any) -> tuple[int, int, int]:
    """Occurrences, their different times, and rows of work."""
    row = await sql.fetchrow(
        "SELECT count(*) AS all, count(DISTINCT due) AS times, (SELECT count(*) FROM work) AS work FROM occurrence"
    )
    return row["all"], row["times"], row["work"]


async def test_ten_schedulers_that_race_for_a_day_start_each_minute_once(here, sql, runtime_url) -> None:
    await race(runtime_url, here, sql, until=timedelta(days=1))
    assert await counts(sql) == (1440, 1440, 1440)


async def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody holds a schedule while he decides about it, and nobody else's cursor is looked at."""
    texts = store.QUERIES._texts
    monkeypatch.setitem(texts, "due", texts["due"].replace("FOR UPDATE SKIP LOCKED", ""))
    monkeypatch.setattr(store.QUERIES, "_rendered", {})


async def test_without_the_lock_the_constraint_still_holds(here, sql, runtime_url, monkeypatch) -> None:
    await unlocked(monkeypatch)
    await race(runtime_url, here, sql, until=timedelta(hours=3))
    assert await counts(sql) == (180, 180, 180)


@pytest.mark.sabotage
async def test_without_lock_and_constraint_minutes_are_doubled(here, sql, runtime_url, monkeypatch) -> None:
    await unlocked(monkeypatch)
    await sql.execute("ALTER TABLE occurrence DROP CONSTRAINT occurrence_schedule_due_kind_key")
    await race(runtime_url, here, sql, until=timedelta(hours=3))
    total, times, _ = await counts(sql)
    assert (times, total > times) == (180, True)


# --- killed, stale ------------------------------------------------------------------------------------------------


async def test_a_scheduler_killed_at_any_step_of_a_tick_loses_and_doubles_nothing(here, sql, runtime_url) -> None:
    held = await office(here, schedule(**ALL), schedule("reports.jittered", jitter=seconds(50), **ALL))
    await begin_at(sql)
    lives, minute = 0, 0
    while await killed(runtime_url, planner.tick(SCHEMA, held, now=at(f"02 00:{minute + 1:02}:55")), lives):
        lives += 1
        minute += 1
        await tick(here, held, at(f"02 00:{minute:02}:55"))
    assert lives > 8, "there are that many steps"
    for name in ("reports.daily", "reports.jittered"):
        found = await occurrences(sql, name)
        assert [row["due"] for row in found] == [at(f"02 00:{each:02}") for each in range(1, minute + 2)]
        assert {row["state"] for row in found} == {"started"}
    assert await sql.fetchval("SELECT count(*) FROM work") == 2 * (minute + 1)


@pytest.mark.sabotage
async def test_with_a_commit_after_each_statement_a_kill_would_lose_a_run(here, sql, runtime_url) -> None:
    held = await office(here, schedule(**ALL))
    await begin_at(sql)
    lost = set()
    for lives in range(4, 9):
        connection = await asyncpg.connect(runtime_url)
        with pytest.raises(Killed):
            await drive(planner.tick(SCHEMA, held, now=at(f"02 00:0{lives}")), Mortal(connection, lives))
        await tick(here, held, at(f"02 00:0{lives}"))
        lost.add(await sql.fetchval("SELECT count(*) FROM occurrence WHERE state = 'started' AND work_id IS NULL"))
    assert lost != {0}


async def test_a_leader_that_lost_its_lease_changes_nothing(here, sql) -> None:
    held = await office(here, schedule())
    await begin_at(sql)
    await here.run(interrupt(SCHEMA, held.lease.name, by="ada", reason="test"))
    with pytest.raises(LeaseLost, match="PR401"):
        await tick(here, held, at("02 00:01"))
    assert await states(sql) == []
    assert await sql.fetchval("SELECT cursor FROM schedule") == START


@pytest.mark.sabotage
async def test_without_the_fence_a_leader_that_lost_its_lease_writes(here, sql, monkeypatch) -> None:
    held = await office(here, schedule())
    await begin_at(sql)
    await here.run(interrupt(SCHEMA, held.lease.name, by="ada", reason="test"))

    def passed(schema, leases):
        yield Statement("SELECT 1")
        return frozenset(lease.name for lease in leases)

    monkeypatch.setattr(planner, "fence", passed)
    await tick(here, held, at("02 00:01"))
    assert await states(sql) == [("02 00:01", "started", None)]


async def test_a_leader_of_an_older_release_changes_nothing(here, sql) -> None:
    held = await office(here, schedule())
    await begin_at(sql)
    await here.run(register(SCHEMA, Release.of(APP, [schedule(overlap=Overlap.ALLOW)], tz_version="2025b")))
    assert (await tick(here, held, at("02 01:00"))).superseded
    assert await states(sql) == []


# --- the database's clock -----------------------------------------------------------------------------------------


async def test_a_clock_that_goes_back_creates_nothing(here, sql) -> None:
    held = await office(here, schedule())
    await begin_at(sql)
    await tick(here, held, at("02 00:05"))
    before = await states(sql)
    for minute in range(5):
        await tick(here, held, at(f"02 00:0{minute}"))
    assert await states(sql) == before
    await tick(here, held, at("02 00:06"))
    assert len(await states(sql)) == len(before) + 1


@pytest.mark.sabotage
async def test_with_a_cursor_that_may_go_back_a_minute_is_decided_again(here, sql) -> None:
    held = await office(here, schedule(), schedule("reports.other"))
    await begin_at(sql)
    await tick(here, held, at("02 00:05"))
    await sql.execute("UPDATE schedule SET cursor = $1, next_at = $1", at("02 00:00"))
    await sql.execute("DELETE FROM work")
    await sql.execute("ALTER TABLE occurrence DROP CONSTRAINT occurrence_schedule_due_kind_key")
    await tick(here, held, at("02 00:04"))
    assert len({row["due"] for row in await occurrences(sql)}) < len(await occurrences(sql))
