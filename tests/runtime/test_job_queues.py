"""Jobs in queues of other jobs of their App: run under that queue's limits, on whatever they need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from pydantic import BaseModel

from postroad.asyncpg import within
from postroad.clock import seconds
from postroad.consume import Delivery, consumer
from postroad.events import Subscription
from postroad.runtime import wires_work
from postroad.runtime.app import App
from postroad.runtime.settings import Role, Settings
from postroad.signals.catalog import WorkSettled
from postroad.work.job import job
from postroad.work.jobs import JobQueue
from support import until

if TYPE_CHECKING:
    from postroad.signals import Signal
    from postroad.work.run import BlockingRun, Run


class Page(BaseModel):
    """What is to be printed."""

    number: int


class Press:
    """Two jobs, one of them on threads, each in a queue of its own; what ran where, and how many at once."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str, int]] = []
        self.inside = self.most = 0
        self.settled: list[WorkSettled] = []
        self._lock = threading.Lock()

        @job("press.check", queue="narrow", concurrency=1)
        async def check(request: Page, run: Run) -> None:
            self._enter()
            async with run.transaction(finish=True) as tx:
                await tx.execute("SELECT pg_sleep(0.01)")
                self._leave(run, request)

        @job("press.print", queue="wide", concurrency=4)
        def print_(request: Page, run: BlockingRun) -> None:
            self._enter()
            with run.transaction(finish=True) as tx:
                tx.execute("SELECT pg_sleep(0.01)")
                self._leave(run, request)

        @consumer(Subscription("x.y.happened", version=1, model=Page), name="taken")
        async def reads(event: Page, delivery: Delivery[Any]) -> None: ...

        self.check, self.print, self.reads = check, print_, reads

    def hear(self, signal: Signal) -> None:
        if isinstance(signal, WorkSettled):
            self.settled.append(signal)

    @asynccontextmanager
    async def running(self, url: str) -> AsyncIterator[None]:
        roles = frozenset({Role.WORK})
        settings = Settings(database_url=url, direct_url=url, roles=roles, grace=seconds(5))
        jobs = [self.check, self.print]
        async with App("press", consumers=[self.reads], jobs=jobs, settings=settings, sinks=[self.hear]):
            yield

    def _enter(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def _leave(self, run: Run | BlockingRun, request: Page) -> None:
        with self._lock:
            self.inside -= 1
            self.ran.append((run.job, run.queue, request.number))


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path = postroad")
    yield connection
    await connection.close()


async def put(url: str, function: Any, numbers: Iterable[int], *, queue: str) -> None:
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        for number in numbers:
            await within(connection).enqueue(function, Page(number=number), queue=queue)
    await connection.close()


async def test_any_queue_of_an_app_runs_any_of_its_jobs_under_its_own_limits(runtime_url, author_url) -> None:
    press = Press()
    async with press.running(runtime_url):
        await put(author_url, press.print, range(8), queue="narrow")
        await until(lambda: len(press.ran) == 8)
        assert press.most == 1
        await put(author_url, press.check, range(8), queue="wide")
        await until(lambda: len(press.ran) == 16)
    assert sorted(press.ran) == [
        *[("press.check", "wide", number) for number in range(8)],
        *[("press.print", "narrow", number) for number in range(8)],
    ]
    assert {(one.queue, one.job, one.result) for one in press.settled} == {
        ("narrow", "press.print", "ok"), ("wide", "press.check", "ok"),
    }  # fmt: skip


async def refused(press: Press, runtime_url: str, author_url: str, sql: asyncpg.Connection, queue: str) -> str:
    """Of a job in a queue whose handler does not run it, the reason for which it is kept."""
    async with press.running(runtime_url):
        await put(author_url, press.check, [1], queue=queue)
        async with asyncio.timeout(20):
            while not (rows := await sql.fetch("SELECT kind, code, reason FROM quarantine")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert press.ran == []
    assert await sql.fetchval("SELECT count(*) FROM work") == 0
    assert rows[0]["kind"] == "job"
    return f"{rows[0]['code']} {rows[0]['reason']}"


@pytest.mark.sabotage
async def test_without_the_jobs_of_other_queues_they_are_kept_unrun(runtime_url, author_url, sql, monkeypatch) -> None:
    def without(*given: Any, guests: Any, **options: Any) -> JobQueue:
        return JobQueue(*given, **options)

    monkeypatch.setattr(wires_work, "JobQueue", without)
    assert "PR513" in await refused(Press(), runtime_url, author_url, sql, "wide")


async def test_a_job_among_a_consumers_retries_is_kept_with_the_reason(runtime_url, author_url, sql) -> None:
    reason = await refused(Press(), runtime_url, author_url, sql, "taken")
    assert reason.startswith("PR513 a job waits in the queue of consumer 'taken', which runs none")
