from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.errors import Unavailable, UsageError
from postroad.retry import Backoff
from postroad.signals.catalog import (
    LateWriteRefused,
    LeaseGone,
    QuarantineState,
    TaskFailed,
    WorkClaimed,
    WorkRecovered,
    WorkSettled,
    WorkSlots,
)
from postroad.work import store
from postroad.work.claimer import Claimer
from work.bench import QUICK, SCHEMA, VERDICT, Probe, fill, forever, put, wire
from work.jobbench import until_empty

# --- claims -----------------------------------------------------------------------------------------------------


async def assert_each_row_runs_once(here, there, sql):
    await fill(sql, 200)
    one, two = Probe(here, slots=8), Probe(there, slots=8)
    async with here.running(one), there.running(two):
        await here.heard.wait(WorkClaimed)
        await there.heard.wait(WorkClaimed)
        both = lambda: len(one.rows) + len(two.rows) >= 200 and not one.running | two.running  # noqa: E731
        await asyncio.gather(one.until(lambda: both() or two.done), two.until(lambda: both() or one.done))
        async with asyncio.timeout(15):
            while await sql.fetchval("SELECT count(*) FROM work"):
                pass
    ran = [row.id for row in one.rows + two.rows]
    assert len(ran) == len(set(ran)) == 200
    assert one.rows
    assert two.rows
    assert max(len(at_once) for at_once in one.together) <= 8
    assert await sql.fetchval("SELECT count(*) FROM finished") == 200


async def test_two_processes_never_run_a_row_twice(here, there, sql):
    await assert_each_row_runs_once(here, there, sql)


@pytest.mark.sabotage
async def test_sabotage_a_claim_that_does_not_take_the_row_runs_it_twice(here, there, sql, monkeypatch):
    for name in ("claim", "claim_on"):
        text = store.QUERIES.text(name, SCHEMA).replace("FOR UPDATE SKIP LOCKED", "").replace("'running'", "'ready'")
        monkeypatch.setitem(store.QUERIES._rendered, (name, SCHEMA), text)
    monkeypatch.setattr(store, "finish", lambda *_, **__: store.suspects(SCHEMA, []))
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(5):
            await assert_each_row_runs_once(here, there, sql)


async def test_no_more_rows_are_claimed_than_slots_are_free(here, sql):
    await fill(sql, 20)
    probe = Probe(here, slots=3, act=forever)
    async with here.running(probe):
        await probe.until(lambda: len(probe.running) == 3)
        assert await sql.fetchval("SELECT count(*) FROM work WHERE state = 'running'") == 3
        assert [signal.count for signal in here.heard.of(WorkClaimed)] == [3]


async def goes_on(here, sql, monkeypatch):
    """What runs goes on, and another queue is served, while every claim of one queue fails."""
    claim = store.claim

    def broken(schema, *, queue, **given):
        if queue == "broken":
            raise asyncpg.QueryCanceledError("canceling statement due to user request")
        return claim(schema, queue=queue, **given)

    long, broken_one, other = Probe(here, act=forever), Probe(here, queue="broken"), Probe(here, queue="other")
    await put(here)
    async with here.running(long, broken_one, other):
        await long.until(lambda: long.running)
        monkeypatch.setattr(store, "claim", broken)
        await put(here, queue="broken")
        await here.heard.wait(TaskFailed)
        await put(here, queue="other")
        await other.until(lambda: other.done)
        assert long.running
        assert not long.cancelled
        assert {failed.task for failed in here.heard.of(TaskFailed)} == {"work:broken"}
        monkeypatch.setattr(store, "claim", claim)
        await broken_one.until(lambda: broken_one.done)


async def test_a_claim_that_fails_concerns_its_queue_alone_and_what_runs_goes_on(here, sql, monkeypatch):
    await goes_on(here, sql, monkeypatch)


@pytest.mark.sabotage
async def test_sabotage_were_it_the_services_error_all_that_runs_would_be_cancelled(here, sql, monkeypatch):
    monkeypatch.setattr(Claimer, "_claim", Claimer._claim_next)
    with pytest.raises((AssertionError, TimeoutError, asyncpg.QueryCanceledError)):
        async with asyncio.timeout(5):
            await goes_on(here, sql, monkeypatch)


