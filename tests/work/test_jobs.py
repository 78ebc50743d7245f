"""Jobs on the table of work: what becomes of a row, by what its function does."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from postroad.clock import SystemClock, seconds
from postroad.errors import Unavailable, UsageError
from postroad.events.cause import current_cause
from postroad.failures import Cancel, Dependency, Drop, Quarantine, Retry, Rules, Snooze
from postroad.retry import Backoff
from postroad.signals.catalog import (
    IntakePaused,
    IntakeResumed,
    JobDelayed,
    JobQuarantined,
    LateWriteRefused,
    LeaseGone,
    TaskFailed,
    WorkClaimed,
    WorkRecovered,
    WorkSettled,
)
from postroad.work import jobs
from postroad.work.job import job
from work.bench import QUICK
from work.jobbench import Number, enqueue, numbers, queues, until_empty, working

if TYPE_CHECKING:
    from postroad.work.run import Run

NO_RULES = Rules()
QUICKLY = Backoff(first=seconds(0.02), most=seconds(0.05), attempts=3)


@pytest.fixture
async def effects(sql):
    await sql.execute("CREATE TABLE made (number int); GRANT ALL ON made TO pr_runtime")
    return sql


async def outcomes(sql):
    rows = await sql.fetch("SELECT outcome, reason, attempt FROM finished ORDER BY id")
    return [tuple(row) for row in rows]


async def quarantined(sql):
    rows = await sql.fetch("SELECT kind, queue, event_type, code, class, attempt, reason FROM quarantine")
    return [dict(row) for row in rows]


# --- what breaks in our own code ---------------------------------------------------------------------------------


async def test_what_breaks_around_a_job_ends_in_quarantine_by_our_own_budget(here, sql, monkeypatch):
    @job("j")
    async def work(_request: Number, _run: Run) -> None:
        raise AssertionError

    def breaks(_self, _row):
        raise AttributeError("secret")

    monkeypatch.setattr(jobs.Runner, "read", breaks)
    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work), settings=replace(QUICK, backoff=QUICKLY)):
        await until_empty(sql)
        [told] = await here.heard.wait(JobQuarantined)
        await here.heard.wait(TaskFailed, 3)
    [kept] = await quarantined(sql)
    assert (kept["code"], kept["attempt"], told.job, told.code) == ("PR507", 3, "j", "PR507")
    assert "secret" not in kept["reason"]


# --- its request and what it is told -----------------------------------------------------------------------------


async def test_a_committed_row_runs_and_is_finished(here, sql):
    told = []

    @job("reports.render")
    async def render(request: Number, run: Run) -> None:
        told.append((request, run, run.own_id))

    headers = '{"correlation": "story", "causation": "event-1"}'
    [number] = await enqueue(sql, "reports.render", '{"number": 7}', key="one", headers=headers)
    async with working(here, queues(here, render)):
        await until_empty(sql)
        await here.heard.wait(WorkSettled)
    [(request, run, _)] = told
    assert request == Number(number=7)
    assert (run.id, run.job, run.queue, run.key, run.attempt) == (number, "reports.render", "reports.render", "one", 1)
    assert (run.correlation_id, run.causation_id) == ("story", "event-1")
    assert run.due.tzinfo is not None
    assert run.created_at.tzinfo is not None
    assert await outcomes(sql) == [("handled", None, 1)]
    assert await sql.fetchval("SELECT event_type FROM finished") == "reports.render"
    [settled] = here.heard.of(WorkSettled)
    assert (settled.kind, settled.job, settled.result) == ("job", "reports.render", "ok")


async def test_the_cause_of_what_a_job_publishes_is_the_job(here, sql):
    causes = []

    @job("j")
    async def work(_request: Number, run: Run) -> None:
        causes.append((current_cause(), run))

    await enqueue(sql, "j", *numbers(1))
    await enqueue(sql, "j", *numbers(1), headers='{"correlation": "story"}')
    async with working(here, queues(here, work)):
        await until_empty(sql)
    (first, one), (second, other) = causes
    assert (first.correlation, first.causation) == (f"job:{one.id}", f"job:{one.id}")
    assert (second.correlation, second.causation) == ("story", f"job:{other.id}")


async def test_a_run_finds_the_apps_live_objects(here, sql):
    found = []

    @job("j")
    async def work(_request: Number, run: Run) -> None:
        found.append(run.use(Backoff))

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work, resources={Backoff: QUICKLY})):
        await until_empty(sql)
    assert found == [QUICKLY]


async def refusal(here, sql, *, name="j", body='{"number": 1}', within=20):
    """A row that no function of ours can run is quarantined at once; the code that says why."""
    ran = []

    @job("j", queue="q")
    async def work(request: Number, _run: Run) -> None:
        ran.append(request)

    await enqueue(sql, name, body, queue="q")
    await enqueue(sql, "j", *numbers(1), queue="q")
    async with working(here, queues(here, work)):
        await until_empty(sql, within=within)
        await here.heard.wait(JobQuarantined)
    assert len(ran) == 1
    [kept] = await quarantined(sql)
    assert (kept["kind"], kept["queue"], kept["class"]) == ("job", "q", "quarantine")
    assert await sql.fetchval("SELECT convert_from(body, 'UTF8') FROM quarantine") == body
    return kept


async def test_a_row_of_an_unknown_job_is_quarantined_with_the_reason(here, sql):
    kept = await refusal(here, sql, name="gone")
    assert kept["code"] == "PR513"
    assert "'gone'" in kept["reason"]
    [signal] = here.heard.of(JobQuarantined)
    assert signal.job == "unknown"


@pytest.mark.parametrize("body", ['{"number": "secret"}', "nonsense", "", '{"other": 1}'])
async def test_a_request_that_no_longer_fits_is_quarantined_and_not_shown(here, sql, body):
    kept = await refusal(here, sql, body=body)
    assert kept["code"] == "PR505"
    assert "secret" not in kept["reason"]
    assert "nonsense" not in kept["reason"]


@pytest.mark.sabotage
@pytest.mark.parametrize("row", [{"name": "gone"}, {"body": "nonsense"}], ids=["unknown", "invalid"])
async def test_sabotage_without_its_refusal_such_a_row_is_tried_in_a_loop(here, sql, monkeypatch, row):
    def unrefused(error, _row):
        raise error

    monkeypatch.setattr(jobs, "refused", unrefused)
    with pytest.raises(TimeoutError):
        await refusal(here, sql, **row, within=2)
    assert await sql.fetchval("SELECT count(*) FROM quarantine") == 0


# --- outcomes -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def raising(here, sql, *errors, rules=NO_RULES, retry=QUICKLY):
    """A job that raises these in its attempts one after the other; the attempts, by number."""
    attempts, left = [], [*errors]

    @job("j", retry=retry, rules=rules)
    async def work(_request: Number, run: Run) -> None:
        attempts.append(run.attempt)
        if left:
            raise left.pop(0)

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work)):
        yield attempts


async def test_a_failure_is_tried_again_within_its_budget(here, sql):
    async with raising(here, sql, OSError("down"), ValueError("bad")) as attempts:
        await until_empty(sql)
    assert attempts == [1, 2, 3]
    assert await outcomes(sql) == [("handled", None, 3)]
    assert [signal.attempt for signal in here.heard.of(JobDelayed)] == [1, 2]
    assert {signal.result for signal in here.heard.of(WorkSettled)} == {"failed", "ok"}


async def test_a_spent_budget_ends_in_quarantine(here, sql):
    async with raising(here, sql, *[ValueError("bad")] * 3) as attempts:
        await until_empty(sql)
    assert attempts == [1, 2, 3]
    [kept] = await quarantined(sql)
    assert (kept["code"], kept["attempt"]) == ("PR507", 3)


async def test_the_budget_of_age_counts_from_when_it_was_due(here, sql):
    retry = Backoff(first=seconds(0.02), most=seconds(0.05), attempts=100, max_age=seconds(60))
    ran = []

    @job("j", retry=retry)
    async def work(_request: Number, run: Run) -> None:
        ran.append(run.attempt)
        raise ValueError

    await enqueue(sql, "j", *numbers(1))
    await sql.execute("UPDATE work SET due = now() - interval '61 s', created_at = now()")
    async with working(here, queues(here, work)):
        await until_empty(sql)
    assert ran == [1]
    assert [kept["code"] for kept in await quarantined(sql)] == ["PR507"]


async def test_snoozing_is_never_charged(here, sql):
    async with raising(here, sql, *[Snooze(seconds(0.02), "not yet")] * 5) as attempts:
        await until_empty(sql)
    assert attempts == [1] * 6
    assert await outcomes(sql) == [("handled", None, 1)]


async def test_a_job_ends_as_it_says(here, sql):
    cases = {Cancel("no longer wanted"): "cancelled", Drop("a test"): "dropped"}
    for error, outcome in cases.items():
        async with raising(here, sql, error):
            await until_empty(sql)
        assert (await outcomes(sql))[-1] == (outcome, error.reason, 1)
    async with raising(here, sql, Quarantine("look at it")):
        await until_empty(sql)
    assert [kept["reason"] for kept in await quarantined(sql)] == ["look at it"]


async def test_retry_after_waits_as_long_as_it_says(here, sql):
    async with raising(here, sql, Retry(after=seconds(3600))):
        await here.heard.wait(JobDelayed)
    waits = await sql.fetchval("SELECT extract(epoch FROM run_at - now())::float8 FROM work WHERE state = 'scheduled'")
    assert 3500 < waits <= 3600


async def test_rules_decide_about_the_authors_own_exceptions(here, sql):
    async with raising(here, sql, ZeroDivisionError(), rules=Rules(drop={ArithmeticError: "arithmetic"})):
        await until_empty(sql)
    assert await outcomes(sql) == [("dropped", "arithmetic", 1)]


class Odd(BaseException):
    """An author's own, which no `except Exception` catches."""


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("secret"), GeneratorExit("secret"), Odd("secret")])
async def test_what_is_no_exception_ends_an_attempt_and_no_worker(here, sql, caplog, error):
    async with raising(here, sql, error) as attempts:
        await until_empty(sql)
    assert attempts == [1, 2]
    assert "secret" not in caplog.text + repr(here.heard.signals)


