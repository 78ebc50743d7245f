"""What a consumer has handled, dropped, put off or given up: the tables `inbox` and `order_guard`."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from postroad.sql.statement import queries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from postroad.sql.statement import Pipeline

QUERIES: Final = queries("postroad.consume", "store.sql")

FRESH_FOR: Final = timedelta(days=1)
"""Nothing younger can have lost its mark: marks are kept seven days at least. It is never looked up."""

SKEW: Final = timedelta(hours=1)
"""How far a producer's clock may be ahead of the consumer's database."""

_BATCH: Final = 5000

_number: Final = attrgetter("int")
"""What a UUID is compared by; asked for once, it is a fifth of the work of comparing two."""


class Mark(StrEnum):
    """The outcome on an inbox row."""

    HANDLED = "handled"
    DROPPED = "dropped"
    DELAYED = "delayed"
    QUARANTINED = "quarantined"


class Claim(StrEnum):
    """What an attempt to mark a message found."""

    FRESH = "fresh"  # the mark is ours, in this transaction
    DUPLICATE = "duplicate"  # another mark stands, committed
    BUSY = "busy"  # another process has this message open


def claim(schema: str, consumer: str, key: UUID, *, mark: Mark, reason: str | None, owned: bool) -> Pipeline[Claim]:
    """Mark message `key` in the open transaction: one statement, which waits for nobody.

    With `owned` the caller holds the row of `work` that owns a delayed or quarantined mark, and may change it;
    otherwise any mark at all means duplicate. The transaction's commit becomes durable (``synchronous_commit`` is
    raised to ``on`` where it is lower).
    """
    statement = QUERIES.statement("own" if owned else "claim", schema, consumer, key, mark.value, reason)
    (row,) = yield statement
    return _found(row)


def claim_many(schema: str, consumer: str, keys: Sequence[UUID], *, patience: timedelta) -> Pipeline[dict[UUID, Claim]]:
    """Mark the messages of a group, each named once, as handled in the open transaction, and say what was found.

    What is not named in the answer is fresh. One statement, which waits for nobody. Until its end no statement of the
    transaction waits longer than `patience` for a lock. Keys are taken in their order, so that two processes meet on
    the first.
    """
    waits = f"{round(patience.total_seconds() * 1000)}ms"
    rows = yield QUERIES.statement("claim_many", schema, consumer, sorted(keys, key=_number), waits)
    return {row["key"]: _not_fresh(row) for row in rows if row["key"] is not None}


def forget(schema: str, consumer: str, keys: Sequence[UUID]) -> Pipeline[None]:
    """Take back marks that this transaction has set, of messages that were not handled in it."""
    yield QUERIES.statement("forget", schema, consumer, list(keys))


def amend(schema: str, consumer: str, key: UUID, *, mark: Mark, reason: str | None) -> Pipeline[None]:
    """Give the mark that this transaction has just set another outcome."""
    yield QUERIES.statement("amend", schema, consumer, key, mark.value, reason)


def newest(schema: str, consumer: str, key: str, sequence: int) -> Pipeline[bool]:
    """Whether `sequence` is above all that this consumer has seen of `key`; if so it is the last one now.

    Waits while another transaction moves the same key: order blocks only its key.
    """
    rows = yield QUERIES.statement("guard", schema, consumer, key, sequence)
    return bool(rows)


def is_past(schema: str, consumer: str, recorded: datetime) -> Pipeline[bool]:
    """Whether a message recorded then may have been handled although no mark stands: marks of its time have expired.

    Run it after `claim` found it fresh, in the same transaction, as a statement of its own.
    """
    rows = yield QUERIES.statement("low_water", schema, consumer)
    return bool(rows) and recorded < rows[0]["low_water"]


def pages(schema: str, *, before: datetime) -> Pipeline[int]:
    """How many pages an expiry has to go through: 0 where no mark is older than `before`."""
    (row,) = yield QUERIES.statement("pages", schema, before)
    return int(row["pages"])


def expire(schema: str, first: int, last: int, *, before: datetime) -> Pipeline[int]:
    """Delete a batch of marks older than `before` from the pages `first` to `last` (exclusive); how many.

    In the same statement each consumer's low-water mark moves up to the youngest mark that goes (and `SKEW`): from
    then on what was recorded before it is run no more without a mark. Marks of open rows of `work` and `quarantine`
    stay, whatever their age. It goes by pages, since an index by time tells nothing in a table that reuses its space.
    """
    rows = yield QUERIES.statement("expire", schema, first, last, before, _BATCH, SKEW)
    return len(rows)


def ensure(schema: str, marks: Sequence[tuple[str, UUID, str]]) -> Pipeline[None]:
    """Set a *quarantined* mark (consumer, key, reason) for each row that is released, unless a mark stands."""
    consumers, keys, reasons = ([mark[place] for mark in marks] for place in range(3))
    yield QUERIES.statement("ensure", schema, consumers, keys, reasons)


def _found(row: Mapping[str, Any]) -> Claim:
    return Claim.FRESH if row["fresh"] else _not_fresh(row)


def _not_fresh(row: Mapping[str, Any]) -> Claim:
    return Claim.DUPLICATE if row["had"] or row["standing"] is not None else Claim.BUSY
