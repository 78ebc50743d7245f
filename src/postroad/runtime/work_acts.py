"""What an operator may do with work: rows, queues, and jobs that are enqueued by hand, without any printing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from pydantic import ValidationError

from postroad.audit import Act, record
from postroad.errors import Unavailable, UsageError
from postroad.runtime.operations import connected, released
from postroad.sql import drive, migrations
from postroad.sql.asyncpg import AsyncpgHand
from postroad.work import enqueue, operate, release
from postroad.work.wire import kept

if TYPE_CHECKING:
    from postroad.runtime.declarations import Declarations
    from postroad.runtime.settings import Settings
    from postroad.sql import Pipeline
    from postroad.work.enqueue import Enqueued, NewJob
    from postroad.work.job import Job
    from postroad.work.operate import Cancelled, Chosen, Open, QueueState, Shown

_PATIENCE: Final = "5s"


@dataclass(frozen=True, slots=True)
class Retried:
    """A row that will run again: the row itself (`scheduled` before), or a new one out of `quarantine`."""

    id: int
    queue: str
    was: str
    number: int
    by: str


async def rows(settings: Settings, chosen: Chosen, *, limit: int) -> tuple[Sequence[Open], dict[str, int]]:
    """The open rows that are `chosen`, latest first, and how many there are in each state.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away. Every act here raises these three.
    """
    async with _hand(settings) as hand:
        return await drive(operate.list_open(settings.schema, chosen, limit=limit), hand)


async def row(settings: Settings, number: int, *, payload: bool) -> Shown:
    """Everything about one row, wherever it is by now; body and headers only where `payload` asks for them.

    Raises:
        UsageError: PR113, there is none, or no more.
    """
    async with _hand(settings) as hand:
        found = await drive(operate.show(settings.schema, number, payload=payload), hand)
    if found is None:
        raise UsageError("PR113", f"there is no row {number} of work; see `postroad work list`")
    return found


async def cancel(settings: Settings, number: int, *, by: str, reason: str | None) -> Cancelled:
    """Cancel a job, as `by`: at once where it does not run, else by asking its worker.

    Raises:
        UsageError: PR113, it is not open, or a consumer's delivery.
    """
    async with _hand(settings) as hand:
        done = await drive(operate.cancel(settings.schema, number, by=by, reason=reason), hand)
        after = {"queue": done.queue, "result": done.result}
        act = Act(by=by, act="work.cancel", subject=str(number), reason=reason, after=after)
        await drive(record(settings.schema, act), hand)
        return done


async def retry(settings: Settings, number: int, *, by: str) -> Retried:
    """Run a row again, as `by`: one that is scheduled now, one that went into quarantine as a new row.

    Raises:
        UsageError: PR113, it is neither; PR112, it cannot be released from quarantine.
    """
    async with _hand(settings) as hand:
        done = await drive(_retried(settings.schema, number, by), hand)
        before, after = {"state": done.was}, {"queue": done.queue, "number": done.number}
        act = Act(by=by, act="work.retry", subject=str(number), before=before, after=after)
        await drive(record(settings.schema, act), hand)
        return done


def _retried(schema: str, number: int, by: str) -> Pipeline[Retried]:
    if (yield from operate.is_open(schema, number)):
        return Retried(number, (yield from operate.hurry(schema, number, by=by)), "scheduled", number, by)
    quarantined = yield from release.of_work(schema, number)
    if quarantined:
        done = yield from released(schema, quarantined, by)
        return Retried(number, done.queue, "quarantined", done.number, by)
    past = yield from operate.show(schema, number)
    if past is None:
        raise UsageError("PR113", f"there is no row {number} of work; see `postroad work list`")
    text = f"row {number} of work is finished ({past.state}), and its request left with it"
    raise UsageError("PR113", f"{text}; enqueue it anew, or replay its event")


async def queues(settings: Settings) -> Sequence[QueueState]:
    """Every queue that has open rows, or that an operator has paused before."""
    async with _hand(settings) as hand:
        return await drive(operate.list_queues(settings.schema), hand)


async def pause(settings: Settings, queue: str, *, by: str, reason: str | None) -> tuple[bool, QueueState]:
    """Have nothing claimed from `queue`, as `by`; whether it was not paused yet, and how it stands. Safe to repeat.

    Raises:
        UsageError: PR107, no queue can have that name.
    """
    async with _hand(settings) as hand:
        changed = await drive(operate.pause(settings.schema, queue, by=by, reason=reason), hand)
        if changed:
            act = Act(by=by, act="queue.pause", subject=queue, reason=reason)
            await drive(record(settings.schema, act), hand)
        return changed, await _state(settings.schema, queue, hand)


async def resume(settings: Settings, queue: str, *, by: str) -> tuple[bool, QueueState]:
    """Have `queue` claimed from again, as `by`; whether it was paused, and how it stands. Safe to repeat.

    Raises:
        UsageError: PR107, no queue can have that name.
    """
    async with _hand(settings) as hand:
        before = await _state(settings.schema, queue, hand)
        changed = await drive(operate.resume(settings.schema, queue, by=by), hand)
        if changed:
            paused = {"paused_by": before.paused_by, "paused_at": before.paused_at, "reason": before.reason}
            await drive(record(settings.schema, Act(by=by, act="queue.resume", subject=queue, before=paused)), hand)
        return changed, await _state(settings.schema, queue, hand)


async def _state(schema: str, queue: str, hand: AsyncpgHand) -> QueueState:
    found = await drive(operate.list_queues(schema, queue=queue), hand)
    return found[0] if found else operate.QueueState(queue, 0, 0, 0, 0, None, None, None, None)


# --- enqueueing by hand -----------------------------------------------------------------------------------------------


def prepared(
    declarations: Declarations, name: str, text: bytes, *, run_at: datetime | None, priority: int, unique: str | None,
    by: str, queue: str | None = None,
) -> NewJob:  # fmt: skip
    """The row that enqueueing the App's job `name` with the request `text` (JSON) would write; nothing is sent.

    Raises:
        UsageError: PR107, the App has no such job or no job in `queue`, the request does not fit it, or an option is
            not valid; PR106, the request is over its limit.
    """
    found = _job(declarations, name)
    if queue is not None and queue not in declarations.queues:
        message = f"no job of App {declarations.name!r} is declared in queue {queue!r}"
        raise UsageError("PR107", f"{message}; it has: {', '.join(sorted(declarations.queues))}")
    try:
        request = found.adapter.validate_json(text)
    except ValidationError as error:
        # Without its cause: pydantic's text quotes the request.
        [first, *_] = error.errors(include_url=False, include_input=False)
        if first["type"] == "json_invalid":
            wrong = first["ctx"]["error"]
            raise UsageError("PR107", f"enqueue of {name}: REQUEST is not JSON: {wrong}") from None
        message = f"enqueue of {name}: the request does not fit: {enqueue.misfit(found, error)}"
        raise UsageError("PR107", message) from None
    row = enqueue.prepare(found.function, request, run_at=run_at, priority=priority, queue=queue, unique=unique)
    return row._replace(headers=json.dumps({"by": kept(by)}))


async def put(settings: Settings, row: NewJob, *, by: str) -> Enqueued:
    """Enqueue what was `prepared`, as `by`, in a transaction of its own."""
    async with _hand(settings) as hand:
        done = (await drive(enqueue.enqueue(settings.schema, [row]), hand))[0]
        if done.new:
            after = {"queue": row.queue, "id": done.id}
            await drive(record(settings.schema, Act(by=by, act="job.enqueue", subject=row.name, after=after)), hand)
        return done


def _job(declarations: Declarations, name: str) -> Job[Any]:
    found = next((job for job in declarations.jobs if job.name == name), None)
    if found is None:
        known = ", ".join(sorted(job.name for job in declarations.jobs)) or "none"
        raise UsageError("PR107", f"App {declarations.name!r} has no job {name!r}; it has: {known}")
    return found


@asynccontextmanager
async def _hand(settings: Settings) -> AsyncIterator[AsyncpgHand]:
    """One transaction on a connection of its own; a row that somebody holds is waited for a few seconds."""
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
                yield AsyncpgHand(connection)
        except asyncpg.LockNotAvailableError as error:
            message = "the row is held by the transaction of whoever runs it; nothing was changed, try again"
            raise Unavailable("PR304", message) from error
