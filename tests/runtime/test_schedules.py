"""Schedules of an App: declared as a whole with its jobs, planned and run by one process."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from postroad.clock import seconds
from postroad.errors import UsageError
from postroad.runtime.app import App
from postroad.runtime.settings import Role, Settings
from postroad.schedules.schedule import Schedule
from postroad.signals import Signals
from postroad.signals.catalog import OccurrenceEnded, SchedulesDeclared
from postroad.work.job import job
from runtime.processes import Running
from support import Recorder


class Day(BaseModel):
    day: str


@job("reports.render")
async def render(request: Day, run: Any) -> None:
    """Do nothing."""


@job("reports.other")
async def other(request: Day, run: Any) -> None:
    """Do nothing, under another name."""


def often(name: str = "reports.often", function: Any = render) -> Schedule:
    return Schedule(name, job=function, every=seconds(1), args=lambda due: Day(day=f"{due:%Y-%m-%d}"))


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"schedules": [often(), often()]}, "PR104", "schedule 'reports.often' is declared twice; rename one"),
        ({"schedules": [often(function=other)]}, "PR101",
         "schedule 'reports.often' starts job 'reports.other', which is not among the App's jobs; add it to jobs="),
        ({"schedules": [render]}, "PR101", "schedules holds function, not a Schedule"),
        ({"schedules": often()}, "PR101", "schedules is Schedule, not a list of Schedule values"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_when_it_is_declared(options, code, says) -> None:
    with pytest.raises(UsageError) as raised:
        App("reports", jobs=[render], **options)
    assert says in str(raised.value)
    assert raised.value.code == code


async def run(url: str, *, roles: set[Role], schedules: list[Schedule], until: type) -> Any:
    """Run an App until it has told of something; that."""
    signals = Signals()
    recorder = Recorder(signals)
    settings = Settings(database_url=url, direct_url=url, roles=frozenset(roles), grace=seconds(5))
    app = App("reports", jobs=[render], schedules=schedules, sinks=[signals.emit], settings=settings)
    async with app:
        await app.ready()
        return await recorder.wait(until)


async def test_one_process_plans_and_runs_them(runtime_url, database) -> None:
    ended = await run(
        runtime_url, roles={Role.WORK, Role.SCHEDULE}, schedules=[often()], until=OccurrenceEnded
    )  # fmt: skip
    assert (ended.schedule, ended.result) == ("reports.often", "ok")
    connection = await asyncpg.connect(database)
    assert await connection.fetchval("SELECT count(*) FROM postroad.occurrence WHERE state = 'succeeded'") >= 1
    await connection.close()


async def test_the_last_schedule_that_is_taken_out_is_retired(runtime_url, database) -> None:
    await run(runtime_url, roles={Role.SCHEDULE}, schedules=[often()], until=SchedulesDeclared)
    told = await run(runtime_url, roles={Role.SCHEDULE}, schedules=[], until=SchedulesDeclared)
    assert (told.declared, told.retired) == (0, 1)


@pytest.mark.heavy
async def test_whoever_is_killed_each_second_starts_once_and_none_is_left_out(runtime_url, database) -> None:
    given = {
        "POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_LOG_LEVEL": "debug", "POSTROAD_SCHEDULER_LEASE_SECONDS": "1",
        "POSTROAD_WORKER_LEASE_SECONDS": "1",
    }  # fmt: skip
    for _ in range(3):
        with Running("clockwork:app", "--only", "schedule,work", **given) as running:
            running.wait_for("occurrence_started")
            running.stop(signal.SIGKILL)
    with Running("clockwork:app", "--only", "schedule,work", **given) as running:
        running.wait_for("occurrence_started")
        running.wait_for("occurrence_ended", result="ok")
        assert running.stop() < 20
    connection = await asyncpg.connect(database)
    dues = [row["due"] for row in await connection.fetch("SELECT due FROM postroad.occurrence ORDER BY due")]
    begun = await connection.fetchval("SELECT count(*) FROM postroad.occurrence WHERE work_id IS NOT NULL")
    works = await connection.fetchval(
        "SELECT count(*) FROM (SELECT id, key FROM postroad.work UNION SELECT id, key FROM postroad.finished) AS rows"
    )
    await connection.close()
    assert dues == [dues[0] + seconds(number) for number in range(len(dues))]
    assert begun == works == len(dues)


@pytest.mark.heavy
async def test_a_leader_that_was_stopped_and_goes_on_writes_nothing_and_nothing_is_doubled(
    runtime_url, database
) -> None:  # fmt: skip
    given = {
        "POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_LOG_LEVEL": "debug", "POSTROAD_SCHEDULER_LEASE_SECONDS": "1",
    }  # fmt: skip
    connection = await asyncpg.connect(database)
    with Running("clockwork:app", "--only", "schedule", **given) as stale:
        await leaders(connection, 1)
        os.kill(stale.process.pid, signal.SIGSTOP)
        with Running("clockwork:app", "--only", "schedule", **given) as successor:
            await leaders(connection, 2)
            os.kill(stale.process.pid, signal.SIGCONT)
            await asyncio.to_thread(stale.wait_for, "lease_gone", kind="scheduler")
            assert successor.stop() < 20
        await leaders(connection, 3)
        assert stale.stop() < 20
    rows = await connection.fetch("SELECT due, token FROM postroad.occurrence ORDER BY due")
    await connection.close()
    dues, tokens = [row["due"] for row in rows], [row["token"] for row in rows]
    assert dues == [dues[0] + seconds(number) for number in range(len(dues))]
    assert tokens == sorted(tokens), "an older leader wrote nothing after a newer one"


async def leaders(connection: asyncpg.Connection[asyncpg.Record], count: int) -> None:
    """Wait until so many leaders have planned, one after the other."""
    async with asyncio.timeout(40):
        query = "SELECT count(DISTINCT token) FROM postroad.occurrence"
        while await connection.fetchval(query) < count:  # noqa: ASYNC110 - another process tells nothing
            await asyncio.sleep(0.05)
