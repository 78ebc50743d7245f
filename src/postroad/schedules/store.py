"""The sole owner of the tables of schedules and occurrences: what a tick reads and writes, as pipelines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.schedules.policy import Kind, Occurrence, Overlap, State
from postroad.sql import queries

if TYPE_CHECKING:
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.schedules", "store.sql")

BATCH: Final = 500
"""With how many schedules one transaction deals: it stays short, and goes on with the next."""
KEPT: Final = timedelta(days=90)
"""How long an occurrence that has ended is kept."""
PREFIX: Final = "sched"


@dataclass(frozen=True, slots=True)
class Visited:
    """A schedule with which there is something to do, locked."""

    id: UUID
    name: str
    revision: int
    cursor: datetime
    paused_at: datetime | None


@dataclass(frozen=True, slots=True)
class Standing:
    """An occurrence that waits or runs: its row, and its value."""

    id: int
    schedule: UUID
    occurrence: Occurrence
    running: bool
    work_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """An occurrence to write. Its `state` is the table's word."""

    schedule: UUID
    occurrence: Occurrence
    state: str
    reason: str | None
    revision: int

    @property
    def key(self) -> str:
        """See `key_of`."""
        return key_of(self.schedule, self.occurrence)


@dataclass(frozen=True, slots=True)
class Change:
    """What an occurrence that is there becomes."""

    id: int
    state: str
    reason: str | None
    overlap: Overlap | None


@dataclass(frozen=True, slots=True)
class Over:
    """A started occurrence whose row of work has ended; of `outcome` and `code` at most one is there.

    `asked` is why its run was asked to stop, `began` when its first attempt began, if that was its last.
    """

    id: int
    schedule: UUID
    occurrence: Occurrence
    work_id: int | None
    asked: str | None
    outcome: str | None
    reason: str | None
    code: str | None
    ended_at: datetime
    began: datetime | None


@dataclass(frozen=True, slots=True)
class Written:
    """Who writes: the token of the scheduler's lease (None: an operator), the zone data, and the time to decide by."""

    token: int | None
    tz_version: str | None
    now: datetime


def key_of(schedule: UUID, occurrence: Occurrence) -> str:
    """The idempotency key of an occurrence: its job's unique key, the same in every attempt and for life."""
    at = occurrence.due.astimezone(UTC).isoformat()
    match occurrence.kind:
        case Kind.SCHEDULED:
            return f"{PREFIX}:{schedule}:{at}"
        case Kind.MANUAL:
            return f"{PREFIX}:{schedule}:manual:{occurrence.request}"
        case Kind.BACKFILL:
            return f"{PREFIX}:{schedule}:backfill:{occurrence.request}:{at}"


def schedule_of(key: str | None) -> UUID | None:
    """The schedule of an occurrence's key; None where it is another's key."""
    parts = (key or "").split(":")
    try:
        return UUID(parts[1]) if parts[0] == PREFIX else None
    except (IndexError, ValueError):
        return None


def begin(schema: str, app: str) -> Pipeline[tuple[datetime, int]]:
    """The database's time, and the number of the App's newest release (0: none)."""
    rows = yield QUERIES.statement("begin", schema, app)
    return rows[0]["now"], rows[0]["newest"] or 0


def due(schema: str, app: str, *, now: datetime, limit: int) -> Pipeline[list[Visited]]:
    """Up to `limit` schedules that are to be looked at by `now`, locked; what others hold is passed over."""
    rows = yield QUERIES.statement("due", schema, app, now, limit)
    return [Visited(*row.values()) for row in rows]


def standing(schema: str, schedules: Sequence[UUID]) -> Pipeline[dict[UUID, list[Standing]]]:
    """What waits or runs of each of `schedules`."""
    rows = yield QUERIES.statement("open", schema, list(schedules))
    found: dict[UUID, list[Standing]] = {}
    for row in rows:
        running = row["state"] == "started"
        occurrence = Occurrence(
            due=row["due"], kind=Kind(row["kind"]), request=row["request"], starts_at=row["start_at"],
            overlap=None if row["overlap"] is None else Overlap(row["overlap"]), queued=row["state"] == "queued",
            started_at=row["started_at"], cancelling=running and row["cancelling"],
        )  # fmt: skip
        one = Standing(row["id"], row["schedule"], occurrence, running, row["work_id"])
        found.setdefault(one.schedule, []).append(one)
    return found


