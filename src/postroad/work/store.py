"""The sole owner of the tables ``work``, ``quarantine`` and ``finished``: what may happen to a row, as pipelines.

Every function is a generator of statements for any connection and any transaction. A claimed row is fenced by
``(id, token)``, and the token is new with every claim: whoever lost a row changes nothing, and is told so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import ContractError
from postroad.failures import Rules, classify
from postroad.leases import advance, lapsed
from postroad.sql import Pipeline, queries
from postroad.work.wire import Wire, digest, headers_from_json, headers_to_json, kept

if TYPE_CHECKING:
    from postroad.failures import Verdict

QUERIES: Final = queries("postroad.work", "store.sql")
_NO_RULES: Final = Rules()
_MOST_ATTEMPTS: Final = 2**31 - 1  # What the column can hold.
BATCH: Final = 1000
"""How many rows one sweep moves at most: it stays short, and goes on with the next."""

Position = tuple[datetime, int]
"""Where a claim got to within one priority: ``(run_at, id)`` of the last row that it took."""


@dataclass(slots=True, kw_only=True)  # Not frozen: that would cost every row four times as much.
class ClaimedRow:
    """A row of `work` that is ours until it is settled or our lease is lost.

    `attempt` counts the failures charged so far: this run is number ``attempt + 1``, and that is what `delay_again`
    and `quarantine_claimed` are given when it fails. `suspect` counts the workers that died while running it; a
    suspect runs alone. `age` is the time since it was due, or else since it was put here, by the database's clock. A
    lower `priority` is claimed first. `cancelled` says that an operator has cancelled it, with what reason.
    """

    id: int
    token: int
    queue: str
    kind: str
    key: str | None
    wire: Wire = field(repr=False)
    attempt: int = 0
    suspect: int = 0
    age: timedelta = timedelta(0)
    created_at: datetime
    run_at: datetime
    due: datetime | None = None
    priority: int = 0
    cancelled: str | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """An open row of quarantine, as shown to people: all but body and headers. `size` is the body's, in bytes."""

    id: int
    kind: str
    queue: str
    key: str | None
    failure: str
    code: str
    fingerprint: str
    error_type: str
    reason: str
    event_type: str | None
    attempt: int
    size: int
    content_type: str
    exchange: str | None
    routing_key: str | None
    quarantined_at: datetime


@dataclass(frozen=True, slots=True)
class Depth:
    """What lies open in quarantine for one queue."""

    queue: str
    count: int
    oldest: timedelta


# --- a failed delivery or job -------------------------------------------------------------------------------------


def delay(
    schema: str, *, queue: str, key: str | None, wire: Wire, verdict: Verdict, attempt: int, run_in: timedelta,
    kind: str = "retry",
) -> Pipeline[int]:  # fmt: skip
    """Put a failed first delivery off: a new row that is due in `run_in` by the database's clock; its id.

    `attempt` is the number of the attempt that failed (from 1; 0 charges nothing). 0 is returned, and nothing
    changes, while a row is open for `(queue, key)`: repeating it is harmless. A `key` of None is never a repeat.
    """
    rows = yield QUERIES.statement(
        "delay", schema, queue, kind, kept(key), run_in, attempt, *_properties(wire), _entry(verdict, attempt)
    )
    return int(rows[0]["id"]) if rows else 0


def delay_again(
    schema: str, id: int, token: int, *, verdict: Verdict, attempt: int, run_in: timedelta  # noqa: A002 - the column
) -> Pipeline[bool]:  # fmt: skip
    """Put a claimed row off again; whether it was still ours.

    The row is no longer suspect: it answered. One that an operator has cancelled meanwhile is finished as cancelled.
    False: another worker has it, and nothing was changed.
    """
    rows = yield QUERIES.statement(
        "delay_again", schema, id, token, run_in, min(attempt, _MOST_ATTEMPTS), _entry(verdict, attempt)
    )
    return bool(rows)


