"""Events of the log, by their keys, put into the outbox once more for one consumer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from postroad.events.envelope import key_hash, shard_of
from postroad.sql.statement import queries

if TYPE_CHECKING:
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.outbox", "resend.sql")


@dataclass(frozen=True, slots=True)
class Logged:
    """Where an event lies in the log, and where it goes."""

    id: UUID
    seq: int
    recorded: datetime
    retention: int
    key: str | None
    route: str


def logged(schema: str, keys: Sequence[str], *, types: Sequence[str]) -> Pipeline[Sequence[Logged]]:
    """The events of `keys` and of these types, oldest first. It reads the whole log; erased ones have no key."""
    rows = yield QUERIES.statement("logged", schema, list(keys), list(types))
    return [Logged(*row.values()) for row in rows]


def logged_by_id(schema: str, ids: Sequence[UUID]) -> Pipeline[Sequence[Logged]]:
    """The events of these ids, of UUID version 7, oldest first: of the log it reads the days from which they are."""
    if not ids:
        return []
    rows = yield QUERIES.statement("logged_by_id", schema, list(ids), _time(min(ids)), _time(max(ids)))
    return [Logged(*row.values()) for row in rows]


def _time(id: UUID) -> datetime:  # noqa: A002 - the column
    return datetime.fromtimestamp((id.int >> 80) / 1000, UTC)


def put(schema: str, events: Sequence[Logged], *, target: str) -> Pipeline[int]:
    """Put `events` into the outbox for the consumer `target`, in their order; how many were not there already.

    They have no key there: refused, they must not hold back what goes to others.
    """
    if not events:
        return 0
    hashes = [None if event.key is None else key_hash(event.key) for event in events]
    shards = [shard_of(event.seq if hashed is None else hashed) for event, hashed in zip(events, hashes, strict=True)]
    rows = yield QUERIES.statement(
        "put", schema, shards, [event.seq for event in events],
        [event.recorded for event in events], [event.retention for event in events],
        [event.route for event in events], [None for _ in events], target,
    )  # fmt: skip
    return len(rows)