async def test_an_error_around_the_claims_leaves_what_runs_running(here, sql, monkeypatch):
    probe = Probe(here, act=forever)
    await put(here)
    async with here.running(probe) as claimer:
        await probe.until(lambda: probe.running)

        async def broken():
            raise asyncpg.DeadlockDetectedError("deadlock detected")

        monkeypatch.setattr(claimer, "_enlisted", broken)
        await here.heard.wait(TaskFailed)
        monkeypatch.undo()
        await put(here)
        await probe.until(lambda: len(probe.running) == 2)
        assert not probe.cancelled


async def test_a_wake_shortens_the_wait(here):
    slow = replace(QUICK, busy=seconds(60), idle=seconds(60), sweep=seconds(60))
    probe = Probe(here)
    async with here.running(probe, settings=slow) as claimer:
        await put(here)
        claimer.wake("q")
        claimer.wake("unknown")
        await probe.until(lambda: probe.done)


async def test_a_paused_queue_is_left_alone_until_it_is_resumed(here, sql):
    held, free = Probe(here, queue="held"), Probe(here, queue="free")
    async with here.running(held, free) as claimer:
        claimer.pause("held")
        await put(here, queue="held")
        for _ in range(3):
            await put(here, queue="free")
        await free.until(lambda: len(free.done) == 3)
        assert held.rows == []
        claimer.resume("held")
        await held.until(lambda: held.done)


async def test_rows_that_become_due_run_on_time(here, sql):
    probe = Probe(here)
    async with here.running(probe):
        number = await put(here, run_in=0.4)
        due = await sql.fetchval("SELECT run_at FROM work WHERE id = $1", number)
        await probe.until(lambda: probe.done)
    late = await sql.fetchval("SELECT started_at - $2::timestamptz FROM finished WHERE id = $1", number, due)
    assert seconds(0) <= late < seconds(2)


async def test_a_row_that_appears_behind_the_position_is_found(here, sql):
    probe = Probe(here)
    async with here.running(probe, settings=replace(QUICK, sweep=seconds(60))):
        await put(here)
        await probe.until(lambda: len(probe.done) == 1)
        await fill(sql, 1, shift="-1 hour")
        await probe.until(lambda: len(probe.done) == 2)


# --- failures ---------------------------------------------------------------------------------------------------


async def test_a_handler_that_breaks_puts_its_row_off_and_is_reported(here, sql):
    broken = []

    async def breaks_once(row):
        if not broken:
            broken.append(row.id)
            raise ValueError("secret payload")

    probe = Probe(here, act=breaks_once)
    async with here.running(probe):
        await put(here)
        await probe.until(lambda: probe.done)
        [failed] = await here.heard.wait(TaskFailed)
    assert (failed.task, failed.error_type) == ("work:q", "ValueError")
    assert "secret" not in failed.reason
    assert [row.attempt for row in probe.rows] == [1, 2]
    history = await sql.fetchval("SELECT history::text FROM finished")
    assert "ValueError" in history
    assert "secret" not in history
    assert [signal.result for signal in here.heard.of(WorkSettled)] == ["failed", "ok"]


async def broken_for_ever(here, sql):
    """A row whose handler breaks each time; what quarantine holds within five seconds."""

    async def breaks(_row):
        raise AttributeError("secret payload")

    probe = Probe(here, act=breaks)
    few = replace(QUICK, backoff=Backoff(first=seconds(0.01), most=seconds(0.02), attempts=3))
    async with here.running(probe, settings=few):
        await put(here)
        await until_empty(sql, within=5)
    assert len(probe.rows) == 2  # the first of three was charged before
    return [tuple(row) for row in await sql.fetch("SELECT code, attempt, reason FROM quarantine")]


async def test_a_handler_that_breaks_for_ever_ends_in_quarantine(here, sql):
    [(code, attempt, reason)] = await broken_for_ever(here, sql)
    assert (code, attempt) == ("PR507", 3)
    assert "AttributeError" in reason
    assert "secret" not in reason


