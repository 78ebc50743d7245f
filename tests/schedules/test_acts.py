"""What operators do: pauses, resumes, runs by hand and backfills, each with its row of the audit."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from postroad.clock import hours, seconds
from postroad.errors import UsageError
from postroad.schedules import operate, settle
from postroad.schedules.policy import Missed, Overlap, State
from schedules.planbench import SCHEMA, at, begin_at, finish, occurrences, office, schedule, settled, states, tick

NAME = "reports.daily"


async def now(sql: Any) -> Any:
    return await sql.fetchval("SELECT clock_timestamp()")


async def last_act(sql: Any) -> tuple[str, str, str, str | None, int]:
    row = await sql.fetchrow("SELECT by, act, subject, reason, items FROM audit ORDER BY id DESC LIMIT 1")
    return tuple(row)


async def pause(here: Any, by: str = "ada", reason: str | None = "audit week") -> operate.Changed:
    return await here.run(operate.pause(SCHEMA, NAME, by=by, reason=reason))


async def resume(here: Any) -> operate.Changed:
    return await here.run(operate.resume(SCHEMA, NAME, by="eve"))


# --- pause and resume ---------------------------------------------------------------------------------------------


async def test_time_spent_paused_creates_neither_runs_nor_misses(here, sql) -> None:
    held = await office(here, schedule(every=seconds(1)))
    done = await pause(here)
    assert (done.changed, done.paused_by, done.reason) == (True, "ada", "audit week")
    assert await last_act(sql) == ("ada", "schedule.pause", NAME, "audit week", 1)
    before = len(await states(sql))
    await tick(here, held, await now(sql) + hours(1))
    assert len(await states(sql)) == before, "what was due before the pause waits, and nothing more comes"
    assert not (await pause(here, by="eve")).changed
    assert (await resume(here)).changed
    assert await last_act(sql) == ("eve", "schedule.resume", NAME, None, 1)
    assert await sql.fetchval("SELECT cursor > clock_timestamp() - interval '1 minute' FROM schedule")
    assert not (await resume(here)).changed
    assert await sql.fetchval("SELECT count(*) FROM audit WHERE act LIKE 'schedule.%e' AND subject = $1", NAME) == 2


@pytest.mark.sabotage
async def test_if_a_pause_only_hid_the_schedule_its_times_would_go_on(here, sql, monkeypatch) -> None:
    monkeypatch.setattr(State, "paused", property(lambda _: False))
    with pytest.raises(AssertionError, match="nothing more comes"):
        await test_time_spent_paused_creates_neither_runs_nor_misses(here, sql)


async def test_resume_brings_a_cursor_back_after_a_clock_that_was_ahead(here, sql) -> None:
    held = await office(here, schedule(every=hours(1)))
    midday = await sql.fetchval("SELECT date_trunc('hour', clock_timestamp())")
    await tick(here, held, midday + hours(3))  # The clock was three hours ahead; then it was put right.
    made = await states(sql)
    assert len(made) == 3
    await pause(here)
    await resume(here)
    assert await sql.fetchval("SELECT cursor <= clock_timestamp() FROM schedule")
    before, after = await sql.fetchrow("SELECT before, after FROM audit WHERE act = 'schedule.resume'")
    assert json.loads(before)["cursor"] > json.loads(after)["cursor"]
    await tick(here, held, midday + hours(3))
    assert await states(sql) == made, "what has an occurrence does not get another"
    await tick(here, held, midday + hours(4))
    assert len(await states(sql)) == 4


async def jittered(here: Any, sql: Any) -> tuple[Any, Any]:
    """Something due now that starts within the hour; its row."""
    held = await office(here, schedule(every=hours(1), jitter=hours(1)))
    await sql.execute("UPDATE schedule SET cursor = date_trunc('hour', clock_timestamp()) - interval '1 second'")
    await tick(here, held, await sql.fetchval("SELECT date_trunc('hour', clock_timestamp())"))
    [one] = await occurrences(sql)
    assert one["state"] == "pending"
    return held, one


async def test_a_pause_between_due_and_jittered_start_loses_no_run(here, sql) -> None:
    held, one = await jittered(here, sql)
    await pause(here)
    await tick(here, held, one["start_at"] + seconds(1))
    assert (await occurrences(sql))[0]["state"] == "pending", "nothing starts while it is paused"
    await resume(here)
    again = (await occurrences(sql))[0]
    await tick(here, held, max(again["start_at"], await now(sql)))
    assert (await occurrences(sql))[0]["state"] == "started"


@pytest.mark.sabotage
async def test_if_a_resume_forgot_what_waits_the_run_would_be_lost(here, sql) -> None:
    held, one = await jittered(here, sql)
    await pause(here)
    await sql.execute("DELETE FROM occurrence WHERE state = 'pending'")  # as a scheduler that keeps it in memory does
    await resume(here)
    await tick(here, held, one["start_at"] + seconds(1))
    assert [row["due"] for row in await occurrences(sql)] != [one["due"]]


async def test_what_was_due_when_it_was_paused_after_a_failure_is_not_lost(here, sql) -> None:
    held = await office(here, schedule(pause_on_failure=True))
    await begin_at(sql)
    await tick(here, held, at("02 00:01"))
    await sql.execute("DELETE FROM work")
    await settled(here, held, at("02 00:02"))
    assert await states(sql) == [("02 00:01", "failed", "its row of work is gone"), ("02 00:02", "pending", None)]


# --- by hand ------------------------------------------------------------------------------------------------------


async def trigger(here: Any, request: str = "one", **options: Any) -> operate.Triggered:
    return await here.run(operate.trigger(SCHEMA, NAME, request=request, by="ada", **options))


async def test_a_run_by_hand_starts_also_while_paused_and_once_for_each_request(here, sql) -> None:
    held = await office(here, schedule(cron="0 0 1 1 *"))
    await pause(here)
    done = await trigger(here, reason="the printer jammed")
    assert done.new
    assert await last_act(sql) == ("ada", "schedule.trigger", NAME, "the printer jammed", 1)
    assert not (await trigger(here)).new
    await tick(here, held, await now(sql))
    [one] = await occurrences(sql)
    assert (one["kind"], one["state"], one["due"], one["request"]) == ("manual", "started", done.due, "one")
    assert one["key"] == f"sched:{one['schedule']}:manual:one"
    await finish(sql)
    await settled(here, held)
    assert not (await trigger(here)).new, "also when that one has ended"
    assert await sql.fetchval("SELECT count(*) FROM audit WHERE act = 'schedule.trigger'") == 1


@pytest.mark.sabotage
async def test_without_its_key_a_request_would_run_as_often_as_it_is_sent(here, sql) -> None:
    await sql.execute("DROP INDEX occurrence_key")
    with pytest.raises(AssertionError, match="also when that one has ended"):
        await test_a_run_by_hand_starts_also_while_paused_and_once_for_each_request(here, sql)


async def test_a_run_by_hand_obeys_the_overlap_unless_it_brings_its_own(here, sql) -> None:
    held = await office(here, schedule(cron="0 0 1 1 *"))
    for request, options in (("one", {}), ("two", {}), ("three", {"overlap": Overlap.ALLOW})):
        await trigger(here, request, **options)
        await tick(here, held, await now(sql))
    rows = {row["request"]: (row["state"], row["reason"]) for row in await occurrences(sql)}
    assert rows == {"one": ("started", None), "two": ("skipped", "overlap"), "three": ("started", None)}


@pytest.mark.parametrize("request_", ["", "x" * 101, "a\nb"])
async def test_a_request_that_cannot_be_kept_is_refused(here, request_) -> None:
    await office(here, schedule())
    with pytest.raises(UsageError, match=r"one line of 1 to 100 characters.*PR107"):
        await trigger(here, request_)


async def test_an_unknown_name_is_told_with_what_was_meant_and_a_retired_one_is_refused(here, sql) -> None:
    await office(here, schedule())
    for act in (
        operate.pause(SCHEMA, "reports.dayly", by="a", reason=None), operate.resume(SCHEMA, "reports.dayly", by="a"),
        operate.trigger(SCHEMA, "reports.dayly", request="r", by="a"), operate.shown(SCHEMA, "reports.dayly"),
    ):  # fmt: skip
        with pytest.raises(
            UsageError, match=r"there is no schedule 'reports.dayly'; did you mean 'reports.daily'.*PR107"
        ):
            await here.run(act)
    await sql.execute("UPDATE schedule SET retired_at = now()")
    with pytest.raises(UsageError, match="is retired: no release that runs declares it"):
        await trigger(here)


# --- backfills ----------------------------------------------------------------------------------------------------


async def backfill(here: Any, first: str, last: str, **options: Any) -> operate.Backfilled:
    given = {"overlap": Overlap.QUEUE_ALL, "rerun": False, "by": "ada", **options}
    return await here.run(operate.backfill(SCHEMA, NAME, first=at(first), last=at(last), **given))


async def step(here: Any, held: Any, sql: Any) -> None:
    """A sweep of the scheduler, while a worker ends what runs."""
    await here.run(settle.backfill(SCHEMA, held, pace=3))
    await tick(here, held, await now(sql))
    await finish(sql)
    await settled(here, held)


async def test_a_backfill_covers_its_range_both_ends_included_and_passes_over_what_ran(here, sql) -> None:
    held = await office(here, schedule(cron="0 * * * *", missed=Missed.SKIP))
    await begin_at(sql)
    await tick(here, held, at("02 05:00"))
    await finish(sql)
    await settled(here, held)
    await sql.execute("UPDATE schedule SET cursor = clock_timestamp(), next_at = NULL")
    await sql.execute("DELETE FROM occurrence WHERE due < $1", at("02 05:00"))
    dry = await backfill(here, "02 01:00", "02 08:00", dry_run=True)
    assert (dry.id, len(dry.dues), dry.ran) == (None, 8, [at("02 05:00")])
    assert await sql.fetchval("SELECT count(*) FROM audit WHERE act = 'schedule.backfill'") == 0
    done = await backfill(here, "02 01:00", "02 08:00", reason="the archive was away")
    assert await last_act(sql) == ("ada", "schedule.backfill", NAME, "the archive was away", 7)
    for _ in range(12):
        await step(here, held, sql)
    rows = await occurrences(sql)
    assert [(row["due"].hour, row["kind"], row["state"]) for row in rows] == [
        (hour, "scheduled" if hour == 5 else "backfill", "succeeded") for hour in range(1, 9)
    ]  # fmt: skip
    assert {row["request"] for row in rows if row["kind"] == "backfill"} == {str(done.id)}
    stands = await sql.fetchrow("SELECT planned, passed, ended_at IS NOT NULL FROM schedule_backfill")
    assert tuple(stands) == (7, 1, True)


async def test_a_backfill_is_rate_limited_and_goes_on_where_another_scheduler_left_it(here, sql) -> None:
    held = await office(here, schedule(cron="0 * * * *"))
    await backfill(here, "02 00:00", "02 23:00")
    await here.run(settle.backfill(SCHEMA, held, pace=3))
    await here.run(settle.backfill(SCHEMA, held, pace=3))
    assert len(await occurrences(sql)) == 3, "no more before those have started"
    await here.keeper.release_many([held.lease])
    held = await office(here, schedule(cron="0 * * * *"))
    for _ in range(40):
        await step(here, held, sql)
    assert [row["due"].hour for row in await occurrences(sql)] == list(range(24))


@pytest.mark.sabotage
async def test_without_its_pace_a_backfill_would_be_written_all_at_once(here, sql, monkeypatch) -> None:
    real = settle.backfill
    monkeypatch.setattr(settle, "backfill", lambda schema, office, pace: real(schema, office, pace=10_000))
    with pytest.raises(AssertionError, match="no more before those have started"):
        await test_a_backfill_is_rate_limited_and_goes_on_where_another_scheduler_left_it(here, sql)


async def test_what_ran_before_runs_again_only_where_that_is_said(here, sql) -> None:
    held = await office(here, schedule(cron="0 * * * *"))
    await begin_at(sql)
    await tick(here, held, at("02 01:00"))
    await sql.execute("DELETE FROM work")
    await settled(here, held, at("02 01:00"))
    await sql.execute("UPDATE schedule SET cursor = clock_timestamp(), next_at = NULL")
    done = await backfill(here, "02 01:00", "02 01:00")
    assert (done.id, done.ran) == (None, [at("02 01:00")])
    await backfill(here, "02 01:00", "02 01:00", rerun=True)
    await step(here, held, sql)
    assert [(row["kind"], row["state"]) for row in await occurrences(sql)] == [
        ("backfill", "succeeded"), ("scheduled", "failed"),
    ]  # fmt: skip


async def asked_again(here: Any, sql: Any) -> list[tuple[str, str]]:
    """One due time, run by a backfill, then twice more; the key and state of what is there after each."""
    held = await office(here, schedule(cron="0 * * * *"))
    seen = []
    for rerun in (False, True, True):
        done = await backfill(here, "02 01:00", "02 01:00", rerun=rerun)
        await step(here, held, sql)
        seen += [(row["key"].split(":", 2)[2], row["state"], done.id) for row in await occurrences(sql)]
    return seen


async def test_a_due_time_runs_again_as_often_as_that_is_asked_for(here, sql) -> None:
    assert await asked_again(here, sql) == [
        (f"backfill:{number}:2026-03-02T01:00:00+00:00", "succeeded", number) for number in (1, 2, 3)
    ]
    assert await sql.fetchval("SELECT count(*) FROM finished") == 3
    told = await sql.fetch("SELECT by, items, before::text FROM audit WHERE act = 'schedule.rerun' ORDER BY id")
    assert [(row["by"], row["items"]) for row in told] == [("ada", 1), ("ada", 1)]
    [before] = json.loads(told[1]["before"])["runs"]
    assert (before["state"], before["request"], before["started_at"] is not None) == ("succeeded", "2", True)
    assert [tuple(row) for row in await sql.fetch("SELECT planned, passed FROM schedule_backfill")] == [(1, 0)] * 3


@pytest.mark.sabotage
async def test_if_only_new_rows_were_written_a_second_rerun_would_be_passed_over(here, sql, monkeypatch) -> None:
    def nothing(schema, row, dues, by):
        yield from ()
        return 0

    monkeypatch.setattr(settle, "_again", nothing)
    assert [key[:10] for key, *_ in await asked_again(here, sql)] == ["backfill:1"] * 3
    assert await sql.fetchval("SELECT count(*) FROM finished") == 1


async def test_what_a_backfill_has_not_ended_yet_is_not_run_again_beside_it(here, sql) -> None:
    held = await office(here, schedule(cron="0 * * * *"))
    await backfill(here, "02 01:00", "02 03:00")
    await here.run(settle.backfill(SCHEMA, held))
    await tick(here, held, await now(sql))
    with pytest.raises(UsageError, match=r"--rerun: 3 due times of that range, the first 2026-03-02T01:00.*PR107"):
        await backfill(here, "02 01:00", "02 05:00", rerun=True)
    assert (await backfill(here, "02 04:00", "02 05:00", rerun=True)).id == 2
    for _ in range(6):
        await finish(sql)
        await settled(here, held)
        await here.run(settle.backfill(SCHEMA, held))
        await tick(here, held, await now(sql))
    assert (await backfill(here, "02 01:00", "02 05:00", rerun=True)).id == 3


async def test_a_range_that_lies_ahead_is_reversed_or_too_long_is_refused(here) -> None:
    await office(here, schedule())
    with pytest.raises(UsageError, match="is before --from"):
        await backfill(here, "03 00:00", "02 00:00")
    with pytest.raises(UsageError, match="more than 10000 due times"):
        await backfill(here, "01 00:00", "25 00:00")
    with pytest.raises(UsageError, match="lies ahead"):
        await here.run(operate.backfill(
            SCHEMA, NAME, first=at("02 00:00"), last=at("02 00:00") + timedelta(days=9999), overlap=Overlap.ALLOW,
            rerun=False, by="ada",
        ))  # fmt: skip


# --- what they see ------------------------------------------------------------------------------------------------


async def test_a_schedule_is_listed_with_how_it_stands(here, sql) -> None:
    held = await office(here, schedule(cron="0 3 * * *", zone="Europe/Paris"), schedule("reports.other"))
    await begin_at(sql, name=NAME)
    await tick(here, held, at("02 02:00"))
    await here.run(operate.pause(SCHEMA, "reports.other", by="ada", reason=None))
    first, second = await here.run(operate.listed(SCHEMA))
    assert (first.name, first.state, first.started, first.last_due) == (NAME, "active", 1, at("02 02:00"))
    assert first.next_due is not None
    assert (second.state, second.next_due, second.paused_by) == ("paused", None, "ada")
    _, past, _ = await here.run(operate.history(SCHEMA, NAME, limit=10))
    assert [(one.due, one.state, one.work_state) for one in past] == [(at("02 02:00"), "started", "ready")]


async def test_a_definition_says_where_each_property_comes_from(here) -> None:
    await office(here, schedule(cron="0 3 * * *", overlap=Overlap.ALLOW))
    one = await here.run(operate.shown(SCHEMA, NAME))
    sources = one.definition["sources"]
    assert (sources["overlap"], sources["catch_up"], sources["max_runtime"]) == ("declared", "default", "job")
    assert json.dumps(one.definition)
