"""Jobs in an App: declared as a whole, billed, and run by the role of work alone, without a broker."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest
from pydantic import BaseModel, Field

from postroad.asyncpg import within
from postroad.clock import seconds
from postroad.consume import Delivery, consumer
from postroad.errors import UsageError
from postroad.events import Producer, Subscription
from postroad.runtime.app import App
from postroad.runtime.doctor.subject import Subject
from postroad.runtime.settings import Role, Settings
from postroad.runtime.wires import Wires
from postroad.signals.catalog import WorkSettled
from postroad.work.job import job

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from postroad.signals import Signal
    from postroad.work.run import BlockingRun, Run


class Report(BaseModel):
    """What is asked for."""

    number: int


def asks(name: str, **options: Any) -> Any:
    @job(name, **options)
    async def work(request: Report, run: Run) -> None: ...

    return work


def blocks(name: str, **options: Any) -> Any:
    @job(name, **options)
    def work(request: Report, run: BlockingRun) -> None: ...

    return work


@consumer(Subscription("x.y.happened", version=1, model=Report), name="taken")
async def reads(event: Report, delivery: Delivery[Any]) -> None: ...


@pytest.mark.parametrize(
    ("jobs", "code", "words"),
    [
        ([asks("a"), asks("a")], "PR104", ["job 'a' is declared twice"]),
        ([print], "PR101", ["print is not a job; decorate it with @job(name)"]),
        (3, "PR101", ["jobs is int, not a list of functions decorated with @job"]),
        ([asks("a", queue="taken")], "PR101", ["'a' waits in queue 'taken'", "choose another"]),
        (
            [asks("a", queue="q"), asks("b", queue="q", concurrency=2)], "PR101",
            ["jobs 'a' and 'b' share queue 'q', but not its concurrency and fleet"],
        ),
        ([asks("a", queue="q"), asks("b", queue="q", fleet=2)], "PR101", ["share queue 'q'"]),
    ],
)  # fmt: skip
def test_jobs_that_cannot_be_run_together_are_refused(jobs: Any, code: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        App("a", consumers=[reads], jobs=jobs)
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)


def test_jobs_of_one_queue_that_agree_are_fine_and_billed_once() -> None:
    app = App("a", jobs=[asks("a", queue="q"), blocks("b", queue="q"), asks("c", concurrency=3), blocks("d")])
    pooled = Wires(app.declarations, {}).connections
    works, dispatches = (Settings(roles=frozenset({role})) for role in (Role.WORK, Role.DISPATCH))
    assert pooled(works) - pooled(dispatches) == 8 + 3
    bill = Subject(app.declarations, pooled).bill(works)
    assert bill["together"] == pooled(works) + 8 + 8 + 1


async def test_an_app_with_the_role_of_work_runs_its_jobs_and_needs_no_broker(runtime_url: str, database: str) -> None:
    producer, ended = Producer(f"p{uuid4().hex[:8]}"), asyncio.Event()
    told: list[tuple[int, str]] = []

    class Rendered(BaseModel):
        """A report was rendered."""

        number: int = Field(description="Which")

    producer.event("report.rendered", version=1)(Rendered)

    @job("render")
    async def render(request: Report, run: Run) -> None:
        told.append((request.number, run.use(str)))
        async with run.transaction(finish=True) as tx:
            await within(tx).publish(Rendered(number=request.number))

    @job("render.blocking")
    def render_blocking(request: Report, run: BlockingRun) -> None:
        with run.transaction(finish=True) as tx:
            tx.execute("SELECT 1")
        told.append((request.number, run.use(str)))

    async def lifespan() -> AsyncGenerator[str, None]:
        yield "a live object"

    settled: list[Signal] = []

    def hear(signal: Signal) -> None:
        if isinstance(signal, WorkSettled):
            settled.extend([signal] * signal.count)
            if len(settled) == 2:
                ended.set()

    app = App(
        "reports", publishes=[producer], jobs=[render, render_blocking], lifespan=lifespan, sinks=[hear],
        settings=Settings(
            database_url=runtime_url, direct_url=runtime_url, roles=frozenset({Role.WORK}), grace=seconds(5)
        ),
    )  # fmt: skip
    connection = await asyncpg.connect(database)
    async with app:
        for name, number in (("render", 7), ("render.blocking", 8)):
            await connection.execute(
                "INSERT INTO postroad.work (id, queue, kind, state, event_type, body, content_type, headers)"
                " VALUES (nextval('postroad.work_id'), $1, 'job', 'ready', $1, $2, 'application/json', $3)",
                name, json.dumps({"number": number}).encode(), '{"correlation": "story"}',
            )  # fmt: skip
        await asyncio.wait_for(ended.wait(), 20)
    assert sorted(told) == [(7, "a live object"), (8, "a live object")]
    row = await connection.fetchrow("SELECT correlation, causation FROM postroad.event")
    assert row is not None
    ran = await connection.fetchval("SELECT id FROM postroad.finished WHERE event_type = 'render'")
    assert tuple(row) == ("story", f"job:{ran}")
    await connection.close()