async def test_a_cancellation_of_its_own_making_is_a_failure_like_another(here, sql):
    async with raising(here, sql, asyncio.CancelledError()) as attempts:
        await until_empty(sql)
    assert attempts == [1, 2]


async def test_a_dependency_that_is_away_pauses_the_queue_and_charges_nothing(here, sql):
    there, attempts = asyncio.Event(), []

    async def check(_use):
        if not there.is_set():
            raise ConnectionError

    gateway = Dependency("gateway", check=check)

    @job("j", retry=QUICKLY, rules=Rules(down={LookupError: gateway}))
    async def work(_request: Number, run: Run) -> None:
        attempts.append(run.attempt)
        if not there.is_set():
            raise LookupError

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work)):
        await here.heard.wait(IntakePaused)
        await enqueue(sql, "j", *numbers(5))
        assert len(attempts) == 1
        there.set()
        await here.heard.wait(IntakeResumed)
        await until_empty(sql)
    assert attempts == [1] * 7
    assert await outcomes(sql) == [("handled", None, 1)] * 6


async def test_a_failure_that_speaks_of_a_dependency_which_answers_is_charged(here, sql):
    async def check(_use):
        return None

    rules = Rules(down={LookupError: Dependency("gateway", check=check)})
    async with raising(here, sql, *[LookupError()] * 3, rules=rules) as attempts:
        await until_empty(sql)
    assert attempts == [1, 2, 3]
    assert [kept["code"] for kept in await quarantined(sql)] == ["PR507"]


