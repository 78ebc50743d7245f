"""What an operator sees of work and may do with it, as pipelines: rows, one row, cancel, retry, queues and pauses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import UsageError
from postroad.sql.statement import queries
from postroad.work.job import QUEUE
from postroad.work.wire import headers_from_json, kept

if TYPE_CHECKING:
    from postroad.sql.statement import Pipeline

QUERIES: Final = queries("postroad.work", "operate.sql")

STATES: Final = ("scheduled", "ready", "running", "waiting")
"""The states of an open row; while it is in one of them its unique key is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which open rows a person wants to see: of a queue, in a state, of a job; of each None means all."""

    queue: str | None = None
    state: str | None = None
    job: str | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """An open row of `work`, as shown to people. `event_type` is a job's name, or the type that a consumer retries."""

    id: int
    kind: str
    queue: str
    event_type: str | None
    key: str | None
    state: str
    priority: int
    attempt: int
    run_at: datetime
    created_at: datetime
    started_at: datetime | None
    worker: str | None
    progress: float | None
    note: str | None
    cancel_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Everything about one row, wherever it is: in `work`, `finished` or `quarantine` (`place`).

    `state` is its state, its outcome, or what became of it in quarantine. `body` and `headers` are there only where
    they were asked for and are kept.
    """

    place: str
    id: int
    kind: str
    queue: str
    event_type: str | None
    key: str | None
    state: str
    attempt: int
    priority: int | None = None
    suspect: int | None = None
    run_at: datetime | None = None
    due: datetime | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    progress: float | None = None
    note: str | None = None
    cancel_at: datetime | None = None
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    code: str | None = None
    reason: str | None = None
    quarantine_id: int | None = None
    resolved_by: str | None = None
    size: int | None = None
    content_type: str | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What cancelling did: `done` at once (moved to `finished`), or `asked` of the worker that runs it, and by whom."""

    id: int
    queue: str
    result: str
    by: str


@dataclass(frozen=True, slots=True)
class QueueState:
    """What is open in a queue by state, the age of the oldest ready row, and who has paused it since when, and why."""

    name: str
    scheduled: int
    ready: int
    waiting: int
    running: int
    oldest_seconds: float | None
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None


def list_open(schema: str, chosen: Chosen, *, limit: int = 100) -> Pipeline[tuple[list[Open], dict[str, int]]]:
    """The open rows that are `chosen`, latest first, and how many there are in each state, whatever the `limit`."""
    which = (kept(chosen.queue), chosen.state, kept(chosen.job))
    rows = yield QUERIES.statement("list", schema, *which, limit)
    counts = yield QUERIES.statement("counts", schema, *which)
    return [Open(*row.values()) for row in rows], {row["state"]: row["count"] for row in counts}


def show(schema: str, id: int, *, payload: bool = False) -> Pipeline[Shown | None]:  # noqa: A002 - the column
    """The row with the number that it had when it was enqueued; None where there is none, or no more."""
    for name, args in (("show_open", (id, payload)), ("show_finished", (id,)), ("show_quarantined", (id, payload))):
        rows = yield QUERIES.statement(name, schema, *args)
        if rows:
            return _shown(dict(rows[0].items()))
    return None


def _shown(row: dict[str, Any]) -> Shown:
    history = json.loads(row["history"]) if isinstance(row["history"], str) else row["history"]
    row["history"] = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
    if row.get("headers") is not None:
        row["headers"] = headers_from_json(row["headers"])
    return Shown(**row)


def cancel(schema: str, id: int, *, by: str, reason: str | None) -> Pipeline[Cancelled]:  # noqa: A002 - the column
    """Cancel a job: one that does not run is finished at once, one that runs is asked to stop, once.

    Run it in a transaction: it locks the row. Of a job that was asked before, `by` is who asked first.

    Raises:
        UsageError: PR113, there is no such open row, or it is a consumer's delivery.
    """
    row = yield from _look(schema, id)
    if row["kind"] != "job":
        text = f"row {id} of work is a {row['kind']} of consumer {row['queue']!r}: a delivery is not cancelled"
        raise UsageError("PR113", f"{text}; it ends handled, dropped or in quarantine")
    who, why = kept(by), kept(reason)
    if row["state"] != "running":
        yield QUERIES.statement("cancel", schema, id, who, why)
        return Cancelled(id, row["queue"], "done", by)
    yield QUERIES.statement("ask", schema, id, who, why)
    return Cancelled(id, row["queue"], "asked", row["cancelled_by"] or by)


def hurry(schema: str, id: int, *, by: str) -> Pipeline[str]:  # noqa: A002 - the column
    """Make a scheduled row, a job or a consumer's retry, ready now; its queue. Run it in a transaction.

    Raises:
        UsageError: PR113, it is ready, runs, or waits for something else already; or there is no such open row.
    """
    row = yield from _look(schema, id)
    if row["state"] != "scheduled":
        raise UsageError("PR113", f"row {id} of work is {row['state']} already: there is nothing to bring forward")
    yield QUERIES.statement("hurry", schema, id, kept(by))
    return str(row["queue"])


def is_open(schema: str, id: int) -> Pipeline[bool]:  # noqa: A002 - the column
    """Whether a row of `work` has that number; it is locked until the transaction ends."""
    return bool((yield QUERIES.statement("look", schema, id)))


def _look(schema: str, id: int) -> Pipeline[Mapping[str, Any]]:  # noqa: A002 - the column
    rows = yield QUERIES.statement("look", schema, id)
    if rows:
        found: Mapping[str, Any] = rows[0]
        return found
    past = yield from show(schema, id)
    if past is None:
        raise UsageError("PR113", f"there is no row {id} of work; see `postroad work list`")
    raise UsageError("PR113", f"row {id} of work is not open any more: it is {past.state}, in {past.place}")


def list_queues(schema: str, *, queue: str | None = None) -> Pipeline[list[QueueState]]:
    """Every queue with open rows or a word of an operator, by name; or `queue` alone."""
    rows = yield QUERIES.statement("queues", schema, queue)
    return [QueueState(*row.values()) for row in rows]


def pause(schema: str, queue: str, *, by: str, reason: str | None) -> Pipeline[bool]:
    """Have no process claim from `queue` until `resume`; whether it was not paused. What runs goes on.

    Raises:
        UsageError: PR107, no queue can have that name.
    """
    _check(queue)
    return bool((yield QUERIES.statement("pause", schema, queue, kept(by), kept(reason))))


def resume(schema: str, queue: str, *, by: str) -> Pipeline[bool]:
    """Have processes claim from `queue` again; whether it was paused.

    Raises:
        UsageError: PR107, no queue can have that name.
    """
    _check(queue)
    return bool((yield QUERIES.statement("resume", schema, queue, kept(by))))


def _check(queue: str) -> None:
    if not QUEUE.fullmatch(queue):
        text = "lower-case letters, digits, '.', '_' and '-', at most 200"
        raise UsageError("PR107", f"{queue!r} is no name of a queue: {text}; see `postroad queue list`")
