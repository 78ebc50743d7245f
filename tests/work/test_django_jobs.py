"""Jobs whose transactions are Django's atomic blocks: fenced, ended with the run, and cut when they are given up."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError

from django_site import Number as Row
from django_site import database, databases
from postroad.clock import seconds
from postroad.django import Atomic, Within, blocks
from postroad.errors import UsageError
from postroad.retry import Backoff
from postroad.signals.catalog import LateWriteRefused, WorkSettled
from postroad.sql import threads
from postroad.work.job import job
from postroad.work.run import BlockingRun  # noqa: TC001 - a job's declaration reads its annotations
from support import until
from work.jobbench import Number, enqueue, numbers, queues, until_empty, working

QUICKLY = Backoff(first=seconds(0.05), most=seconds(0.05), attempts=5)
ON = Atomic()


@pytest.fixture
async def effects(here, sql, runtime_url, monkeypatch):
    monkeypatch.setattr(threads, "LET_GO", seconds(0.2))
    await sql.execute("CREATE TABLE public.number (number int PRIMARY KEY); GRANT ALL ON public.number TO pr_runtime")
    with databases(default=database(runtime_url, CONN_MAX_AGE=None)):
        yield sql


def opened(here, url):
    return lambda one: one.on.transactions(url, here.owner, size=4, name=one.name)


async def written(sql):
    return [row["number"] for row in await sql.fetch("SELECT number FROM public.number ORDER BY 1")]


async def test_a_runs_transactions_are_blocks_and_end_with_it(here, effects, runtime_url):
    @job("j", on=ON)
    def work(request: Number, run: BlockingRun[Within]) -> None:
        with run.transaction() as block:
            Row(number=request.number).save(force_insert=True)
            block.enqueue(later, Number(number=1))
        with suppress(ZeroDivisionError), run.transaction():
            Row(number=request.number + 50).save(force_insert=True)
            raise ZeroDivisionError
        Row(number=request.number + 200).save(force_insert=True)  # In autocommit, as anywhere.
        with run.transaction(finish=True):
            Row(number=request.number + 100).save(force_insert=True)

    await enqueue(effects, "j", *numbers(2))
    async with working(here, queues(here, work, transactions=opened(here, runtime_url))):
        await here.heard.wait(WorkSettled, count=2)
    assert await written(effects) == [0, 1, 100, 101, 200, 201]
    assert await effects.fetchval("SELECT count(*) FROM work WHERE queue = 'later'") == 2


@job("later", on=ON)
def later(request: Number, run: BlockingRun[Within]) -> None: ...


def stealing(effects):
    """A job whose row is another's by the time that it writes."""

    @job("j", on=ON, retry=QUICKLY)
    def work(request: Number, run: BlockingRun[Within]) -> None:
        if run.attempt == 1:
            with connection.cursor() as cursor:
                cursor.execute("UPDATE postroad.work SET token = token + 1000000 WHERE id = %s", [run.id])
        with run.transaction():
            Row(number=request.number).save(force_insert=True)

    return work


async def test_what_a_run_writes_after_its_row_is_anothers_changes_nothing(here, effects, runtime_url):
    await enqueue(effects, "j", *numbers(1))
    async with working(here, queues(here, stealing(effects), transactions=opened(here, runtime_url))):
        await here.heard.wait(LateWriteRefused)
    assert await written(effects) == []


async def test_ends_of_the_block_are_refused(here, effects, runtime_url):
    seen = []

    @job("j", on=ON, retry=QUICKLY)
    def work(request: Number, run: BlockingRun[Within]) -> None:
        try:
            with run.transaction():
                Row(number=run.attempt).save(force_insert=True)
                if run.attempt == 1:
                    with connection.cursor() as cursor:
                        cursor.execute("COMMIT")
                if run.attempt == 2:
                    transaction.commit()
        except (UsageError, DatabaseError, transaction.TransactionManagementError) as error:
            seen.append(getattr(error, "code", type(error).__name__))
            raise

    await enqueue(effects, "j", *numbers(1))
    async with working(here, queues(here, work, transactions=opened(here, runtime_url))):
        await until_empty(effects)
    assert (seen, await written(effects)) == (["PR111", "TransactionManagementError"], [3])


async def overdue(here, sql, url):
    go, back = threading.Event(), []

    @job("j", on=ON, max_runtime=seconds(1), retry=Backoff(first=seconds(60), most=seconds(60)))
    def work(request: Number, run: BlockingRun[Within]) -> None:
        try:
            with run.transaction():
                Row(number=1).save(force_insert=True)
                go.wait()
        except Exception as error:  # noqa: BLE001 - what comes out is looked at
            back.append(type(error).__name__)
        else:
            back.append("committed")

    await enqueue(sql, "j", *numbers(1))
    async with working(here, queues(here, work, transactions=opened(here, url))):
        await here.heard.wait(WorkSettled)
        go.set()
        await until(lambda: back)
    return back


async def test_at_the_time_limit_a_block_is_cut(here, effects, runtime_url):
    assert await overdue(here, effects, runtime_url) == ["OperationalError"]
    assert await written(effects) == []


@pytest.mark.sabotage
async def test_without_the_cut_only_the_fence_would_stop_a_late_block(here, effects, runtime_url, monkeypatch):
    monkeypatch.setattr(blocks._BlockSeat, "cut", lambda _: None)
    assert await overdue(here, effects, runtime_url) == ["LeaseLost"]
    assert await written(effects) == []