# --- transactions -------------------------------------------------------------------------------------------------


async def test_what_a_transaction_writes_stays_and_finish_ends_the_job_with_it(here, effects):
    @job("j", retry=QUICKLY)
    async def work(request: Number, run: Run) -> None:
        async with run.transaction() as tx:
            await tx.execute("INSERT INTO postroad.made VALUES ($1)", request.number)
        async with run.transaction(finish=True) as tx:
            await tx.execute("INSERT INTO postroad.made VALUES ($1)", request.number + 100)

    await enqueue(effects, "j", *numbers(5))
    async with working(here, queues(here, work)):
        await until_empty(effects)
    assert [row["number"] for row in await effects.fetch("SELECT number FROM made ORDER BY 1")] == [
        *range(5), *range(100, 105)
    ]  # fmt: skip
    assert await outcomes(effects) == [("handled", None, 1)] * 5


async def test_after_finish_nothing_can_be_written_and_an_error_changes_nothing(here, effects):
    errors = []

    @job("j", retry=QUICKLY)
    async def work(_request: Number, run: Run) -> None:
        async with run.transaction(finish=True):
            pass
        try:
            async with run.transaction():
                pass
        except UsageError as error:
            errors.append(error.code)
        raise ValueError

    await enqueue(effects, "j", *numbers(1))
    async with working(here, queues(here, work)):
        await until_empty(effects)
        await here.heard.wait(WorkSettled)
    assert errors == ["PR107"]
    assert await outcomes(effects) == [("handled", None, 1)]


