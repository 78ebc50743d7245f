"""A group of quarantine released by `postroad quarantine retry`, and how well its rate is kept.

Usage: quarantine.py STAGE COUNT, with BENCH_DATABASE_URL set; prints one JSON line {"rate": ...}. Stages: setup; fill
(COUNT deliveries of one fault); release (rows a second without a limit); paced (one over the part by which the rate at
500/s is missed, as the database saw it).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import asyncpg

from postroad.runtime import operations, quarantine_acts
from postroad.sql.migrations import Roles, migrate
from postroad.work.kept import Chosen

RATE = 500.0
GROUP = Chosen(fingerprint="bench")
FILL = """
INSERT INTO postroad.quarantine (kind, queue, key, digest, class, code, fingerprint, error_type, reason, event_type,
    body, content_type, exchange, routing_key)
SELECT 'delivery', 'bench.poisoned', gen_random_uuid(), '', 'quarantine', 'PR507', 'bench', 'KeyError', 'no fit',
    'bench.thing.done', convert_to(repeat('x', 400), 'UTF8'), 'application/json', 'bench.events', 'bench.thing.done.v1'
FROM generate_series(1, $1::int)
"""
TAKEN = "SELECT extract(epoch FROM max(resolved_at) - min(resolved_at))::float8 FROM postroad.quarantine"


async def execute(*statements: str, count: int | None = None) -> float | None:
    connection = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"])
    found: float | None = None
    for statement in statements:
        found = await connection.fetchval(statement, *(() if count is None else (count,)))
    await connection.close()
    return found


async def setup() -> None:
    await migrate(os.environ["BENCH_DATABASE_URL"], schema="postroad", roles=Roles(), days_ahead=2)
    await execute("TRUNCATE postroad.work, postroad.quarantine, postroad.inbox")


async def released(count: int, *, rate: float | None) -> float:
    settings = operations.database_settings({"POSTROAD_DATABASE_URL": os.environ["BENCH_DATABASE_URL"]})
    last = (await quarantine_acts.preview(settings, GROUP)).last
    began = time.perf_counter()
    done = await quarantine_acts.retry(settings, GROUP, last=last, by="bench", rate=rate)
    taken = time.perf_counter() - began
    if done.done != count:
        raise SystemExit(f"{done.done} of {count} rows were released")
    return taken


async def main(stage: str, count: int) -> None:
    match stage:
        case "setup":
            await setup()
        case "fill":
            await execute(FILL, count=count)
        case "release":
            print(json.dumps({"rate": count / await released(count, rate=None)}))
        case "paced":
            await released(count, rate=RATE)
            taken = await execute(TAKEN) or float("inf")
            error = abs((count - RATE / 5) / taken / RATE - 1)  # The clock starts with the first fifth of a second.
            print(json.dumps({"rate": 1 / max(error, 1e-6), "error": error}))
        case _:
            raise SystemExit(f"there is no stage {stage!r}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
