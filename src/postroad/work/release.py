"""The way out of quarantine: a row that a person releases, and where the event of one lies in the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from postroad.errors import UsageError
from postroad.sql import queries
from postroad.work.wire import kept

if TYPE_CHECKING:
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.work", "release.sql")


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row of quarantine as its release sees it; the last three say where in the log an event lies, if known."""

    id: int
    kind: str
    queue: str
    key: str | None
    code: str
    resolved_at: datetime | None
    exchange: str | None
    routing_key: str | None
    seq: int | None
    recorded: datetime | None
    retention: int | None
    legacy: bool
    """Whether it came by a queue of another owner, where only the consumer's own function gives it an identity."""
    replay: str | None
    """The replay that it belongs to."""


@dataclass(frozen=True, slots=True)
class Made:
    """A row of quarantine that became the row `number` of `work`."""

    id: int
    number: int
    kind: str
    queue: str
    key: str | None
    code: str


def look(schema: str, id: int) -> Pipeline[Quarantined | None]:  # noqa: A002 - the column
    """The row, locked until the transaction ends: two people cannot release it at once."""
    rows = yield QUERIES.statement("look", schema, id)
    return Quarantined(*rows[0].values()) if rows else None


def back_to_work(schema: str, id: int, *, by: str) -> Pipeline[int]:  # noqa: A002 - the column
    """Turn a quarantined delivery or job into a ready row of `work` and resolve it, both or neither; the new id.

    Its budget of attempts and age begins anew; its history goes on. 0, and nothing changes, while a row of `work` is
    open for its key, or where the row is neither an open delivery with a key (or of another's queue) nor an open job.
    """
    made = yield from all_to_work(schema, [id], by=by)
    return made[0].number if made else 0


def all_to_work(schema: str, ids: Sequence[int], *, by: str) -> Pipeline[list[Made]]:
    """The same for each of `ids`, in order of id; those that became rows of `work`, in that order."""
    rows = yield QUERIES.statement("back_to_work", schema, list(ids), kept(by))
    return sorted((Made(*row.values()) for row in rows), key=lambda made: made.number)


def released(schema: str, row: Quarantined, *, by: str) -> Pipeline[int]:
    """Turn `row` (a job, locked) into a ready row of `work` and resolve it, or neither; the new row's id.

    Raises:
        UsageError: PR112, a job with the same unique key is open.
    """
    work_id = yield from back_to_work(schema, row.id, by=by)
    if not work_id:
        message = f"row {row.id} of quarantine: a job with the same unique key is open in {row.queue!r}"
        raise UsageError("PR112", f"{message}; when that one has ended, try again")
    return work_id


def of_work(schema: str, work_id: int) -> Pipeline[int]:
    """The row of quarantine that a row of `work` became, by the number that it had there; 0 where there is none."""
    rows = yield QUERIES.statement("of_work", schema, work_id)
    return int(rows[0]["id"]) if rows else 0


def resolve(schema: str, id: int, *, by: str) -> Pipeline[bool]:  # noqa: A002 - the column
    """Resolve a row whose message went back elsewhere; whether it was open."""
    return bool((yield QUERIES.statement("resolve", schema, id, kept(by))))


def note_place(
    schema: str, *, queue: str, key: str, seq: int, recorded: datetime, retention: int
) -> Pipeline[None]:  # fmt: skip
    """Note on an open row where its event lies in the log, so that the log keeps it."""
    yield QUERIES.statement("place", schema, queue, key, seq, recorded, retention)
