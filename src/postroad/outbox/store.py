"""The dispatcher's statements on the table ``outbox``, and its reads of the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from postroad.leases import FENCE, fence
from postroad.outbox.flight import CONTENT_TYPE, Flight
from postroad.sql.statement import Queries
from postroad.work import store as work
from postroad.work.release import note_place
from postroad.work.wire import Wire

if TYPE_CHECKING:
    from postroad.failures import Verdict
    from postroad.leases import Lease
    from postroad.sql import Pipeline, Statement

BODY_MISSING: Final = "its body is missing from the log [PR508]"
"""The reason of a row without an event: such a row holds back no key, since nothing will cure it by itself."""

QUERIES: Final = Queries(
    files("postroad.outbox").joinpath("store.sql").read_text("utf-8").replace("{fence}", FENCE),
    source="postroad.outbox/store.sql",
)

Ranges = tuple[list[int], list[int], list[int]]
"""Shards, above which places, up to which."""

_CLASSES: Final = 5  # As many as the log has partitions by retention.


def fresh(schema: str, cursors: Mapping[int, int], *, each: int, limit: int) -> Statement:
    """Rows beyond the cursors, at most `each` of a shard."""
    return QUERIES.statement("fresh", schema, list(cursors), list(cursors.values()), each, limit)


def passing(
    schema: str, cursors: Mapping[int, int], routes: list[str], *, each: int, limit: int, ahead: int
) -> Statement:
    """Rows beyond the cursors, at most `each` of a shard, that are not of `routes`; and one for a shard without any.

    At most `ahead` rows of each shard are looked through for them.
    """
    return QUERIES.statement("passing", schema, list(cursors), list(cursors.values()), each, limit, routes, ahead)


def behind(schema: str, ranges: Ranges, route: str, *, but: list[int], limit: int) -> Statement:
    """Due rows of `route` in the `ranges`, passing over the places `but`."""
    return QUERIES.statement("behind", schema, *ranges, route, but, limit)


def refused(schema: str, shards: Iterable[int], route: str, *, but: list[int], limit: int) -> Statement:
    """Refused rows of `route`, whether or not their wait is over."""
    return QUERIES.statement("refused", schema, list(shards), route, but, BODY_MISSING, limit)


def between(schema: str, ranges: Ranges, *, but: list[int], routes: list[str], limit: int) -> Statement:
    """Due rows in the `ranges`, passing over the places `but` and the `routes`."""
    return QUERIES.statement("between", schema, *ranges, but, limit, routes)


def retries(schema: str, shards: Iterable[int], *, but: list[int], routes: list[str], limit: int) -> Statement:
    """Refused rows whose wait is over, passing over the places `but` and the `routes`."""
    return QUERIES.statement("retries", schema, list(shards), but, limit, routes)


def bodies(schema: str, rows: Sequence[Mapping[str, Any]]) -> Statement:
    """The events of `rows`, from the partitions that can hold them."""
    classes = sorted({row["retention"] for row in rows})
    padded = (classes * _CLASSES)[:_CLASSES] if len(classes) < _CLASSES else classes
    recorded = [row["recorded"] for row in rows]
    return QUERIES.statement("bodies", schema, *padded, min(recorded), max(recorded), [row["seq"] for row in rows])


def waiting(schema: str, shards: Sequence[int], *, limit: int) -> Statement:
    """The refused rows of `shards`."""
    return QUERIES.statement("waiting", schema, list(shards), limit, BODY_MISSING)


def clear(schema: str, flights: Sequence[Flight]) -> Statement:
    """Delete `flights`, those of them whose shard is still ours."""
    return QUERIES.statement("clear", schema, *_fenced(flights), *_rows(flights))


def charge(schema: str, flights: Sequence[Flight], waits: Sequence[timedelta]) -> Statement:
    """Charge `flights` one attempt each with their reason, those of them whose shard is still ours."""
    attempts, reasons = [flight.attempts + 1 for flight in flights], [flight.reason for flight in flights]
    seconds = [wait.total_seconds() for wait in waits]
    return QUERIES.statement("charge", schema, *_fenced(flights), *_rows(flights), attempts, reasons, seconds)


def let_go(schema: str, leases: Mapping[int, Lease], routes: list[str]) -> Statement:
    """Refused rows of `routes` wait no longer, in those of the shards that are still ours."""
    holder = next(iter(leases.values())).holder
    names, tokens = [lease.name for lease in leases.values()], [lease.token for lease in leases.values()]
    return QUERIES.statement("let_go", schema, names, tokens, holder, list(leases), routes, BODY_MISSING)


def quarantine(schema: str, flight: Flight, verdict: Verdict) -> Pipeline[bool]:
    """Move one row's event into quarantine, in a transaction of its own; whether its shard was still ours.

    What goes to one consumer alone has a queue of its own there: one row does not stand for another consumer's.
    """
    held = yield from fence(schema, [flight.lease])
    sent = flight.outgoing
    if not held or sent is None:
        return False
    gone = yield QUERIES.statement("remove", schema, flight.shard, flight.place)
    if gone:
        queue = sent.exchange if flight.target is None else f"{sent.exchange}:{flight.target}"
        wire = Wire(
            body=sent.body, content_type=CONTENT_TYPE, headers=sent.headers, exchange=sent.exchange,
            routing_key=sent.routing_key, event_type=sent.type,
        )  # fmt: skip
        yield from work.quarantine(
            schema, queue=queue, key=sent.message_id, wire=wire, verdict=verdict, kind="event",
            attempt=flight.attempts + 1,
        )  # fmt: skip
        yield from note_place(
            schema, queue=queue, key=sent.message_id, seq=flight.seq, recorded=flight.recorded,
            retention=flight.retention,
        )  # fmt: skip
    return True


def replan(schema: str) -> Statement:
    """Forget the plans of this connection; the next use of each statement makes a new one."""
    return QUERIES.statement("replan", schema)


def mark(schema: str) -> Statement:
    """A transaction number of our own."""
    return QUERIES.statement("mark", schema)


def state(schema: str, *, limit: int) -> Statement:
    """What waits, per route."""
    return QUERIES.statement("state", schema, limit)


def _fenced(flights: Collection[Flight]) -> tuple[Any, ...]:
    """The parameters of the fence, and the shards that its leases stand for."""
    leases: dict[int, Lease] = {flight.shard: flight.lease for flight in flights}
    holders = {lease.holder for lease in leases.values()}
    assert len(holders) == 1, "leases of one holder"  # the keeper has one identity for all that it holds
    names, tokens = [lease.name for lease in leases.values()], [lease.token for lease in leases.values()]
    return names, tokens, holders.pop(), list(leases)


def _rows(flights: Sequence[Flight]) -> tuple[list[int], list[int]]:
    return [flight.shard for flight in flights], [flight.place for flight in flights]
