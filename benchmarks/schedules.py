"""Ten thousand hourly schedules, spread over the minutes, as an App plans them; a second process runs their jobs.

Usage: schedules.py STAGE SECONDS, with BENCH_DATABASE_URL set; prints one JSON line {"rate": one over the figure}.
Stages: setup; planning (core-seconds that planning takes for each minute); start-p99 (seconds from when a run was to
start until a worker began it, 99 of 100). Both look at SECONDS of planning, after every schedule was looked at once.
burst has all of them due in one second: start-p99, and besides the seconds until the last was planned and had begun.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import asyncpg
from pydantic import BaseModel

from postroad.runtime.app import App
from postroad.schedules.policy import Overlap
from postroad.schedules.schedule import Schedule
from postroad.sql.migrations import Roles, migrate
from postroad.work.job import job
from postroad.work.run import Run  # noqa: TC001 - so that it reads like an author's

if TYPE_CHECKING:
    from datetime import datetime

COUNT = int(os.environ.get("POSTROAD_BENCH_SCHEDULES", "10000"))
MINUTE = os.environ.get("POSTROAD_BENCH_MINUTE")
"""The minute at which all are due; otherwise they are spread over the hour."""


class Hour(BaseModel):
    """What the job is asked."""

    at: str


@job("bench.hourly", concurrency=100)
async def hourly(request: Hour, run: Run) -> None:
    """Do nothing."""


def args(due: datetime) -> Hour:
    return Hour(at=due.isoformat())


def schedules() -> list[Schedule]:
    return [
        Schedule(
            f"bench.{number}", job=hourly, cron=f"{MINUTE or number % 60} * * * *", args=args, overlap=Overlap.ALLOW
        )
        for number in range(COUNT)
    ]


def app(*, planned: bool) -> App:
    return App("bench-schedules", jobs=[hourly], schedules=schedules() if planned else [])


async def asked(query: str) -> float | None:
    connection = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"])
    found: float | None = await connection.fetchval(query)
    await connection.close()
    return found


LOOKED_AT = "SELECT count(*) FROM postroad.schedule WHERE next_at > 'epoch'"
P99 = """
SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM finished.started_at - one.start_at))::float8
FROM postroad.occurrence AS one
JOIN postroad.finished ON finished.id = one.work_id
"""


PLANNED = """
SELECT extract(epoch FROM max(started_at) - min(due))::float8 FROM postroad.occurrence HAVING count(*) = $COUNT
"""
LAST = """
SELECT extract(epoch FROM max(finished.started_at) - min(one.due))::float8
FROM postroad.occurrence AS one
JOIN postroad.finished ON finished.id = one.work_id
HAVING count(*) = $COUNT
"""


def watch(seconds: int, figures: dict[str, float]) -> None:
    """From a thread of the planning process: once all is looked at, measure for so long, and end it."""
    while asyncio.run(asked(LOOKED_AT)) != COUNT:
        time.sleep(0.5)  # a poll: the database tells nothing of its rows
    began, spent = time.monotonic(), time.process_time()
    time.sleep(seconds)  # so long it is measured
    figures["planning"] = (time.process_time() - spent) / (time.monotonic() - began) * 60
    os.kill(os.getpid(), signal.SIGTERM)


def measure(stage: str, seconds: int) -> None:
    figures: dict[str, float] = {}
    if stage == "burst" and MINUTE is None:
        soon = asyncio.run(asked("SELECT extract(minute FROM now() + interval '200 s')::float8")) or 0.0
        os.execve(  # Anew, so that every process declares the same.
            sys.executable, [sys.executable, __file__, stage, str(seconds)],
            {**os.environ, "POSTROAD_BENCH_MINUTE": str(int(soon))},
        )  # fmt: skip
    environment = {**os.environ, "POSTROAD_DATABASE_URL": os.environ["BENCH_DATABASE_URL"]}
    with subprocess.Popen([sys.executable, __file__, "work", "0"], env=environment) as worker:
        watcher = threading.Thread(target=watch, args=(seconds, figures))
        watcher.start()
        try:
            app(planned=True).run(only=("schedule",))
        finally:
            watcher.join()
            worker.terminate()
    figures["start-p99"] = asyncio.run(asked(P99)) or float("inf")
    if stage == "burst":
        for name, query in (("planned", PLANNED), ("burst", LAST)):
            figures[name] = asyncio.run(asked(query.replace("$COUNT", str(COUNT)))) or float("inf")
    print(json.dumps({"rate": 1 / figures[stage], **figures}), flush=True)


async def setup() -> None:
    url = os.environ["BENCH_DATABASE_URL"]
    await migrate(url, schema="postroad", roles=Roles(), days_ahead=2)
    connection = await asyncpg.connect(url)
    await connection.execute(
        "TRUNCATE postroad.work, postroad.finished, postroad.schedule, postroad.occurrence, postroad.schedule_release"
    )
    await connection.close()


if __name__ == "__main__":
    chosen, amount = sys.argv[1], int(sys.argv[2])
    match chosen:
        case "setup":
            asyncio.run(setup())
        case "work":
            app(planned=False).run(only=("work",))
        case _:
            measure(chosen, amount)