def give_back(schema: str, rows: Iterable[tuple[int, int]]) -> Pipeline[int]:
    """Make claimed rows, as pairs of id and token, claimable at once, uncharged; how many were still ours."""
    pairs = list(rows)
    found = yield QUERIES.statement("give_back", schema, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
    return len(found)


def finish(
    schema: str, id: int, token: int, *, outcome: str, reason: str | None = None  # noqa: A002 - the column
) -> Pipeline[bool]:  # fmt: skip
    """Move a claimed row to `finished` with its `outcome`; whether it was still ours.

    Run it in the transaction of the handler's effects, and roll that back when it returns False: another worker
    has the row, and its effects will be the ones that count.
    """
    rows = yield QUERIES.statement("finish", schema, id, token, outcome, kept(reason))
    return bool(rows)


def quarantine(
    schema: str, *, queue: str, key: str | None, wire: Wire, verdict: Verdict, attempt: int = 0, kind: str = "delivery",
) -> Pipeline[bool]:  # fmt: skip
    """Keep a message until a person decides; whether it was new.

    While one is open for `(queue, key)`, or where `key` is None for the same message (`digest`), a repeat changes
    nothing.
    `kind` is delivery, event, job or dead-letter.
    """
    rows = yield QUERIES.statement(
        "quarantine", schema, kind, queue, kept(key), *_judgement(verdict), attempt, *_properties(wire),
        _entry(verdict, attempt), digest(wire),
    )  # fmt: skip
    return bool(rows)


def quarantine_claimed(
    schema: str, id: int, token: int, *, verdict: Verdict, attempt: int  # noqa: A002 - the column
) -> Pipeline[bool]:  # fmt: skip
    """Move a claimed row into quarantine with all that it carries; whether it was still ours."""
    rows = yield QUERIES.statement(
        "quarantine_claimed", schema, id, token, *_judgement(verdict), attempt, _entry(verdict, attempt)
    )
    return bool(rows)


def _properties(wire: Wire) -> tuple[Any, ...]:
    return (
        kept(wire.event_type), wire.body, kept(wire.content_type) or "", headers_to_json(wire.headers),
        kept(wire.exchange), kept(wire.routing_key),
    )  # fmt: skip


def _judgement(verdict: Verdict) -> tuple[Any, ...]:
    texts = (str(verdict.failure), verdict.code, verdict.fingerprint, verdict.error_type, verdict.reason)
    return tuple(kept(text) for text in texts)


def _entry(verdict: Verdict, attempt: int) -> str:
    """One line of a row's history, without anything that could hold a payload; the database adds the time."""
    names = ("class", "code", "fingerprint", "error_type", "reason")
    return json.dumps({"attempt": attempt, **dict(zip(names, _judgement(verdict), strict=True))})


# --- claims -------------------------------------------------------------------------------------------------------


def claim(
    schema: str, *, queue: str, limit: int, worker: str, after: Mapping[int, Position] | None = None
) -> Pipeline[list[ClaimedRow]]:
    """Claim up to `limit` ready rows of `queue` for the lease named `worker`, best first; suspects are left alone.

    `after` holds where the last claim got to, per priority: only what lies behind is looked at. None looks from
    the start. One round trip; what another claim is taking is passed over.
    """
    if after:
        marks = sorted(after.items())
        priorities, times, ids = ([m[0] for m in marks], [m[1][0] for m in marks], [m[1][1] for m in marks])
        rows = yield QUERIES.statement("claim_on", schema, queue, limit, worker, priorities, times, ids)
    else:
        rows = yield QUERIES.statement("claim", schema, queue, limit, worker)
    claimed = yield from _read(schema, rows)
    claimed.sort(key=lambda row: (row.priority, row.run_at, row.id))
    return claimed


def claim_suspect(schema: str, *, queue: str, worker: str) -> Pipeline[list[ClaimedRow]]:
    """Claim at most one suspect of `queue`: the caller runs nothing else of that queue meanwhile."""
    rows = yield QUERIES.statement("claim_suspect", schema, queue, worker)
    return (yield from _read(schema, rows))


def _read(schema: str, rows: Iterable[Mapping[str, Any]]) -> Pipeline[list[ClaimedRow]]:
    """The rows of a claim; one that cannot be read is quarantined, and the others run."""
    claimed = []
    for row in rows:
        try:
            claimed.append(_claimed(row))
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns that row alone
            told = ContractError("PR501", f"row {row['id']} of work cannot be read ({type(error).__name__})")
            verdict = classify(told, rules=_NO_RULES, attempt=1)
            yield from quarantine_claimed(schema, row["id"], row["token"], verdict=verdict, attempt=row["attempt"])
    return claimed


def _claimed(row: Mapping[str, Any]) -> ClaimedRow:
    wire = Wire(
        body=row["body"], content_type=row["content_type"], headers=headers_from_json(row["headers"]),
        exchange=row["exchange"], routing_key=row["routing_key"], event_type=row["event_type"],
    )  # fmt: skip
    return ClaimedRow(
        id=row["id"], token=row["token"], queue=row["queue"], kind=row["kind"], key=row["key"], wire=wire,
        attempt=row["attempt"], suspect=row["suspect"], age=row["age"], created_at=row["created_at"],
        run_at=row["run_at"], due=row["due"], priority=row["priority"],
        cancelled=(row["cancel_reason"] or "") if row["cancelled"] else None,
    )  # fmt: skip


# --- sweeps -------------------------------------------------------------------------------------------------------


def make_due(schema: str, *, limit: int = BATCH) -> Pipeline[dict[str, int]]:
    """Make up to `limit` scheduled rows whose time has come claimable; how many, per queue. Any process may."""
    rows = yield QUERIES.statement("make_due", schema, limit)
    return {row["queue"]: row["count"] for row in rows}


def recover(schema: str, *, limit: int = BATCH) -> Pipeline[dict[str, int]]:
    """Take back what dead workers were running; how many rows, per queue. Any process may, in a transaction.

    Dead is a worker whose lease is released, expired or unknown. Its token is advanced first, so that it cannot
    come back to life; then its rows become claimable again: suspect, and charged only where they were suspect
    already, since then they ran alone and nothing else can have killed the worker.
    """
    running = yield from running_workers(schema)
    if not running:
        return {}
    dead = {}
    for lease in (yield from lapsed(schema, running)):
        dead[lease.name] = lease.token == 0 or (yield from advance(schema, lease.name, lease.token))
    taken = [name for name, fenced in dead.items() if fenced]
    if not taken:
        return {}
    rows = yield QUERIES.statement("recover", schema, taken, limit)
    return {row["queue"]: row["count"] for row in rows}


def running_workers(schema: str) -> Pipeline[list[str]]:
    """The names of the leases under which rows are running, or were when their worker died."""
    rows = yield QUERIES.statement("running_workers", schema)
    return [row["worker"] for row in rows]


def suspects(schema: str, queues: Sequence[str]) -> Pipeline[frozenset[str]]:
    """Those of `queues` in which a suspect waits to be run alone."""
    rows = yield QUERIES.statement("suspects", schema, list(queues))
    return frozenset(row["queue"] for row in rows)


def held_by(schema: str, worker: str) -> Pipeline[list[tuple[int, int]]]:
    """Id and token of every row that runs under the lease named `worker`."""
    rows = yield QUERIES.statement("held_by", schema, worker)
    return [(row["id"], row["token"]) for row in rows]


# --- what people see ----------------------------------------------------------------------------------------------


def quarantine_state(schema: str) -> Pipeline[list[Depth]]:
    """What lies open in quarantine per queue: how many, and the age of the oldest."""
    rows = yield QUERIES.statement("quarantine_state", schema)
    return [Depth(row["queue"], row["depth"], timedelta(seconds=row["oldest"])) for row in rows]