def state_of(cursor: datetime, *, paused_at: datetime | None, found: Iterable[Standing]) -> State:
    """Where a schedule stands, for the policy."""
    rows = list(found)
    return State(
        cursor=cursor, paused_at=paused_at, waiting=tuple(row.occurrence for row in rows if not row.running),
        running=tuple(row.occurrence for row in rows if row.running),
    )  # fmt: skip


def add(schema: str, new: Sequence[New], by: Written) -> Pipeline[dict[str, int]]:
    """Write occurrences that are not there yet; the ids of those that are new, by key."""
    if not new:
        return {}
    columns = zip(
        *(
            (
                one.schedule, one.occurrence.due, str(one.occurrence.kind), one.occurrence.request, one.key, one.state,
                one.reason, one.occurrence.starts_at, _word(one.occurrence.overlap), one.revision,
            )
            for one in new
        ),
        strict=True,
    )  # fmt: skip
    rows = yield QUERIES.statement("add", schema, *map(list, columns), by.tz_version, by.token, by.now)
    return {row["key"]: row["id"] for row in rows}


def become(schema: str, changes: Sequence[Change], by: Written) -> Pipeline[None]:
    """Write what was decided about occurrences that are there."""
    if changes:
        columns = zip(*((one.id, one.state, one.reason, _word(one.overlap)) for one in changes), strict=True)
        yield QUERIES.statement("become", schema, *map(list, columns), by.now, by.token)


def _word(overlap: Overlap | None) -> str | None:
    return None if overlap is None else str(overlap)


def enqueued(schema: str, rows: Sequence[tuple[int, int | None, str, str | None]]) -> Pipeline[None]:
    """Write which row of work, in which queue, each started occurrence is; or else why it has none."""
    if rows:
        yield QUERIES.statement("enqueued", schema, *map(list, zip(*rows, strict=True)))


def move(schema: str, rows: Sequence[tuple[UUID, datetime, datetime | None]]) -> Pipeline[None]:
    """Write cursors, and when there is something to do next (None: only after an event)."""
    if rows:
        yield QUERIES.statement("move", schema, *map(list, zip(*rows, strict=True)))


def restart(schema: str, starts: Mapping[int, datetime]) -> Pipeline[None]:
    """Write when occurrences that wait start at the earliest."""
    if starts:
        yield QUERIES.statement("restart", schema, list(starts), list(starts.values()))


def seconds_to_next(schema: str, app: str) -> Pipeline[float | None]:
    """In how many seconds there is something to do, by the database's clock; None: not before an event."""
    rows = yield QUERIES.statement("next", schema, app)
    seconds = rows[0]["seconds"]
    return None if seconds is None else float(seconds)


def over(schema: str, app: str, *, limit: int) -> Pipeline[list[Over]]:
    """Up to `limit` started occurrences of an App that have ended, with how; locked until the transaction ends."""
    rows = yield QUERIES.statement("over", schema, app, limit)
    return [
        Over(
            row["id"], row["schedule"],
            Occurrence(due=row["due"], kind=Kind(row["kind"]), request=row["request"], starts_at=row["start_at"]),
            row["work_id"], row["asked"], row["outcome"], row["reason"], row["code"], row["ended_at"], row["began"],
        )
        for row in rows
    ]  # fmt: skip


def end(schema: str, ends: Sequence[tuple[int, str, str | None, datetime]]) -> Pipeline[None]:
    """Write how started occurrences ended: id, state, reason and time of each."""
    yield QUERIES.statement("end", schema, *map(list, zip(*ends, strict=True)))


