"""Occurrences that meet a run: judged by `work`, whatever became of its worker."""

from __future__ import annotations

import pytest

from postroad.clock import minutes, seconds
from postroad.leases import interrupt
from postroad.schedules import store as table
from postroad.schedules.policy import Overlap
from postroad.work import store
from schedules.planbench import (
    SCHEMA,
    at,
    begin_at,
    finish,
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


async def test_a_cancelled_run_neither_counts_as_failed_nor_pauses(here, sql) -> None:
    held = await office(here, schedule(pause_on_failure=True))
    await begin_at(sql)
    await tick(here, held, at("02 00:01"))
    await finish(sql, "cancelled")
    await settled(here, held)
    assert await sql.fetchrow("SELECT paused_at, failures FROM schedule") == (None, 0)
