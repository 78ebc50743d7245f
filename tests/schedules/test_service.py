"""The scheduler as a service: one leads, the next takes over, and what it starts runs with its due time."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import asyncpg
import pytest

from postroad.clock import minutes, seconds
from postroad.leases import interrupt
from postroad.retry import Backoff
from postroad.schedules import operate, planner, service
from postroad.schedules.policy import Overlap
from postroad.signals.catalog import (
    DatabaseClockStepped,
    LateWriteRefused,
    OccurrenceEnded,
    OccurrencesPassed,
    OccurrenceStarted,
    SchedulePaused,
    SchedulesDeclared,
    SchedulesSuperseded,
)
from postroad.work import jobs
from postroad.work.job import job
from schedules.planbench import (
    RAN,
    SCHEMA,
    Asked,
    begin_at,
    finish,
    occurrences,
    office,
    render,
    schedule,
    scheduling,
    states,
)
from work.jobbench import queues, working

if TYPE_CHECKING:
    from postroad.schedules.schedule import Schedule


def often(name: str = "reports.daily") -> Schedule:
    """Due each second, whatever runs."""
    return schedule(name, every=seconds(1), overlap=Overlap.ALLOW)


async def back(sql: Any, by: timedelta) -> None:
    """As if schedules had last been planned so long ago."""
    await sql.execute("UPDATE schedule SET cursor = clock_timestamp() - $1::interval, next_at = 'epoch'", by)


async def test_what_it_starts_runs_with_its_due_time_in_the_zone_and_is_noted(here, sql) -> None:
    RAN.clear()
    zone = "America/New_York"
    async with scheduling(here, [schedule(every=seconds(1), zone=zone)]), working(here, queues(here, render)):
        ended = await here.heard.wait(OccurrenceEnded, 2)
    assert [one.result for one in ended[:2]] == ["ok", "ok"]
    assert all(-0.1 < delay < 20 for one in ended[:2] for delay in one.delays)
    due, day = RAN[0]
    assert due.tzinfo == ZoneInfo(zone)
    assert (day, due.microsecond) == (f"{due:%Y-%m-%d}", 0)
    [first, *_] = await occurrences(sql)
    assert (first["state"], first["due"]) == ("succeeded", due)
    assert here.ready.reason == ""


async def test_one_of_two_plans_and_the_other_takes_over_when_it_is_gone(here, there, sql) -> None:
    declared = [often()]
    async with scheduling(here, declared, dies=True):
        await here.heard.wait(OccurrenceStarted)
        async with scheduling(there, declared):
            await there.heard.wait(SchedulesDeclared)
            assert there.heard.of(OccurrenceStarted) == []
            await here.keeper.stop()  # As if it had died: it releases nothing.
            await there.heard.wait(OccurrenceStarted)
    dues = [row["due"] for row in await occurrences(sql)]
    assert len(dues) == len(set(dues))


async def test_a_leader_that_was_fenced_writes_nothing_which_is_counted_and_another_goes_on(here, sql) -> None:
    async with scheduling(here, [often()], ttl=seconds(60)):
        await here.heard.wait(OccurrenceStarted)
        await here.run(interrupt(SCHEMA, "scheduler:reports", by="ada", reason="test"))
        [late] = await here.heard.wait(LateWriteRefused)
        assert (late.room, late.count) == ("schedules", 1)
        count = len(here.heard.of(OccurrenceStarted))
        await here.heard.wait(OccurrenceStarted, count + 1)


async def test_a_newer_release_takes_over_and_the_older_plans_nothing(here, there, sql) -> None:
    old, new = [often()], [often("reports.new")]
    async with scheduling(here, old):
        await here.heard.wait(OccurrenceStarted)
        async with scheduling(there, new):
            await there.heard.wait(OccurrenceStarted)
            assert {row["name"] for row in await sql.fetch("SELECT name FROM schedule WHERE retired_at IS NULL")} == {
                "reports.new"
            }
            here.heard.signals.clear()
            await there.heard.wait(OccurrenceStarted, 1)
            assert here.heard.of(OccurrenceStarted) == []


async def test_an_old_process_stands_by_until_the_newer_release_is_gone(here, there, sql, monkeypatch) -> None:
    monkeypatch.setattr(service, "STANDBY", seconds(0.1))
    old, new = [often()], [often("reports.new")]
    async with scheduling(here, old):
        await here.heard.wait(OccurrenceStarted)
        async with scheduling(there, new):
            await here.heard.wait(SchedulesSuperseded)
            here.heard.signals.clear()
        [again] = await here.heard.wait(SchedulesDeclared)
        assert (again.release, again.new) == (3, 1)
        await here.heard.wait(OccurrenceStarted)


async def test_without_schedules_the_last_ones_are_retired(here, sql) -> None:
    await office(here, schedule())
    await here.keeper.release_many([(await office(here, schedule(), name="scheduler:other")).lease])
    async with scheduling(here, []):
        [told] = await here.heard.wait(SchedulesDeclared)
    assert (told.declared, told.retired) == (0, 1)


async def test_a_queued_occurrence_starts_once_the_run_has_ended(here, sql) -> None:
    async with scheduling(here, [schedule(every=seconds(1), overlap=Overlap.QUEUE_ONE)]):
        await here.heard.wait(OccurrenceStarted)
        async with asyncio.timeout(15):
            while "queued" not in [state for _, state, _ in await states(sql)]:  # noqa: ASYNC110 - a database is asked
                await asyncio.sleep(0.05)
        async with working(here, queues(here, render)):
            await here.heard.wait(OccurrenceStarted, 2)


async def test_a_database_clock_that_jumps_is_reported(here, sql, monkeypatch) -> None:
    shift = timedelta(0)
    ticks = planner.tick

    def shifted(schema, held):
        done = yield from ticks(schema, held)
        return planner.Ticked(now=done.now + shift, wait=done.wait, visited=done.visited)

    monkeypatch.setattr(planner, "tick", shifted)
    async with scheduling(here, [schedule()]) as made:
        await here.heard.wait(SchedulesDeclared)
        async with asyncio.timeout(10):
            while made._seen is None:  # noqa: ASYNC110 - nothing tells of a tick that did nothing
                await asyncio.sleep(0.01)
        shift = timedelta(hours=4)
        [ahead] = await here.heard.wait(DatabaseClockStepped)
        shift = timedelta(0)
        _, again = await here.heard.wait(DatabaseClockStepped, 2)
    assert (round(ahead.seconds / 60), round(again.seconds / 60)) == (240, -240)


async def test_while_the_database_is_away_it_is_not_ready_and_goes_on_afterwards(here, sql, monkeypatch) -> None:
    async with scheduling(here, [often()]):
        await here.heard.wait(OccurrenceStarted)
        [(name,)] = await sql.fetch("SELECT current_database()")
        await sql.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()",
            name,
        )
        count = len(here.heard.of(OccurrenceStarted))
        await here.heard.wait(OccurrenceStarted, count + 1)


# --- what a schedule wants of its runs ------------------------------------------------------------------------------

BEGUN: list[int] = []


@job("reports.failing")
async def failing(request: Asked, run: Any) -> None:
    """Fail each time."""
    BEGUN.append(run.attempt)
    raise RuntimeError("no")


async def test_its_own_retry_and_run_time_stand_in_the_place_of_the_jobs(here, sql) -> None:
    BEGUN.clear()
    once = Backoff(attempts=2, first=seconds(0.01), most=seconds(0.02))
    declared = schedule(every=seconds(1), job=failing, retry=once, max_runtime=minutes(2), pause_on_failure=True)
    async with scheduling(here, [declared]), working(here, queues(here, failing)):
        [paused] = await here.heard.wait(SchedulePaused)
        assert paused.failures == 1
    assert BEGUN[:2] == [1, 2]
    assert (await states(sql))[0][1:] == ("failed", "no [PR507]") or (await states(sql))[0][1] == "failed"
    assert await sql.fetchval("SELECT paused_by FROM schedule") == "postroad"


async def late(here: Any, sql: Any, heard: type[Any]) -> Any:
    """A run for which no worker is free before its start deadline has passed; what is told of it, and its row."""
    RAN.clear()
    async with scheduling(here, [schedule(every=seconds(1), start_within=seconds(30), pause_on_failure=True)]):
        await here.heard.wait(OccurrenceStarted)
        await here.run(operate.pause(SCHEMA, "reports.daily", by="ada", reason=None))
        await sql.execute("UPDATE work SET due = due - interval '31 seconds'")
        async with working(here, queues(here, render)):
            [told, *_] = await here.heard.wait(heard)
    [first, *_] = await occurrences(sql)
    return told, first


async def test_a_run_whose_start_deadline_passed_before_a_worker_was_free_never_begins_and_is_missed(here, sql) -> None:
    told, first = await late(here, sql, OccurrencesPassed)
    assert RAN == []
    assert (told.result, told.reason, told.count) == ("missed", "start_within", 1)
    assert (first["state"], first["reason"], first["started_at"]) == ("missed", "start_within", None)
    act = await sql.fetchrow("SELECT by, subject, items, reason, after::text FROM audit WHERE act = 'schedule.miss'")
    due = first["due"].isoformat()
    assert tuple(act)[:4] == ("postroad", "reports.daily", 1, "start_within")
    assert json.loads(act["after"]) == {"count": 1, "first": due, "last": due}
    assert await sql.fetchval("SELECT failures FROM schedule") == 0, "nothing has failed"


@pytest.mark.sabotage
async def test_if_only_the_scheduler_looked_at_the_deadline_a_late_run_would_begin(here, sql, monkeypatch) -> None:
    monkeypatch.setattr(jobs, "too_late", lambda row: None)
    _, first = await late(here, sql, OccurrenceEnded)
    assert (len(RAN) > 0, first["state"]) == (True, "succeeded")


async def test_what_was_overdue_is_decided_by_the_policy_when_it_starts(here, sql) -> None:
    held = await office(here, schedule())
    await here.keeper.release_many([held.lease])
    await back(sql, minutes(30))
    async with scheduling(here, [schedule()]):
        await here.heard.wait(OccurrenceStarted)
    count = await sql.fetch("SELECT state, count(*) FROM occurrence GROUP BY state ORDER BY state")
    found = dict(map(tuple, count))
    assert found["started"] == 1
    assert found["missed"] >= 28


@pytest.mark.sabotage
async def test_with_its_cursor_in_memory_a_restart_would_lose_what_was_overdue(here, sql) -> None:
    held = await office(here, schedule(cron="0 0 1 1 *"))
    await here.keeper.release_many([held.lease])
    await begin_at(sql)
    await sql.execute("UPDATE schedule SET cursor = clock_timestamp(), next_at = 'epoch'")
    async with scheduling(here, [schedule(cron="0 0 1 1 *")]):
        await here.heard.wait(SchedulesDeclared)
    assert await states(sql) == []


async def test_it_releases_its_names_when_it_stops(here, sql) -> None:
    async with scheduling(here, [often()]):
        await here.heard.wait(OccurrenceStarted)
    rows = await sql.fetch("SELECT name FROM lease WHERE holder IS NOT NULL")
    assert [row["name"] for row in rows if not row["name"].startswith("worker:")] == []


async def test_a_schedule_row_that_somebody_holds_stalls_no_other(here, sql, database) -> None:
    async with scheduling(here, [often(), often("reports.other")]):
        await here.heard.wait(OccurrenceStarted, 2)
        other = await asyncpg.connect(database)
        async with other.transaction():
            await other.execute("SELECT 1 FROM postroad.schedule WHERE name = 'reports.other' FOR UPDATE")
            here.heard.signals.clear()
            await finish(sql)
            started = await here.heard.wait(OccurrenceStarted)
            ended = await here.heard.wait(OccurrenceEnded)
        await other.close()
    assert {one.schedule for one in (*started, *ended)} == {"reports.daily"}
