"""What the tests of jobs share: queues of jobs on a process's furniture, and rows as an enqueue leaves them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from postroad.clock import SYSTEM_CLOCK
from postroad.sql.transactions import AsyncpgTransactions
from postroad.work.claimer import Claimer
from postroad.work.completion import Completions
from postroad.work.job import job_of
from postroad.work.jobs import JobQueue
from work.bench import QUICK, Process

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.work.settings import WorkSettings


class Number(BaseModel):
    """The request of most jobs here."""

    number: int


def queues(
    here: Process, *functions: Callable[..., Any], clock: Clock = SYSTEM_CLOCK, **options: Any
) -> list[JobQueue]:  # fmt: skip
    """The queues of these jobs, as an App would make them."""
    completions = Completions(here.manager, owner=here.owner, signals=here.signals, clock=clock)
    given = {"resources": {}, "transactions": lambda _: AsyncpgTransactions(here.manager), **options}
    jobs = sorted((job_of(function) for function in functions), key=lambda one: one.queue)
    return [
        JobQueue(
            name, [*members], manager=here.manager, completions=completions, signals=here.signals, clock=clock,
            chance=random.random, **given,
        )
        for name, members in groupby(jobs, key=lambda one: one.queue)
    ]  # fmt: skip


@asynccontextmanager
async def working(
    here: Process, made: Sequence[JobQueue], *, settings: WorkSettings = QUICK, clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[Claimer]:
    """A claimer that runs these queues."""
    claimer, stop = claimer_of(here, made, settings=settings, clock=clock), asyncio.Event()
    task = asyncio.create_task(claimer.run(stop, here.ready))
    try:
        yield claimer
    finally:
        stop.set()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            raise error


def claimer_of(
    here: Process, made: Sequence[JobQueue], *, settings: WorkSettings = QUICK, clock: Clock = SYSTEM_CLOCK
) -> Claimer:
    return Claimer(
        here.manager, here.keeper, handlers={}, jobs=made, signals=here.signals, clock=clock, owner=here.owner,
        settings=settings,
    )  # fmt: skip


async def enqueue(
    sql: Any, name: str, *bodies: str, queue: str | None = None, key: str | None = None, priority: int = 0,
    headers: str = "{}", shift: str = "0 s",
) -> list[int]:  # fmt: skip
    """Rows of one job, as an author's enqueue leaves them; their ids. A time in the future leaves them scheduled."""
    rows = await sql.fetch(
        "INSERT INTO work (id, queue, kind, key, state, priority, run_at, due, event_type, body, content_type, headers)"
        " SELECT nextval('work_id'), $1, 'job', $2,"
        " CASE WHEN $3::text::interval > '0' THEN 'scheduled' ELSE 'ready' END, $4,"
        " now() + $3::text::interval, now() + $3::text::interval, $5,"
        " convert_to(body, 'UTF8'), 'application/json',"
        " $6::text::jsonb FROM unnest($7::text[]) body RETURNING id",
        queue or name, key, shift, priority, name, headers, list(bodies),
    )  # fmt: skip
    return [row["id"] for row in rows]


def numbers(count: int) -> list[str]:
    """So many requests."""
    return [f'{{"number": {number}}}' for number in range(count)]


async def until_empty(sql: Any, *, within: float = 20) -> None:
    """Wait until no row of work is left."""
    async with asyncio.timeout(within):
        while await sql.fetchval("SELECT count(*) FROM work"):  # noqa: ASYNC110 - a database tells nothing by itself
            await asyncio.sleep(0.01)
