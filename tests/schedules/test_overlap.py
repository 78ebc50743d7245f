"""Occurrences that meet a run: judged by `work`, whatever became of its worker."""

from __future__ import annotations

import pytest

from postroad.clock import minutes, seconds
from postroad.leases import interrupt
from postroad.schedules import decide, settle
from postroad.schedules import store as table
from postroad.schedules.policy import Overlap, Reason
from postroad.work import store
from schedules.planbench import (
    SCHEMA,
    at,
    begin_at,
    finish,
    missed_but_for,
    occurrences,
    office,
    schedule,
    settled,
    states,
    tick,
)


async def test_while_a_run_goes_on_others_are_skipped(here, sql) -> None:
    held = await office(here, schedule())
    await begin_at(sql)
    for minute in (1, 2, 3):
        await tick(here, held, at(f"02 00:0{minute}"))
    assert await states(sql) == [
        ("02 00:01", "started", None), ("02 00:02", "skipped", "overlap"), ("02 00:03", "skipped", "overlap"),
    ]  # fmt: skip
    await finish(sql)
    await tick(here, held, at("02 00:04"))
    assert (await states(sql))[-1] == ("02 00:04", "started", None), "work says that it has ended, not the state"


async def test_one_waits_and_starts_when_the_run_has_ended(here, sql) -> None:
    held = await office(here, schedule(overlap=Overlap.QUEUE_ONE))
    await begin_at(sql)
    for minute in (1, 2, 3):
        await tick(here, held, at(f"02 00:0{minute}"))
    assert [state for _, state, _ in await states(sql)] == ["started", "queued", "skipped"]
    await finish(sql)
    assert (await settled(here, held)).count == 1
    await tick(here, held, at("02 00:03:01"))
    assert [state for _, state, _ in await states(sql)] == ["succeeded", "started", "skipped"]


async def test_the_run_is_cancelled_and_the_next_one_waits_for_its_end(here, sql) -> None:
    held = await office(here, schedule(overlap=Overlap.CANCEL_RUNNING))
    await begin_at(sql)
    await tick(here, held, at("02 00:01"))
    worker = await here.lease()
    [row] = await here.run(store.claim(SCHEMA, queue="reports.render", limit=1, worker=worker))
    await tick(here, held, at("02 00:02"))
    assert [state for _, state, _ in await states(sql)] == ["started", "queued"]
    assert await sql.fetchrow("SELECT cancelled_by, cancel_reason FROM work") == ("postroad", "overlap")
    await tick(here, held, at("02 00:03"))
    assert [state for _, state, _ in await states(sql)] == ["started", "skipped", "queued"]
    assert await here.run(store.finish(SCHEMA, row.id, row.token, outcome="cancelled", reason="overlap"))
    await settled(here, held)
    await tick(here, held, at("02 00:03:01"))
    assert await states(sql) == [
        ("02 00:01", "cancelled", "overlap"), ("02 00:02", "skipped", "superseded"), ("02 00:03", "started", None),
    ]  # fmt: skip


async def claimed_by_the_dead(here, held, sql) -> None:
    await begin_at(sql)
    await tick(here, held, at("02 00:01"))
    worker = await here.lease(ttl=seconds(5))
    [_] = await here.run(store.claim(SCHEMA, queue="reports.render", limit=1, worker=worker))
    await here.run(interrupt(SCHEMA, worker, by="ada", reason="as if it had died"))


async def test_a_run_whose_worker_died_still_runs_until_it_has_ended(here, sql) -> None:
    held = await office(here, schedule())
    await claimed_by_the_dead(here, held, sql)
    await tick(here, held, at("02 00:02"))
    assert await here.run(store.recover(SCHEMA)) == {"reports.render": 1}
    await settled(here, held)
    await tick(here, held, at("02 00:03"))
    assert [state for _, state, _ in await states(sql)] == ["started", "skipped", "skipped"]
    await finish(sql)
    await tick(here, held, at("02 00:04"))
    assert (await states(sql))[-1] == ("02 00:04", "started", None)


@pytest.mark.sabotage
async def test_judged_by_living_workers_a_run_whose_worker_died_would_be_doubled(here, sql, monkeypatch) -> None:
    texts = table.QUERIES._texts
    monkeypatch.setitem(
        texts, "open", texts["open"].replace("work.id IS NOT NULL)", "EXISTS (SELECT FROM {schema}.lease"
        " WHERE lease.name = work.worker AND holder IS NOT NULL))"),
    )  # fmt: skip
    monkeypatch.setattr(table.QUERIES, "_rendered", {})
    held = await office(here, schedule())
    await claimed_by_the_dead(here, held, sql)
    await tick(here, held, at("02 00:02"))
    assert [state for _, state, _ in await states(sql)] == ["started", "started"]


async def test_a_run_in_quarantine_has_failed_and_blocks_nothing_and_one_that_is_released_runs(here, sql) -> None:
    from postroad.runtime.operations import released
    from work.bench import VERDICT

    held = await office(here, schedule())
    await begin_at(sql)
    await tick(here, held, at("02 00:01"))
    worker = await here.lease()
    [row] = await here.run(store.claim(SCHEMA, queue="reports.render", limit=1, worker=worker))
    assert await here.run(store.quarantine_claimed(SCHEMA, row.id, row.token, verdict=VERDICT, attempt=1))
    await settled(here, held)
    assert await states(sql) == [("02 00:01", "failed", "the gateway did not answer [gateway]")]
    number = await sql.fetchval("SELECT id FROM quarantine")
    done = await here.run(released(SCHEMA, number, "ada"))
    assert [(one["state"], one["work_id"]) for one in await occurrences(sql)] == [("started", done.number)]
    await tick(here, held, at("02 00:02"))
    assert (await states(sql))[-1] == ("02 00:02", "skipped", "overlap")
    await finish(sql)
    await settled(here, held)
    assert (await states(sql))[0] == ("02 00:01", "succeeded", None)


