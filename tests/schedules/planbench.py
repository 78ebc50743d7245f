"""What the tests of the scheduler share: schedules of empty jobs, offices under real leases, and a clock to move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
from pydantic import BaseModel

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.schedules import decide, planner, settle
from postroad.schedules.planner import Office
from postroad.schedules.registry import Release, register
from postroad.schedules.schedule import Schedule
from postroad.schedules.service import Scheduler
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.statement import Statement
from postroad.work.job import job

if TYPE_CHECKING:
    from postroad.schedules.policy import Occurrence, Plan, Reason
    from work.bench import Process

SCHEMA = "postroad"
APP = "reports"
START = datetime(2026, 3, 2, tzinfo=UTC)
"""Where the clock of these tests begins, long before the machine's."""


class Asked(BaseModel):
    """The request of the job: what it is due for."""

    day: str


RAN: list[tuple[datetime, str]] = []
"""What the job was run with: the due time that it was told, and its request."""


@job("reports.render", concurrency=4)
async def render(request: Asked, run: Any) -> None:
    """Note the run."""
    RAN.append((run.due, request.day))


def daily(due: datetime) -> Asked:
    return Asked(day=f"{due:%Y-%m-%d}")


def schedule(name: str = "reports.daily", **options: Any) -> Schedule:
    """A schedule of the job, each minute unless told otherwise."""
    given = {"job": render, "args": daily, **options}
    if not given.keys() & {"cron", "every", "at"}:
        given["cron"] = "* * * * *"
    return Schedule(name, **given)


async def office(
    here: Process, *schedules: Schedule, name: str = "scheduler:reports", app: str = APP, tz: str = "2025b",
    ttl: timedelta = seconds(30),
) -> Office:  # fmt: skip
    """Register these schedules, and take the lease."""
    release = Release.of(app, schedules, tz_version=tz)
    found = await here.run(register(SCHEMA, release))
    lease = await here.keeper.acquire(name, ttl=ttl, on_lost=lambda _: None)
    assert lease is not None
    return Office(app=app, release=found.number, lease=lease, tz_version=tz, known=found.known)


async def begin_at(sql: Any, at: datetime = START, name: str | None = None) -> None:
    """Have schedules begin at `at`, as if they had been declared then."""
    await sql.execute("UPDATE schedule SET cursor = $1, next_at = $1 WHERE $2::text IS NULL OR name = $2", at, name)


async def tick(here: Process, office: Office, now: datetime, **options: Any) -> planner.Ticked:
    """One tick at a moment of the tests' clock."""
    return await here.run(planner.tick(SCHEMA, office, now=now, **options))


async def settled(here: Process, office: Office, now: datetime | None = None) -> settle.Settled:
    return await here.run(settle.settle(SCHEMA, office, now=now))


async def occurrences(sql: Any, name: str = "reports.daily") -> list[Any]:
    return await sql.fetch(
        "SELECT one.* FROM occurrence one JOIN schedule ON schedule.id = one.schedule WHERE name = $1"
        " ORDER BY due, kind",
        name,
    )


async def states(sql: Any, name: str = "reports.daily") -> list[tuple[str, str, str | None]]:
    """Each occurrence in the order of its time: the time of day (UTC), its state, and the reason."""
    return [(f"{row['due']:%d %H:%M}", row["state"], row["reason"]) for row in await occurrences(sql, name)]


async def finish(sql: Any, outcome: str = "handled") -> int:
    """End every row of work, as a worker does; how many."""
    rows = await sql.fetch(
        "WITH gone AS (DELETE FROM work RETURNING *) INSERT INTO finished"
        " (id, queue, kind, key, outcome, attempt, created_at, started_at)"
        " SELECT id, queue, kind, key, $1, 1, created_at, clock_timestamp() FROM gone RETURNING id",
        outcome,
    )
    return len(rows)


def at(text: str) -> datetime:
    """A moment of the first days: ``02 00:17`` or ``02 00:17:30``."""
    day, _, time = text.partition(" ")
    return datetime.fromisoformat(f"2026-03-{day}T{time}").replace(tzinfo=UTC)


@asynccontextmanager
async def scheduling(
    here: Process, schedules: Sequence[Schedule], *, app: str = APP, ttl: timedelta = seconds(1),
    sweep: timedelta = seconds(0.1), wake: Callable[[str], None] = lambda _: None, tz: str = "2025b",
    dies: bool = False,
) -> AsyncIterator[Scheduler]:  # fmt: skip
    """The service, as an App runs it."""
    made = Scheduler(
        app, schedules, manager=here.manager, keeper=here.keeper, signals=here.signals, clock=SYSTEM_CLOCK,
        chance=lambda: 0.5, ttl=ttl, sweep=sweep, wake=wake, tz_version=tz,
    )  # fmt: skip
    stop = asyncio.Event()
    task = asyncio.create_task(made.run(stop, here.ready))
    try:
        yield made
    finally:
        stop.set()
        await asyncio.wait([task], timeout=5)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) and not dies:
            raise error


def request_id() -> str:
    return str(uuid4())


class Killed(Exception):
    """The process is gone."""


class Mortal(AsyncpgHand):
    """A hand whose process is killed after so many statements."""

    def __init__(self, connection: Any, lives: int) -> None:
        super().__init__(connection)
        self.lives = lives

    async def fetch(self, statement: Statement) -> Any:
        if self.lives == 0:
            self.connection.terminate()
            raise Killed
        self.lives -= 1
        return await super().fetch(statement)


async def killed(url: str, work: Any, lives: int, *, begin: str = "BEGIN") -> bool:
    """Run `work` in a process that is killed after so many statements, or right before its commit."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(begin)
        hand = Mortal(connection, lives)
        await drive(work, hand)
        await hand.fetch(Statement("COMMIT"))
    except Killed:
        return True
    finally:
        connection.terminate()
    return False


def missed_but_for(reason: Reason) -> Callable[..., Reason | None]:
    """What says which occurrences are missed, without one of its reasons."""
    real = decide._missed

    def judged(plan: Plan, one: Occurrence, now: datetime, newest_due: datetime | None) -> Reason | None:
        found = real(plan, one, now, newest_due)
        return None if found is reason else found

    return judged
