"""Tests of leases and locks that a run holds: alone for the block, fenced in its transactions, lost with a stop."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import nullcontext

import pytest

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.errors import LeaseHeld, LeaseLost
from postroad.leases import Leases
from postroad.retry import Backoff
from postroad.runtime.lease_acts import fence
from postroad.runtime.operations import database_settings
from postroad.signals.catalog import JobDelayed, LateWriteRefused
from postroad.sql.threaded import PsycopgTransactions
from postroad.work import ending
from postroad.work.job import job
from postroad.work.run import BlockingRun, Grip, Run
from work.jobbench import Number, enqueue, numbers, queues, until_empty, working

QUICKLY = Backoff(first=seconds(0.05), most=seconds(0.05), attempts=5)


def leases_of(process) -> Leases:
    return Leases(
        process.keeper, process.manager, clock=SYSTEM_CLOCK, signals=process.signals, chance=random.random,
        shortest=seconds(0.25),
    )  # fmt: skip


@pytest.fixture
async def effects(sql):
    await sql.execute("CREATE TABLE made (number integer, token bigint)")
    await sql.execute("GRANT ALL ON made TO pr_runtime")
    return sql


async def test_runs_that_want_one_name_take_turns(here, there, effects):
    inside, most = 0, 0

    @job("exclusive", retry=QUICKLY)
    async def work(request: Number, run: Run) -> None:
        nonlocal inside, most
        async with run.lease("reports", wait=seconds(20)) as lease:
            inside += 1
            most = max(most, inside)
            async with run.transaction(finish=True) as tx:
                await tx.execute("INSERT INTO postroad.made VALUES ($1, $2)", request.number, lease.token)
            inside -= 1

    await enqueue(effects, "exclusive", *numbers(12))
    async with (
        working(here, queues(here, work, leases=leases_of(here))),
        working(there, queues(there, work, leases=leases_of(there))),
    ):
        await until_empty(effects)
    rows = await effects.fetch("SELECT number, token FROM made ORDER BY token")
    assert sorted(row["number"] for row in rows) == list(range(12))
    assert len({row["token"] for row in rows}) == 12
    assert most == 1


async def test_a_name_that_is_held_fails_the_attempt_and_says_by_whom(here, sql):
    async with leases_of(here).hold("reports"):
        said: list[str] = []

        @job("j", retry=QUICKLY)
        async def work(_: Number, run: Run) -> None:
            try:
                async with run.lease("reports"):
                    raise AssertionError
            except LeaseHeld as error:
                said.append(str(error))

        await enqueue(sql, "j", *numbers(1))
        async with working(here, queues(here, work, leases=leases_of(here))):
            await until_empty(sql)
    assert "held by this process" in said[0]


async def tried_while_held(here, sql):
    """A job that meets a held name more often than it may fail; what quarantine has when the name is free."""
    tries: list[int] = []

    @job("j", retry=QUICKLY)
    async def work(_: Number, run: Run) -> None:
        tries.append(run.attempt)
        async with run.lease("reports"):
            tries.clear()

    async with working(here, queues(here, work, leases=leases_of(here))):
        async with leases_of(here).hold("reports"):
            await enqueue(sql, "j", *numbers(1))
            told = await here.heard.wait(JobDelayed, 5)
            assert set(tries) == {1}
        await until_empty(sql)
    assert "held by this process" in told[0].reason
    return tries, await sql.fetchval("SELECT count(*) FROM quarantine")


async def test_a_name_that_is_held_for_long_spends_no_attempt(here, sql):
    assert await tried_while_held(here, sql) == ([], 0)


@pytest.mark.sabotage
async def test_sabotage_as_a_failure_it_spends_the_budget(here, sql, monkeypatch):
    monkeypatch.setattr(ending, "LeaseHeld", LeaseLost)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(5):
            await tried_while_held(here, sql)


async def fenced_within_a_run(here, effects, runtime_url):
    """A run holds a lease, an operator fences it, and the run's transaction goes on regardless; what was written."""
    settings = database_settings({"POSTROAD_DATABASE_URL": runtime_url})
    tried: list[Run] = []

    @job("j", retry=QUICKLY)
    async def work(request: Number, run: Run) -> None:
        if tried:
            return
        tried.append(run)
        async with run.lease("reports"), run.transaction() as tx:
            await tx.execute("INSERT INTO postroad.made VALUES ($1, 0)", request.number)
            await fence(settings, "reports", by="ada", reason="test")

    await enqueue(effects, "j", *numbers(1))
    async with working(here, queues(here, work, leases=leases_of(here))):
        await until_empty(effects)
    return [row["number"] for row in await effects.fetch("SELECT number FROM made")]


async def test_a_fenced_lease_refuses_the_runs_commit(here, effects, runtime_url):
    assert await fenced_within_a_run(here, effects, runtime_url) == []
    assert here.heard.of(LateWriteRefused)


@pytest.mark.sabotage
async def test_sabotage_without_the_leases_fence_the_commit_counts(here, effects, runtime_url, monkeypatch):
    monkeypatch.setattr(Grip, "under", lambda *_: nullcontext())
    assert await fenced_within_a_run(here, effects, runtime_url) == [0]


async def test_a_lost_lease_stops_the_run_at_once_and_charges_nothing(here, sql, runtime_url):
    settings = database_settings({"POSTROAD_DATABASE_URL": runtime_url})
    ends: list[type[BaseException]] = []

    @job("j", retry=QUICKLY)
    async def work(_: Number, run: Run) -> None:
        if ends:
            return
        try:
            async with run.lease("reports", ttl=seconds(1)):
                await fence(settings, "reports", by="ada", reason="test")
                await asyncio.Event().wait()
        except LeaseLost as error:
            ends.append(type(error))
            raise

    [row] = await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work, leases=leases_of(here))):
        await until_empty(sql)
    assert ends == [LeaseLost]
    assert await sql.fetchval("SELECT attempt FROM finished WHERE id = $1", row) == 1


async def test_a_def_job_holds_leases_on_its_thread(here, effects, runtime_url):
    settings = database_settings({"POSTROAD_DATABASE_URL": runtime_url})
    told, ends = threading.Event(), []
    threads = PsycopgTransactions(runtime_url, here.owner, size=2, name="j")

    @job("j", retry=QUICKLY)
    def work(request: Number, run: BlockingRun) -> None:
        if ends:
            return
        try:
            with run.lease("reports", ttl=seconds(1)) as lease, run.transaction() as tx:
                tx.execute("INSERT INTO postroad.made VALUES (%s, %s)", (request.number, lease.token))
                told.set()
                tx.execute("SELECT pg_sleep(30)")
        except LeaseLost as error:
            ends.append(error.code)
            raise

    await enqueue(effects, "j", *numbers(1))
    async with working(here, queues(here, work, leases=leases_of(here), transactions=lambda _: threads)):
        assert await asyncio.to_thread(told.wait, 20)
        await fence(settings, "reports", by="ada", reason="test")
        await until_empty(effects)
    assert ends == ["PR401"]
    assert await effects.fetchval("SELECT count(*) FROM made") == 0


async def test_a_run_locks_for_a_short_while(here, sql):
    locked: list[int] = []

    @job("j", retry=QUICKLY)
    async def work(_: Number, run: Run) -> None:
        async with run.lock("reports"), run.transaction(finish=True) as tx:
            locked.append(await tx.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work)):
        await until_empty(sql)
    assert locked >= [1]
