"""The sole owner of the table ``subscription``, and of what makes a row of work a delivery."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad.sql import queries
from postroad.transport.topology import owner_of, replay_exchange
from postroad.work.wire import headers_to_json, kept

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from postroad.sql import Pipeline, Statement
    from postroad.transport.base import Outgoing

QUERIES: Final = queries("postroad.transport.postgres", "store.sql")

SUFFIX: Final = ":deliveries"
"""What a consumer's name has behind it where it names the queue of its deliveries. No consumer and no job may have a
colon in its name. It is a queue of its own, since a delivery and its own retry are open for the same key for a moment.
"""

_COUNTED: Final = 100_000

Subscriptions = frozenset[tuple[str, str]]
"""Pairs of consumer and event type."""


def deliveries_of(consumer: str) -> str:
    """The queue in `work` that holds the deliveries of `consumer`."""
    return f"{consumer}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What lies in one consumer's queue of deliveries; `running` of them are in somebody's hands."""

    consumer: str
    count: int
    running: int
    oldest: timedelta


def send(schema: str, batch: Sequence[Outgoing]) -> Statement:
    """Write a row of work per subscribed consumer; rows of ticket and ``consumers``, none where nobody subscribes.

    One statement: all of the batch or nothing, in its order. Repeating it while a delivery is open changes nothing;
    after that its consumer's inbox knows it.
    """
    headers = [headers_to_json(one.headers) if one.headers else "{}" for one in batch]
    return QUERIES.statement(
        "send", schema, [one.ticket for one in batch], [kept(one.message_id) for one in batch],
        [one.type for one in batch], [_target(one) for one in batch], [one.body for one in batch],
        [one.content_type for one in batch], headers, [one.exchange for one in batch],
        [one.routing_key for one in batch], SUFFIX,
    )  # fmt: skip


def _target(outgoing: Outgoing) -> str | None:
    """The one consumer to which it goes alone, if it does."""
    return outgoing.routing_key if outgoing.exchange == replay_exchange(owner_of(outgoing.type)) else None


def ack(schema: str, rows: Sequence[tuple[int, int]]) -> Statement:
    """Delete claimed deliveries, as pairs of id and token; the ids of those that were still ours."""
    return QUERIES.statement("ack", schema, [row[0] for row in rows], [row[1] for row in rows])


def subscriptions(schema: str, consumers: Iterable[str] | None = None) -> Pipeline[Subscriptions]:
    """Who subscribes to what, of `consumers` or of all."""
    rows = yield QUERIES.statement("subscriptions", schema, None if consumers is None else list(consumers))
    return frozenset((row["consumer"], row["event_type"]) for row in rows)


def subscribe(schema: str, consumers: Collection[str], wanted: Subscriptions) -> Pipeline[Subscriptions]:
    """Make `wanted` all that `consumers` subscribe to; what they did besides, and do no more. Safe to repeat."""
    pairs = sorted(wanted)
    names, types = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    yield QUERIES.statement("subscribe", schema, names, types)
    rows = yield QUERIES.statement("unsubscribe", schema, list(consumers), names, types)
    return frozenset((row["consumer"], row["event_type"]) for row in rows)


def retire(schema: str, consumer: str) -> Pipeline[tuple[int, int]]:
    """End every subscription of `consumer` and drop what waits for it; how many of either. Run it in a transaction.

    What is in somebody's hands stays. The log keeps the events.
    """
    gone = yield QUERIES.statement("unsubscribe", schema, [consumer], [], [])
    (row,) = yield QUERIES.statement("discard", schema, deliveries_of(consumer))
    return len(gone), int(row["count"])


def waiting(schema: str) -> Pipeline[list[Waiting]]:
    """What waits for each consumer, or is in its hands; a hundred thousand rows are counted at most."""
    rows = yield QUERIES.statement("waiting", schema, SUFFIX, _COUNTED)
    return [
        Waiting(row["queue"].removesuffix(SUFFIX), row["count"], row["running"], timedelta(seconds=row["oldest"]))
        for row in rows
    ]


def holding(schema: str, queues: Iterable[str]) -> Pipeline[frozenset[str]]:
    """Which of `queues` hold anything."""
    rows = yield QUERIES.statement("holding", schema, list(queues))
    return frozenset(row["queue"] for row in rows)