async def test_a_run_that_takes_too_long_is_cancelled_and_counts_as_timed_out(here, sql) -> None:
    held = await office(here, schedule(cron="0 * * * *", finish_within=minutes(10), pause_on_failure=True))
    await begin_at(sql)
    await tick(here, held, at("02 01:00"))
    assert await sql.fetchval("SELECT next_at FROM schedule") == at("02 01:10")
    await tick(here, held, at("02 01:10"))
    assert await sql.fetchval("SELECT count(*) FROM work") == 0, "no worker had begun it"
    await settled(here, held, at("02 01:10:01"))
    assert await states(sql) == [("02 01:00", "failed", "finish_within")]
    assert await sql.fetchrow("SELECT paused_by, pause_reason, failures FROM schedule") == (
        "postroad",
        "a run failed",
        1,
    )
    assert await sql.fetchval("SELECT count(*) FROM audit WHERE act = 'schedule.pause'") == 1
    await tick(here, held, at("02 02:00"))
    assert len(await states(sql)) == 1


@pytest.mark.sabotage
async def test_without_its_limit_a_run_that_takes_too_long_goes_on(here, sql, monkeypatch) -> None:
    monkeypatch.setattr(decide, "_overdue", lambda *_: [])
    with pytest.raises(AssertionError, match="no worker had begun it"):
        await test_a_run_that_takes_too_long_is_cancelled_and_counts_as_timed_out(here, sql)


async def test_a_cancelled_run_neither_counts_as_failed_nor_pauses(here, sql) -> None:
    held = await office(here, schedule(pause_on_failure=True))
    await begin_at(sql)
    await tick(here, held, at("02 00:01"))
    await finish(sql, "cancelled")
    await settled(here, held)
    assert await sql.fetchrow("SELECT paused_at, failures FROM schedule") == (None, 0)


async def failed_twice(here, sql) -> tuple[object, object, int]:
    """Two runs in a row whose jobs failed for good: what is counted, and since when by whom it is paused."""
    held = await office(here, schedule(pause_on_failure=True))
    await begin_at(sql)
    for minute in (1, 2):
        await tick(here, held, at(f"02 00:0{minute}"))
        await sql.execute("DELETE FROM work")  # As when nothing says how it ended.
        await settled(here, held, at(f"02 00:0{minute}"))
    row = await sql.fetchrow("SELECT paused_by, pause_reason, failures FROM schedule")
    return row["paused_by"], row["pause_reason"], row["failures"]


async def test_the_first_failure_pauses_and_the_next_due_time_does_not_come(here, sql) -> None:
    assert await failed_twice(here, sql) == ("postroad", "a run failed", 1)
    assert [state for _, state, _ in await states(sql)] == ["failed"]


@pytest.mark.sabotage
async def test_if_failures_paused_nothing_it_would_go_on_failing(here, sql, monkeypatch) -> None:
    monkeypatch.setattr(decide, "_FAILED", frozenset())
    assert await failed_twice(here, sql) == (None, None, 2)
    assert [state for _, state, _ in await states(sql)] == ["failed", "failed"]


async def counted(here, sql) -> list[int]:
    """How many runs failed in a row, after each of: failed, failed, cancelled, succeeded."""
    held = await office(here, schedule())
    await begin_at(sql)
    seen = []
    for minute, outcome in enumerate((None, None, "cancelled", "handled"), start=1):
        await tick(here, held, at(f"02 00:0{minute}"))
        if outcome is None:
            await sql.execute("DELETE FROM work")
        else:
            await finish(sql, outcome)
        await settled(here, held)
        seen.append(await sql.fetchval("SELECT failures FROM schedule"))
    return seen


async def test_failures_in_a_row_are_counted_until_a_run_succeeds(here, sql) -> None:
    assert await counted(here, sql) == [1, 2, 2, 0]


@pytest.mark.sabotage
async def test_if_every_end_counted_alike_a_cancelled_run_would_be_a_failure(here, sql, monkeypatch) -> None:
    monkeypatch.setattr(settle, "_counted", lambda before, outcome: before + 1)
    assert await counted(here, sql) == [1, 2, 3, 4]


async def queued_too_long(here, sql) -> list[tuple[str, str, str | None]]:
    """One that queues behind a run until its start deadline has passed."""
    held = await office(here, schedule(cron="0 * * * *", overlap=Overlap.QUEUE_ONE, start_within=minutes(5)))
    await begin_at(sql)
    for moment in ("02 01:00", "02 02:00", "02 02:05:01"):
        await tick(here, held, at(moment))
    await finish(sql)
    await settled(here, held)
    await tick(here, held, at("02 02:06"))
    return await states(sql)


async def test_one_that_queues_beyond_its_start_deadline_is_missed(here, sql) -> None:
    assert await queued_too_long(here, sql) == [
        ("02 01:00", "succeeded", None), ("02 02:00", "missed", "start_within"),
    ]  # fmt: skip


@pytest.mark.sabotage
async def test_without_the_deadline_it_would_start_late(here, sql, monkeypatch) -> None:
    monkeypatch.setattr(decide, "_missed", missed_but_for(Reason.START_WITHIN))
    assert (await queued_too_long(here, sql))[-1] == ("02 02:00", "started", None)
