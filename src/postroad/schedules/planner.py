"""One tick: everything that is due becomes rows, in the one transaction that also moves the cursors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from postroad import audit
from postroad.errors import LeaseLost, UsageError
from postroad.leases import fence
from postroad.schedules import store
from postroad.schedules.sheet import BY, Known, Sheet, Start
from postroad.signals.catalog import OccurrencesDue, OccurrencesPassed, OccurrenceStarted, TaskFailed
from postroad.work import operate
from postroad.work.enqueue import Enqueued, NewJob, enqueue, prepare
from postroad.work.planned import note

if TYPE_CHECKING:
    from postroad.leases import Lease
    from postroad.signals import Signal
    from postroad.sql import Pipeline

LATER: Final = timedelta(minutes=1)
"""When a schedule is looked at again about which nothing could be decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """Under what a process plans: its App, the number of its release, the lease, and the schedules by their ids."""

    app: str
    release: int
    lease: Lease
    tz_version: str
    known: Mapping[UUID, Known]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """What a tick has done; `told` is for after its commit, `queues` have new rows of work.

    `wait` is in how many seconds there is something to do, None where only an event can change anything.
    """

    now: datetime
    superseded: bool = False
    visited: int = 0
    wait: float | None = None
    queues: frozenset[str] = frozenset()
    told: Sequence[Signal] = field(default=())


def tick(schema: str, office: Office, *, now: datetime | None = None, limit: int = store.BATCH) -> Pipeline[Ticked]:
    """Decide what is due by `now`, for up to `limit` schedules; run it in a transaction, and commit that.

    `now` is the database's time unless it is given. A crash before the commit leaves everything as it was, and a
    repeat decides the same; after it a repeat finds nothing. What another process has written already is passed over.

    Raises:
        LeaseLost: PR401, the lease is another's by now: roll back.
    """
    yield from fenced(schema, office)
    time, newest = yield from store.begin(schema, office.app)
    now = now or time
    if newest > office.release:
        return Ticked(now=now, superseded=True)
    rows = yield from store.due(schema, office.app, now=now, limit=limit)
    found = (yield from store.standing(schema, [row.id for row in rows])) if rows else {}
    sheet, told = Sheet(now), list[TaskFailed]()
    for row in rows:
        known = office.known.get(row.id)
        try:
            if known is not None:
                sheet.visit(row, known, found.get(row.id, ()))
        except Exception as error:  # noqa: BLE001 - one schedule that cannot be decided stalls no other
            told.append(TaskFailed(f"schedule:{row.name}", type(error).__name__, "it could not be planned"))
            known = None
        if known is None:
            sheet.moves.append((row.id, row.cursor, now + LATER))
    started = yield from _write(schema, office, sheet)
    wait = yield from store.seconds_to_next(schema, office.app)
    return Ticked(
        now=now, visited=len(rows), wait=wait, queues=frozenset(start.known.schedule.job.queue for start in started),
        told=[*_signals(sheet, started), *told],
    )  # fmt: skip


def fenced(schema: str, office: Office) -> Pipeline[None]:
    """Nobody takes the scheduler's lease over before the transaction has ended.

    Raises:
        LeaseLost: PR401, somebody has: roll back.
    """
    if office.lease.name not in (yield from fence(schema, [office.lease])):
        raise LeaseLost(
            "PR401", f"the lease {office.lease.name!r} is another process's by now; this tick changes nothing"
        )


def _write(schema: str, office: Office, sheet: Sheet) -> Pipeline[list[Start]]:
    by = store.Written(office.lease.token, office.tz_version, sheet.now)
    added = yield from store.add(schema, sheet.new, by)
    yield from store.become(schema, sheet.changes, by)
    starts = [start for start in sheet.starts if start.id or start.key in added]
    yield from _start(schema, starts, added, sheet.now)
    for work_id, reason in sheet.cancels:
        yield from _cancel(schema, work_id, reason)
    for act in sheet.acts:
        yield from audit.record(schema, act)
    yield from store.move(schema, sheet.moves)
    return starts


def _start(schema: str, starts: Sequence[Start], added: Mapping[str, int], now: datetime) -> Pipeline[None]:
    """Enqueue the jobs of these occurrences; one whose request cannot be made is a failed run."""
    jobs: list[tuple[Start, NewJob]] = []
    written: list[tuple[int, int | None, str, str | None]] = []
    for start in starts:
        job = _job(start, now)
        if isinstance(job, NewJob):
            jobs.append((start, job))
        else:
            written.append((start.id or added[start.key], None, start.known.schedule.job.queue, job))
    made: list[Enqueued] = (yield from enqueue(schema, [job for _, job in jobs])) if jobs else []
    for (start, job), one in zip(jobs, made, strict=True):
        taken = None if one.new else "a job with its key is open already"
        written.append((start.id or added[start.key], one.id, job.queue, taken))
    yield from store.enqueued(schema, written)


def _job(start: Start, now: datetime) -> NewJob | str:
    """The row to enqueue, or why there is none: the author's `args` may raise, or make what does not fit."""
    schedule, occurrence = start.known.schedule, start.occurrence
    try:
        row = prepare(schedule.job.function, schedule.request(occurrence.due), unique=start.key)
    except UsageError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 - the author's own code
        return f"args raised {type(error).__name__}"
    within = start.known.plan.policy.start_within
    noted = note(
        schedule=schedule.name, due=occurrence.due, zone=schedule.zone.key, max_runtime=schedule.max_runtime,
        retry=schedule.retry, start_within=None if within is None else occurrence.starts_at + within - now,
    )  # fmt: skip
    return row._replace(headers=json.dumps(noted))


def _cancel(schema: str, work_id: int, reason: str) -> Pipeline[None]:
    try:
        yield from operate.cancel(schema, work_id, by=BY, reason=reason)
    except UsageError:
        return  # It has ended meanwhile.


def _signals(sheet: Sheet, started: Sequence[Start]) -> list[Signal]:
    due: list[Signal] = [OccurrencesDue(name, count) for name, count in sheet.due.items() if count]
    passed = [OccurrencesPassed(*what, count) for what, count in sheet.passed.items()]
    begun = [
        OccurrenceStarted(
            start.known.schedule.name, str(start.occurrence.kind),
            max((sheet.now - start.occurrence.starts_at).total_seconds(), 0.0),
        )
        for start in started
    ]  # fmt: skip
    return [*due, *passed, *begun]
