"""What a user would pick instead for jobs, as each project's own benchmark runs it: an empty async handler.

Usage: jobs_peers.py STAGE COUNT with STAGE pgqueuer or procrastinate, and BENCH_DATABASE_URL set; enqueues COUNT jobs,
then times one process that works them off. Prints one JSON line {"rate": per second}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop

DATA = "b" * 380
BATCH, AT_ONCE = 100, 100


async def own_database(name: str) -> str:
    """The URL of a fresh database, so that a peer's tables are its own."""
    url = os.environ["BENCH_DATABASE_URL"]
    connection = await asyncpg.connect(url)
    await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return url.rpartition("/")[0] + "/" + name


async def pgqueuer(count: int) -> float:
    """PGQueuer on asyncpg, in batches of 100, until its queue is empty."""
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgPoolDriver
    from pgqueuer.models import Job  # noqa: TC002 - PGQueuer reads it at run time
    from pgqueuer.types import QueueExecutionMode

    async with asyncpg.create_pool(await own_database("pgqueuer"), min_size=2, max_size=8) as pool:
        worker = PgQueuer(AsyncpgPoolDriver(pool))
        queries = worker.qm.queries
        await queries.install()
        body = json.dumps({"data": DATA}).encode()
        await queries.enqueue(["noop"] * count, [body] * count, [0] * count)
        done = 0

        @worker.entrypoint("noop")
        async def noop(job: Job) -> None:
            nonlocal done
            json.loads(job.payload or b"{}")
            done += 1

        began = time.perf_counter()
        await worker.run(timedelta(seconds=1), batch_size=BATCH, mode=QueueExecutionMode.drain)
        assert done == count
        return count / (time.perf_counter() - began)


async def procrastinate(count: int) -> float:
    """Procrastinate on psycopg's pool, `AT_ONCE` jobs at once."""
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=await own_database("procrastinate"), max_size=8))
    done = 0

    @app.task(name="noop")
    async def noop(data: str) -> None:
        nonlocal done
        done += len(data) > 0

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await noop.batch_defer_async(*({"data": DATA} for _ in range(count)))
        began = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=AT_ONCE, install_signal_handlers=False)
        assert done == count
        return count / (time.perf_counter() - began)


async def main() -> None:
    stage, count = sys.argv[1], int(sys.argv[2])
    rate = await {"pgqueuer": pgqueuer, "procrastinate": procrastinate}[stage](count)
    sys.stdout.write(json.dumps({"rate": rate}) + "\n")


if __name__ == "__main__":
    uvloop.run(main())
