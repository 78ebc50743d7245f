"""Postroad's jobs as they are run: rows of `work`, an empty async function, one process, timed by its own signals.

Usage: jobs.py STAGE COUNT, with BENCH_DATABASE_URL set; prints one JSON line {"rate": per second, "cpu": seconds of
processor time for each job}. Stages: setup; fill and million (rows that wait); jobs (work COUNT of them off);
jobs-held (beside an open transaction that has written).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import asyncpg
from pydantic import BaseModel

from postroad.runtime.app import App
from postroad.signals.catalog import WorkClaimed, WorkSettled
from postroad.sql.migrations import Roles, migrate
from postroad.work.job import job
from postroad.work.run import Run  # noqa: TC001 - so that it reads like an author's

if TYPE_CHECKING:
    from postroad.signals import Signal

FILL = """
INSERT INTO postroad.work (id, queue, kind, state, run_at, due, event_type, body, content_type)
SELECT nextval('postroad.work_id'), 'bench.noop', 'job', 'ready', now(), now(), 'bench.noop',
    convert_to(jsonb_build_object('data', $2::text)::text, 'UTF8'), 'application/json'
FROM generate_series(1, $1::int)
"""


class Request(BaseModel):
    """What the job is asked."""

    data: str


@job("bench.noop", concurrency=100)
async def noop(request: Request, run: Run) -> None:
    """Do nothing."""


class Stopwatch:
    """From the first claim until so many are settled: then the process is told to stop."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done = 0
        self._began = self._cost = 0.0
        self._lock = threading.Lock()

    def __call__(self, heard: Signal) -> None:
        if isinstance(heard, WorkClaimed) and not self._began:
            self._began, self._cost = time.perf_counter(), time.process_time()
        elif isinstance(heard, WorkSettled) and heard.result == "ok":
            with self._lock:
                self._done += heard.count
                over = self._done - heard.count < self._count <= self._done
            if over:
                rate = self._done / (time.perf_counter() - self._began)
                cost = (time.process_time() - self._cost) / self._done
                print(json.dumps({"rate": rate, "cpu": cost}), flush=True)
                os.kill(os.getpid(), signal.SIGTERM)


def work(count: int) -> None:
    App("bench-jobs", jobs=[noop], sinks=[Stopwatch(count)]).run(only=("work",))


def work_beside_a_writer(count: int) -> None:
    """The same, while a transaction that has written stays open, as a long report or a forgotten session does."""
    written, done = threading.Event(), threading.Event()

    async def hold() -> None:
        connection = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"])
        async with connection.transaction():
            await connection.execute("CREATE TABLE held (id int)")
            written.set()
            await asyncio.to_thread(done.wait)
            await connection.execute("DROP TABLE held")
        await connection.close()

    holder = threading.Thread(target=lambda: asyncio.run(hold()))
    holder.start()
    written.wait()
    try:
        work(count)
    finally:
        done.set()
        holder.join()


async def setup() -> None:
    url = os.environ["BENCH_DATABASE_URL"]
    await migrate(url, schema="postroad", roles=Roles(), days_ahead=2)
    connection = await asyncpg.connect(url)
    await connection.execute("TRUNCATE postroad.work, postroad.finished")
    await connection.close()


async def fill(count: int) -> None:
    connection = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"])
    await connection.execute(FILL, count, "b" * 380)
    await connection.execute("VACUUM ANALYZE postroad.work")
    await connection.execute("CHECKPOINT")
    await connection.close()


if __name__ == "__main__":
    stage, amount = sys.argv[1], int(sys.argv[2])
    match stage:
        case "setup":
            asyncio.run(setup())
        case "fill":
            asyncio.run(fill(amount))
        case "million":
            asyncio.run(fill(1_000_000))
        case "jobs-held":
            work_beside_a_writer(amount)
        case _:
            work(amount)
