"""What operators and time limits do to jobs that wait and jobs that run."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.failures import Cancel
from postroad.retry import Backoff
from postroad.signals.catalog import LateWriteRefused, QueuePaused, QueueResumed, TaskFailed, WorkSettled
from postroad.sql.threaded import PsycopgTransactions
from postroad.work import attempt, jobs, running, store
from postroad.work.job import job
from work.bench import QUICK, SCHEMA
from work.jobbench import Number, claimer_of, enqueue, numbers, queues, until_empty, working

if TYPE_CHECKING:
    from postroad.work.run import BlockingRun, Run

QUICKLY = Backoff(first=seconds(0.02), most=seconds(0.05), attempts=3)
CANCEL = "UPDATE work SET cancel_at = now(), cancelled_by = 'ops', cancel_reason = 'not needed'"
ENDED = "SELECT outcome, reason FROM finished ORDER BY id"


# --- pauses -------------------------------------------------------------------------------------------------------


async def test_a_paused_queue_is_not_claimed_from_until_it_is_resumed(here, sql):
    ran = []

    @job("held")
    async def held(request: Number, _run: Run) -> None:
        ran.append(request.number)

    @job("free")
    async def free(request: Number, _run: Run) -> None:
        ran.append(request.number + 100)

    await sql.execute("INSERT INTO queue (name, paused_at) VALUES ('held', now())")
    await enqueue(sql, "held", *numbers(2))
    async with working(here, queues(here, held, free)):
        await enqueue(sql, "free", *numbers(2))
        await here.heard.wait(WorkSettled, 2)
        assert sorted(ran) == [100, 101]
        assert [signal.queue for signal in here.heard.of(QueuePaused)] == ["held"]
        await sql.execute("UPDATE queue SET paused_at = NULL")
        await until_empty(sql)
        await sql.execute("UPDATE queue SET paused_at = now()")
        await here.heard.wait(QueuePaused, 2)
        await enqueue(sql, "held", *numbers(1))
        await enqueue(sql, "free", *numbers(1))
        await here.heard.wait(WorkSettled, 5)
    assert sorted(ran) == [0, 1, 100, 100, 101]
    assert len(here.heard.of(QueueResumed)) == 1


def deaf(_schema, *, workers, queues):
    """Nobody hears what operators have said."""
    del workers, queues
    yield from ()
    return running.Asked(cancelled={}, paused=frozenset())


@pytest.mark.sabotage
async def test_sabotage_unheard_a_pause_holds_nothing(here, sql, monkeypatch):
    monkeypatch.setattr("postroad.work.chores.asked", deaf)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(5):
            await test_a_paused_queue_is_not_claimed_from_until_it_is_resumed(here, sql)


# --- cancellations ------------------------------------------------------------------------------------------------


async def test_a_cancelled_row_that_waits_is_finished_as_cancelled_and_never_run(here, sql):
    ran = []

    @job("j")
    async def work(request: Number, _run: Run) -> None:
        ran.append(request.number)

    await enqueue(sql, "j", *numbers(3))
    await sql.execute(CANCEL)
    async with working(here, queues(here, work)):
        await until_empty(sql)
    assert ran == []
    assert [tuple(row) for row in await sql.fetch(ENDED)] == [("cancelled", "not needed")] * 3


@pytest.mark.sabotage
async def test_sabotage_unread_at_the_claim_a_cancelled_row_is_run(here, sql, monkeypatch):
    for name in ("claim", "claim_on"):
        text, read = store.QUERIES.text(name, SCHEMA), "cancel_at IS NOT NULL AS cancelled"
        assert read in text
        monkeypatch.setitem(store.QUERIES._rendered, (name, SCHEMA), text.replace(read, "FALSE AS cancelled"))
    with pytest.raises(AssertionError):
        await test_a_cancelled_row_that_waits_is_finished_as_cancelled_and_never_run(here, sql)


async def cancelled_while_it_runs(here, sql, act):
    began = asyncio.Event()

    @job("j", retry=QUICKLY)
    async def work(_request: Number, run: Run) -> None:
        began.set()
        await act(run)

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work)):
        await began.wait()
        await sql.execute(CANCEL)
        await until_empty(sql)
        await here.heard.wait(WorkSettled)
    return [tuple(row) for row in await sql.fetch(ENDED)]


async def looking(run):
    while not run.cancelled:  # noqa: ASYNC110 - a job that looks now and then
        await asyncio.sleep(0.01)
    run.check_cancel()


@pytest.mark.sabotage
async def test_sabotage_unheard_a_running_job_is_never_cancelled(here, sql, monkeypatch):
    monkeypatch.setattr("postroad.work.chores.asked", deaf)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await cancelled_while_it_runs(here, sql, looking)


async def test_a_running_job_hears_that_it_is_cancelled_and_ends_in_good_order(here, sql):
    seen = []

    async def noting(run):
        try:
            await looking(run)
        except Cancel as error:
            seen.append(error.reason)
            raise

    assert await cancelled_while_it_runs(here, sql, noting) == [("cancelled", "not needed")]
    assert seen == ["not needed"]
    assert [signal.result for signal in here.heard.of(WorkSettled)] == ["cancelled"]


async def test_a_job_that_does_not_look_is_stopped_after_a_grace(here, sql, monkeypatch):
    monkeypatch.setattr(jobs, "GRACE", seconds(0.1))
    ended = []

    async def waiting(_run):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    assert await cancelled_while_it_runs(here, sql, waiting) == [("cancelled", "not needed")]
    assert ended == [True]


async def test_a_cancelled_job_that_comes_to_its_end_is_handled(here, sql, monkeypatch):
    monkeypatch.setattr(jobs, "GRACE", seconds(0.1))

    async def stubborn(run):
        while not run.cancelled:  # noqa: ASYNC110 - a job that looks now and then
            await asyncio.sleep(0.01)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    assert await cancelled_while_it_runs(here, sql, stubborn) == [("handled", None)]


async def test_hearing_of_cancellations_is_one_statement_for_all(here, sql):
    """However many jobs run."""
    told = asyncio.Event()

    @job("j", concurrency=20)
    async def work(_request: Number, _run: Run) -> None:
        await told.wait()

    heard = []

    def counted(schema, **asked):
        heard.append(asked)
        return running.asked(schema, **asked)

    await enqueue(sql, "j", *numbers(20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("postroad.work.chores.asked", counted)
        async with working(here, queues(here, work)):
            for _ in range(3):
                before = len(heard)
                while len(heard) == before:  # noqa: ASYNC110 - a list tells nothing
                    await asyncio.sleep(0.01)
            took = await sql.fetchval("SELECT count(*) FROM work WHERE state = 'running'")
            told.set()
    assert took == 20
    assert [len(each["workers"]) for each in heard[-2:]] == [1, 1]


# --- what does not end --------------------------------------------------------------------------------------------


async def stuck(here, sql, monkeypatch):
    """A job ignores its time limit; its row is tried again in its slot, and then it goes on and writes."""
    monkeypatch.setattr(attempt, "LET_GO", seconds(0.1))
    go_on, ended, wrote = asyncio.Event(), asyncio.Event(), []
    await sql.execute("CREATE TABLE made (number int); GRANT ALL ON made TO pr_runtime")

    @job("j", concurrency=1, max_runtime=seconds(1), retry=QUICKLY)
    async def work(_request: Number, run: Run) -> None:
        while run.attempt == 1 and not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        try:
            async with run.transaction() as tx:
                await tx.execute("INSERT INTO postroad.made VALUES ($1)", run.attempt)
            wrote.append(run.attempt)
        finally:
            if run.attempt == 1:
                ended.set()

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work)):
        try:
            await until_empty(sql, within=5)
        finally:
            go_on.set()
        await ended.wait()
        await here.heard.wait(WorkSettled, 2)
    return [row["number"] for row in await sql.fetch("SELECT number FROM made ORDER BY 1")]


async def test_a_job_that_ignores_cancellation_is_reported_stuck_its_slot_reopened_its_late_result_fenced(
    here, sql, monkeypatch
):
    assert await stuck(here, sql, monkeypatch) == [2]
    assert [tuple(row) for row in await sql.fetch("SELECT outcome, attempt FROM finished")] == [("handled", 2)]
    [signal] = [signal for signal in here.heard.of(TaskFailed) if signal.error_type == "Stuck"]
    assert signal.task == "job:j"
    assert len(here.heard.of(LateWriteRefused)) == 1
    assert {signal.result for signal in here.heard.of(WorkSettled)} == {"ok", "lease_lost"}


@pytest.mark.sabotage
async def test_sabotage_without_giving_up_a_stuck_job_keeps_its_slot_for_ever(here, sql, monkeypatch):
    monkeypatch.setattr(jobs.JobQueue, "overdue", lambda _: [])
    with pytest.raises(TimeoutError):
        await stuck(here, sql, monkeypatch)


# --- threads ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def threads(here, runtime_url, sql):
    await sql.execute("CREATE TABLE made (number int); GRANT ALL ON made TO pr_runtime")
    yield PsycopgTransactions(runtime_url, here.owner, size=2, name="j")
    await here.owner.join(within=seconds(2))


async def test_a_def_job_has_transactions_of_its_own_on_a_thread(here, sql, threads):
    seen = []

    @job("j", concurrency=1)
    def work(request: Number, run: BlockingRun) -> None:
        seen.append((threading.current_thread() is threading.main_thread(), run.correlation_id))
        run.progress(0.5)
        with run.transaction() as tx:
            tx.execute("INSERT INTO postroad.made VALUES (%s)", (request.number,))
        with suppress(ZeroDivisionError), run.transaction() as tx:
            tx.execute("INSERT INTO postroad.made VALUES (%s)", (request.number + 50,))
            raise ZeroDivisionError
        with run.transaction(finish=True) as tx:
            tx.execute("INSERT INTO postroad.made VALUES (%s)", (request.number + 100,))

    await enqueue(sql, "j", *numbers(3))
    async with working(here, queues(here, work, transactions=lambda _: threads)):
        await until_empty(sql)
    assert [on_main for on_main, _ in seen] == [False] * 3
    assert [row["number"] for row in await sql.fetch("SELECT number FROM made ORDER BY 1")] == [
        0, 1, 2, 100, 101, 102
    ]  # fmt: skip


async def test_a_thread_that_does_not_end_is_left_and_what_it_still_commits_changes_nothing(here, sql, threads):
    """It is cut off at its time limit; the next attempt has another thread."""
    go_on, errors = threading.Event(), []

    @job("j", concurrency=1, max_runtime=seconds(1.5), retry=QUICKLY)
    def work(_request: Number, run: BlockingRun) -> None:
        if run.attempt == 1:
            go_on.wait(20)
        try:
            with run.transaction() as tx:
                tx.execute("INSERT INTO postroad.made VALUES (%s)", (run.attempt,))
        except Exception as error:
            errors.append(type(error).__name__)
            raise

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work, transactions=lambda _: threads)):
        await until_empty(sql)
        go_on.set()
        async with asyncio.timeout(10):
            while threads.stuck or not errors:  # noqa: ASYNC110 - a thread tells
                await asyncio.sleep(0.01)
    assert [row["number"] for row in await sql.fetch("SELECT number FROM made")] == [2]
    assert len(errors) == 1
    assert [signal.error_type for signal in here.heard.of(TaskFailed)] == ["Stuck"]


# --- ahead of quick jobs ------------------------------------------------------------------------------------------


async def test_quick_jobs_are_claimed_ahead_and_what_waits_too_long_goes_back(here, there, sql):
    """One process has claimed ahead when its jobs become slow; another runs what waited."""
    slow, told, ran = asyncio.Event(), asyncio.Event(), []

    @job("j", concurrency=2)
    async def here_work(request: Number, _run: Run) -> None:
        if slow.is_set():
            await told.wait()
        ran.append(("here", request.number))
        if len(ran) == 100:
            slow.set()

    @job("j", concurrency=2)
    async def there_work(request: Number, _run: Run) -> None:
        ran.append(("there", request.number))

    await enqueue(sql, "j", *numbers(400))
    async with working(here, queues(here, here_work)):
        await slow.wait()
        began = time.monotonic()
        async with working(there, queues(there, there_work)):
            async with asyncio.timeout(10):
                while len(ran) < 398:  # noqa: ASYNC110 - a list tells nothing
                    await asyncio.sleep(0.01)
            assert time.monotonic() - began < 8
            told.set()
            await until_empty(sql)
    assert sorted(number for _, number in ran) == [*range(400)]
    assert await sql.fetchval("SELECT max(attempt) FROM finished") == 1


async def test_slow_jobs_are_claimed_one_for_each_slot(here, sql):
    told = asyncio.Event()

    @job("j", concurrency=3)
    async def work(_request: Number, _run: Run) -> None:
        await told.wait()

    await enqueue(sql, "j", *numbers(50))
    [made] = queues(here, work)
    for _ in range(30):
        made.took(0.06)
    async with working(here, [made]):
        async with asyncio.timeout(10):
            while made.active < 3:  # noqa: ASYNC110 - a number tells nothing
                await asyncio.sleep(0.01)
        assert await sql.fetchval("SELECT count(*) FROM work WHERE state = 'running'") == 3
        told.set()


async def statements_of_a_thousand(here, sql, monkeypatch):
    """Empty jobs; what was sent to claim and to end them, by name, and how many seconds all took."""
    statements = []

    async def counting(manager, pipeline):
        statements.append(pipeline.__name__)
        return await original(manager, pipeline)

    from postroad.work import chores, claimer, completion, sweeper

    original = sweeper.at_once
    for module in (claimer, completion, chores, jobs, sweeper):
        monkeypatch.setattr(module, "at_once", counting)

    @job("j", concurrency=8)
    async def work(_request: Number, _run: Run) -> None:
        pass

    await enqueue(sql, "j", *numbers(1000))
    [made] = queues(here, work)
    for _ in range(30):
        made.took(0.0001)
    began = SYSTEM_CLOCK.monotonic()
    async with working(here, [made], settings=QUICK):
        await until_empty(sql)
        taken = SYSTEM_CLOCK.monotonic() - began
    return {name: statements.count(name) for name in set(statements)}, taken


def most_statements(taken):
    """With nothing to claim it looks again, now and then."""
    return 40 + 30 * taken


async def test_a_thousand_empty_jobs_cost_few_statements(here, sql, monkeypatch):
    counted, taken = await statements_of_a_thousand(here, sql, monkeypatch)
    assert counted["claim"] + counted["finish_many"] <= most_statements(taken), counted
    assert set(counted) <= {"claim", "finish_many", "asked", "make_due", "suspects", "quarantine_state", "held_by"}


@pytest.mark.sabotage
async def test_sabotage_ended_one_by_one_a_thousand_jobs_cost_a_statement_each(here, sql, monkeypatch):
    monkeypatch.setattr("postroad.work.completion._MOST", 1)
    counted, taken = await statements_of_a_thousand(here, sql, monkeypatch)
    assert counted["claim"] + counted["finish_many"] > most_statements(taken)


# --- suspects -----------------------------------------------------------------------------------------------------


async def test_a_suspect_that_takes_long_keeps_its_queue_waiting_for_a_moment_only(here, sql):
    told, ran = asyncio.Event(), []

    @job("j", concurrency=4)
    async def work(request: Number, _run: Run) -> None:
        ran.append(request.number)
        if request.number == 0:
            await told.wait()

    [first, *_] = await enqueue(sql, "j", *numbers(5))
    await sql.execute("UPDATE work SET suspect = 1 WHERE id = $1", first)
    async with working(here, queues(here, work), settings=replace(QUICK, isolation=seconds(0.3))):
        async with asyncio.timeout(10):
            while len(ran) < 5:  # noqa: ASYNC110 - a list tells nothing
                await asyncio.sleep(0.01)
        told.set()
        await until_empty(sql)
    assert sorted(ran) == [0, 1, 2, 3, 4]


async def stopped_with_rows_ahead(here, sql):
    """Told to stop while quick jobs have become slow: how many rows were given back while the slow ones still run."""
    slow, told, ran = asyncio.Event(), asyncio.Event(), []

    @job("j", concurrency=2)
    async def work(request: Number, _run: Run) -> None:
        if slow.is_set():
            await told.wait()
        ran.append(request.number)
        if len(ran) == 100:
            slow.set()

    await enqueue(sql, "j", *numbers(400))
    claimer, stop = claimer_of(here, queues(here, work)), asyncio.Event()
    task = asyncio.create_task(claimer.run(stop, here.ready))
    await slow.wait()
    stop.set()
    try:
        async with asyncio.timeout(5):
            while await sql.fetchval("SELECT count(*) FROM work WHERE state = 'running'") > 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        told.set()
        await task
    return ran, await sql.fetch("SELECT state, attempt, suspect, token FROM work GROUP BY 1, 2, 3, 4")


async def test_told_to_stop_what_waits_for_a_slot_goes_back_at_once_and_uncharged(here, sql):
    ran, left = await stopped_with_rows_ahead(here, sql)
    assert len(ran) < 400
    assert [tuple(row) for row in left] == [("ready", 0, 0, None)]
    assert here.heard.of(TaskFailed) == []


@pytest.mark.sabotage
async def test_sabotage_kept_to_the_end_what_waits_is_begun_after_the_word(here, sql, monkeypatch):
    monkeypatch.setattr("postroad.work.chores.Chores.close", lambda _: None)
    with pytest.raises(TimeoutError):
        await stopped_with_rows_ahead(here, sql)
