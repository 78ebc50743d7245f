"""What a consumer runs again of a replay although it has handled it: the table ``rehandle``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from postroad.signals.catalog import DeliveryRehandled
from postroad.sql.statement import queries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Any
    from uuid import UUID

    from postroad.consume.arrival import Arrival
    from postroad.signals import Signals
    from postroad.sql import Pipeline
    from postroad.sql.drive import Transactions

QUERIES: Final = queries("postroad.consume", "rehandle.sql")


@dataclass(frozen=True, slots=True)
class Begun:
    """Whether a delivery of a replay may run whatever its age, and whether its mark was taken away for that."""

    allowed: bool
    anew: bool


def allow(schema: str, consumer: str, replay: UUID, *, by: str, reason: str) -> Pipeline[bool]:
    """Let `consumer` run again what it has handled until now of `replay`, each once; whether it was not so before."""
    return bool((yield QUERIES.statement("allow", schema, consumer, replay, by, reason)))


def begin(schema: str, consumer: str, message: UUID, *, replay: UUID, key: str | None) -> Pipeline[Begun]:
    """Begin `message` anew where its consumer's owner lets this `replay` run again: once, however often it comes.

    Commit it before the message runs: it is then like one that was never handled. A crash after it leaves it so, until
    it is delivered again. What was handled, and moved the guard of its `key`, after that was said, stays as it is: so a
    copy finds a mark.
    """
    (row,) = yield QUERIES.statement("begin", schema, consumer, message, replay, key)
    return Begun(row["allowed"], row["anew"])


async def begun(
    custody: Transactions[Any], schema: str, arrival: Arrival, *, consumer: str, signals: Signals
) -> Arrival:  # fmt: skip
    """A delivery of a replay, begun anew in a transaction of its own where that is wanted."""
    assert arrival.replay is not None
    assert arrival.message_key is not None
    key = None if arrival.envelope is None else arrival.envelope.key
    async with custody.begin() as unit:
        found = await unit.drive(begin(schema, consumer, arrival.message_key, replay=arrival.replay, key=key))
    if found.anew:
        signals.emit(DeliveryRehandled(consumer, arrival.event_type))
    return replace(arrival, rehandled=True) if found.allowed else arrival


def expire(schema: str, *, before: datetime) -> Pipeline[int]:
    """Forget what was let run again before then; how many replays that were."""
    return len((yield QUERIES.statement("expire", schema, before)))


def known(schema: str, consumer: str, rows: Sequence[tuple[UUID, datetime]]) -> Pipeline[tuple[int, int]]:
    """How many of these messages `consumer` has a mark of, and how many others are older than it remembers."""
    keys, times = [key for key, _ in rows], [at for _, at in rows]
    (row,) = yield QUERIES.statement("known", schema, consumer, keys, times)
    return int(row["handled"]), int(row["past"])


def lives(schema: str, consumer: str) -> Pipeline[bool]:
    """Whether the database has ever heard of `consumer`."""
    (row,) = yield QUERIES.statement("lives", schema, consumer)
    return bool(row["known"])