@pytest.mark.sabotage
async def test_sabotage_without_its_budget_it_is_tried_in_a_loop(here, sql, monkeypatch):
    monkeypatch.setattr(Backoff, "spent", lambda *_, **__: False)
    with pytest.raises(TimeoutError):
        await broken_for_ever(here, sql)


async def test_a_row_that_its_handler_could_not_settle_comes_back_uncharged(here):
    away = []

    async def away_once(row):
        if not away:
            away.append(row.id)
            raise Unavailable("PR301", "the database cannot be reached")

    probe = Probe(here, act=away_once)
    async with here.running(probe):
        await put(here)
        await probe.until(lambda: probe.done)
    assert [(row.attempt, row.suspect) for row in probe.rows] == [(1, 0), (1, 0)]


async def test_a_claim_whose_answer_was_lost_is_repaired(here, sql):
    probe = Probe(here)
    async with here.running(probe):
        await put(here, queue="other")
        worker = None
        async with asyncio.timeout(10):
            while worker is None:
                worker = await sql.fetchval("SELECT name FROM lease WHERE starts_with(name, 'worker:')")
        await sql.execute(
            "UPDATE work SET queue = 'q', state = 'running', worker = $1, token = nextval('work_token')", worker
        )
        await probe.until(lambda: probe.done)
    assert [(row.attempt, row.suspect) for row in probe.rows] == [(1, 0)]


async def assert_suspects_run_alone(here, sql):
    await fill(sql, 6)
    await sql.execute("UPDATE work SET suspect = 1 WHERE id IN (SELECT id FROM work ORDER BY id LIMIT 3)")

    probe = Probe(here)
    async with here.running(probe):
        await probe.until(lambda: len(probe.done) == 6)
    suspects = {row.id for row in probe.rows if row.suspect}
    assert len(suspects) == 3
    assert all(len(at_once) == 1 for at_once in probe.together if at_once & suspects)


async def test_suspects_run_alone_and_one_after_the_other(here, sql):
    await assert_suspects_run_alone(here, sql)


@pytest.mark.sabotage
async def test_sabotage_claimed_like_the_others_suspects_run_beside_them(here, sql, monkeypatch):
    text = store.QUERIES.text("claim", SCHEMA).replace("AND suspect = 0", "")
    monkeypatch.setitem(store.QUERIES._rendered, ("claim", SCHEMA), text)
    with pytest.raises(AssertionError):
        await assert_suspects_run_alone(here, sql)


# --- leases -----------------------------------------------------------------------------------------------------


async def test_a_dead_workers_row_is_recovered_uncharged_within_lease_and_sweep(here, there, sql):
    """The dead one renews nothing; its process is gone in all but name."""
    number = await put(here)
    worker = await here.lease(ttl=seconds(1.5))
    [row] = await here.run(store.claim(SCHEMA, queue="q", limit=1, worker=worker))
    await here.keeper.stop()
    died = SYSTEM_CLOCK.monotonic()

    probe = Probe(there)
    async with there.running(probe):
        await probe.until(lambda: probe.done)
        assert SYSTEM_CLOCK.monotonic() - died < 1.5 + 0.1 + 2
        [recovered] = await there.heard.wait(WorkRecovered)
    assert (recovered.queue, recovered.count) == ("q", 1)
    assert [(again.id, again.attempt, again.suspect) for again in probe.rows] == [(number, 1, 1)]
    assert probe.rows[0].token > row.token


@pytest.mark.sabotage
async def test_sabotage_without_recovery_the_row_is_stuck(here, there, sql, monkeypatch):
    await put(here)
    worker = await here.lease(ttl=seconds(0.5))
    await here.run(store.claim(SCHEMA, queue="q", limit=1, worker=worker))
    await here.keeper.stop()
    monkeypatch.setattr(store, "recover", lambda schema: store.suspects(schema, []))
    probe = Probe(there)
    with pytest.raises((TimeoutError, AttributeError)):
        async with there.running(probe):
            await probe.until(lambda: probe.done, within=3)