def hold(schema: str, schedules: Iterable[UUID]) -> Pipeline[list[Mapping[str, Any]]]:
    """Lock schedules by id; those that others hold are left out."""
    rows = yield QUERIES.statement("hold", schema, sorted(schedules))
    return list(rows)


def count_failures(schema: str, counts: Mapping[UUID, int]) -> Pipeline[None]:
    """Write how many runs failed in a row, and have those looked at in which something waits for an end."""
    yield QUERIES.statement("count_failures", schema, list(counts), list(counts.values()))


def pause(schema: str, schedule: UUID, *, by: str, reason: str | None) -> Pipeline[None]:
    """Pause a schedule that is locked."""
    yield QUERIES.statement("pause", schema, schedule, by, reason)


def resume(schema: str, schedule: UUID, *, cursor: datetime) -> Pipeline[None]:
    """Let a schedule that is locked go on from `cursor`."""
    yield QUERIES.statement("resume", schema, schedule, cursor)


def look_now(schema: str, schedule: UUID) -> Pipeline[None]:
    """Have a schedule looked at."""
    yield QUERIES.statement("look_now", schema, schedule)


def reopened(schema: str, *, key: str | None, work_id: int) -> Pipeline[bool]:
    """A job was released from quarantine as the row `work_id`: if it is an occurrence's, that one runs again."""
    schedule = schedule_of(key)
    if schedule is None:
        return False
    return bool((yield QUERIES.statement("reopened", schema, schedule, key, work_id)))


def expire(schema: str, *, now: datetime, limit: int) -> Pipeline[int]:
    """Delete a batch of occurrences that were made 90 days ago and have ended; how many. What is open stays."""
    rows = yield QUERIES.statement("expire", schema, now - KEPT, limit)
    return len(rows)


def backfills(schema: str, app: str, *, limit: int) -> Pipeline[list[Mapping[str, Any]]]:
    """Backfills of an App that are not done, oldest first; they and their schedules are locked."""
    rows = yield QUERIES.statement("backfills", schema, app, limit)
    return list(rows)


def ran(schema: str, schedule: UUID, dues: Sequence[datetime]) -> Pipeline[frozenset[datetime]]:
    """Which of `dues` have an occurrence already, scheduled or of a backfill."""
    rows = yield QUERIES.statement("ran", schema, schedule, list(dues))
    return frozenset(row["due"] for row in rows)


def backfilling(schema: str, schedule: UUID, dues: Sequence[datetime]) -> Pipeline[list[datetime]]:
    """Which of `dues` an earlier backfill has waiting or running, in order."""
    rows = yield QUERIES.statement("backfilling", schema, schedule, list(dues))
    return [row["due"] for row in rows]


def again(
    schema: str, backfill: Mapping[str, Any], dues: Sequence[datetime], by: Written
) -> Pipeline[list[dict[str, Any]]]:  # fmt: skip
    """Have those of `dues` wait anew that earlier backfills have run, under new keys; what was kept of each."""
    schedule, number = backfill["schedule"], str(backfill["id"])
    keys = [key_of(schedule, Occurrence(due=due, kind=Kind.BACKFILL, request=number, starts_at=by.now)) for due in dues]
    rows = yield QUERIES.statement(
        "again", schema, schedule, list(dues), keys, number, by.now, backfill["overlap"], backfill["revision"],
        by.tz_version, by.token,
    )  # fmt: skip
    return [json.loads(row["before"]) for row in rows]


def go_on(
    schema: str, backfill: int, *, cursor: datetime, planned: int, passed: int, done: bool
) -> Pipeline[None]:  # fmt: skip
    """Write how far a backfill has come."""
    yield QUERIES.statement("go_on", schema, backfill, cursor, planned, passed, done)


def add_backfill(
    schema: str, schedule: UUID, *, first: datetime, last: datetime, overlap: Overlap, rerun: bool, by: str,
    reason: str | None,
) -> Pipeline[int]:  # fmt: skip
    """Write that somebody wants a range of past due times run; its number."""
    rows = yield QUERIES.statement("add_backfill", schema, schedule, first, last, str(overlap), rerun, by, reason)
    return int(rows[0]["id"])