async def taken_away(here, sql):
    """A job whose row is given to another claim while its transaction is open; how many effects are left."""
    opened, taken = asyncio.Event(), asyncio.Event()

    @job("j", retry=QUICKLY)
    async def work(request: Number, run: Run) -> None:
        if opened.is_set():
            return
        async with run.transaction(finish=request.number == 1) as tx:
            await tx.execute("INSERT INTO postroad.made VALUES ($1)", request.number)
            opened.set()
            await taken.wait()

    left = []
    for number in range(2):
        opened.clear()
        taken.clear()
        await enqueue(sql, "j", f'{{"number": {number}}}')
        async with working(here, queues(here, work)):
            await opened.wait()
            await sql.execute("UPDATE work SET token = nextval('work_token'), worker = NULL, state = 'waiting'")
            taken.set()
            await here.heard.wait(WorkSettled, number + 1)
        await sql.execute("DELETE FROM work")
        left.append(await sql.fetchval("SELECT count(*) FROM made"))
    return left


async def test_a_late_commit_of_a_run_that_lost_its_row_is_refused_and_counted(here, effects):
    assert await taken_away(here, effects) == [0, 0]
    assert len(here.heard.of(LateWriteRefused)) == 2
    assert {signal.result for signal in here.heard.of(WorkSettled)} == {"lease_lost"}


@pytest.mark.sabotage
async def test_sabotage_without_the_fence_the_late_commit_counts(here, effects, monkeypatch):
    from postroad.work.run import Grip

    def unsealed(self, *, finish):
        del self, finish
        yield from ()

    monkeypatch.setattr(Grip, "sealed", unsealed)
    assert await taken_away(here, effects) == [1, 2]


async def test_progress_is_seen_and_fenced(here, sql):
    seen, told, errors = asyncio.Event(), asyncio.Event(), []

    @job("j")
    async def work(_request: Number, run: Run) -> None:
        await run.progress(0.5, "half")
        await run.progress(0.6, "passed over")
        try:
            await run.progress(1.5)
        except UsageError as error:
            errors.append(error.code)
        seen.set()
        await told.wait()

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work)):
        await seen.wait()
        assert tuple(await sql.fetchrow("SELECT progress, note FROM work")) == (0.5, "half")
        told.set()
        await until_empty(sql)
    assert errors == ["PR107"]


async def test_what_runs_longer_than_its_time_limit_is_cancelled_and_charged(here, sql):
    ended = []

    @job("j", max_runtime=seconds(0.1), retry=QUICKLY)
    async def work(_request: Number, run: Run) -> None:
        if run.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(run.attempt)

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work)):
        await until_empty(sql)
    assert ended == [1]
    assert await outcomes(sql) == [("handled", None, 2)]
    history = await sql.fetchval("SELECT history FROM finished")
    assert '"code": "PR506"' in history


async def test_a_database_that_is_away_for_a_moment_costs_an_ended_job_no_second_run(here, sql, monkeypatch):
    """Its end waits for the database: here the first two tries find none."""
    from postroad.work import completion

    runs, tries, original = [], [], completion.at_once

    async def away(manager, pipeline):
        tries.append(1)
        if len(tries) <= 2:
            pipeline.close()
            raise Unavailable("PR301", "away")
        return await original(manager, pipeline)

    monkeypatch.setattr(completion, "at_once", away)

    @job("j")
    async def work(_request: Number, run: Run) -> None:
        runs.append(run.id)

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work)):
        await until_empty(sql)
    assert len(runs) == 1
    assert len(tries) == 3
    assert await outcomes(sql) == [("handled", None, 1)]


@pytest.mark.parametrize("step", [3600, -3600])
async def test_a_clock_that_steps_by_an_hour_loses_no_lease_and_doubles_no_job(here, there, sql, step):
    """Leases count by a clock that never steps, and due times by the database's."""

    class Stepping(SystemClock):
        by = 0

        def now(self):
            return super().now() + seconds(self.by)

    clock, told, runs = Stepping(), asyncio.Event(), []

    @job("j")
    async def work(request: Number, run: Run) -> None:
        runs.append(request.number)
        await told.wait()
        async with run.transaction():
            pass

    await enqueue(sql, "j", *numbers(4))
    await enqueue(sql, "j", '{"number": 9}', shift="10 minutes")
    async with working(here, queues(here, work, clock=clock), clock=clock):
        await here.heard.wait(WorkClaimed)
        clock.by = step
        async with working(there, queues(there, work)):
            await asyncio.sleep(2 * QUICK.lease.total_seconds())  # nothing to wait for: nothing may happen
            told.set()
            async with asyncio.timeout(10):
                while await sql.fetchval("SELECT count(*) FROM work WHERE state <> 'scheduled'"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    assert sorted(runs) == [0, 1, 2, 3]
    assert here.heard.of(LeaseGone) == here.heard.of(WorkRecovered) == there.heard.of(WorkRecovered) == []