async def test_a_lost_lease_cancels_what_runs_at_once_and_a_new_one_is_had(here, there, sql):
    first = asyncio.Event()

    async def hangs_once(_row):
        if not first.is_set():
            first.set()
            await forever(_row)

    probe = Probe(here, act=hangs_once)
    async with here.running(probe):
        await put(here)
        await probe.until(lambda: probe.running)
        old = await sql.fetchval("SELECT worker FROM work")
        await sql.execute("UPDATE lease SET token = token + 1, holder = NULL")
        await probe.until(lambda: probe.cancelled)
        assert [signal.result for signal in await here.heard.wait(WorkSettled)] == ["lease_lost"]
        assert [gone.name for gone in await here.heard.wait(LeaseGone)] == [old]
        await probe.until(lambda: probe.done)
        names = {row["name"] for row in await sql.fetch("SELECT name FROM lease WHERE holder IS NOT NULL")}
        assert len(names) == 1
        assert old not in names
    assert [(row.attempt, row.suspect) for row in probe.rows] == [(1, 0), (1, 1)]


@pytest.mark.sabotage
async def test_sabotage_deaf_to_the_loss_the_handler_runs_on(here, sql, monkeypatch):
    monkeypatch.setattr(Claimer, "_lost", lambda *_: None)
    probe = Probe(here, act=forever)
    async with here.running(probe):
        await put(here)
        await probe.until(lambda: probe.running)
        await sql.execute("UPDATE lease SET token = token + 1, holder = NULL")
        await here.heard.wait(LeaseGone)
        with pytest.raises(TimeoutError):
            await probe.until(lambda: probe.cancelled, within=1)


async def test_a_slot_whose_handler_ignores_cancellation_is_not_given_out_again(here, sql):
    stubborn, let_go = [], asyncio.Event()

    async def ignores(row):
        if row.suspect:
            return
        stubborn.append(row.id)
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    probe = Probe(here, slots=1, act=ignores)
    async with here.running(probe):
        await put(here)
        await probe.until(lambda: stubborn)
        await sql.execute("UPDATE lease SET token = token + 1, holder = NULL")
        await here.heard.wait(WorkRecovered)
        async with asyncio.timeout(10):
            while await sql.fetchval("SELECT count(*) FROM lease WHERE holder IS NOT NULL") == 0:
                pass
        assert len(probe.rows) == 1
        let_go.set()
        await probe.until(lambda: len(probe.rows) == 2)
        await probe.until(lambda: not probe.running)
    failed = here.heard.of(TaskFailed)
    assert [signal.error_type for signal in failed] == ["AssertionError"]
    assert len(here.heard.of(LateWriteRefused)) == 1


# --- what it tells ----------------------------------------------------------------------------------------------


async def test_gauges_are_told(here):
    probe = Probe(here, slots=3)
    await here.run(store.quarantine(SCHEMA, queue="q", key="k", wire=wire(), verdict=VERDICT))
    async with here.running(probe):
        [slots, *_] = await here.heard.wait(WorkSlots)
        [state, *_] = await here.heard.wait(QuarantineState)
        await here.heard.wait(WorkSlots, 2)
    assert (slots.queue, slots.limit, slots.active) == ("q", 3, 0)
    assert [(queue, count) for queue, count, _ in state.depth] == [("q", 1)]
    assert state.depth[0][2] >= 0


async def test_it_is_ready_once_it_has_a_lease_and_not_while_the_database_is_away(here, sql, monkeypatch):
    probe = Probe(here)
    async with here.running(probe):
        await put(here)
        await probe.until(lambda: probe.done)
        assert here.ready.reason == ""
        away = asyncio.Event()

        def refuse():
            away.set()
            raise Unavailable("PR301", "the database cannot be reached")

        with monkeypatch.context() as patch:
            patch.setattr(here.manager, "connection", refuse)
            async with asyncio.timeout(5):
                await away.wait()
                while here.ready.reason == "":  # noqa: ASYNC110 - a plain value
                    await asyncio.sleep(0)
            assert here.ready.reason == "PR301"
        await put(here)
        await probe.until(lambda: len(probe.done) == 2)


def test_a_handler_under_another_queues_name_is_refused(runtime_url):
    handler = type("Handler", (), {"queue": "a", "slots": 1})()
    manager = type("Manager", (), {"schema": SCHEMA})()

    with pytest.raises(UsageError, match="PR107"):
        Claimer(manager, None, handlers={"b": handler}, signals=None, clock=SYSTEM_CLOCK, owner=None)
