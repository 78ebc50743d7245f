"""What every author's door does before it touches a connection: an event becomes the row to stage."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

from postroad.errors import UsageError
from postroad.events.attributes import MAX_SEQUENCE, text_problem
from postroad.events.cause import current_cause
from postroad.events.envelope import encode, key_hash, shard_of
from postroad.events.event_type import event_type_of
from postroad.outbox.stage import StagedEvent

if TYPE_CHECKING:
    from postroad.clock import Clock


@dataclass(frozen=True, slots=True)
class Publish:
    """An event with its options, for `publish_many`; the options are those of `publish`."""

    event: object
    key: str | None = None
    sequence: int | None = None
    occurred_at: datetime | None = None
    correlation: str | None = None


def prepare(
    event: object,
    *,
    key: str | None,
    sequence: int | None,
    occurred_at: datetime | None,
    correlation: str | None,
    clock: Clock,
) -> tuple[str, StagedEvent]:
    """The schema and the row of one publish: identity, times and cause are settled here, and the bytes written.

    Raises:
        UsageError: PR109, the event is not declared; PR107, an option or the payload is not valid; PR106, the payload
            is over its limit.
    """
    event_type = event_type_of(event)
    _check(event_type.type, key, sequence, correlation)
    recorded = clock.now()
    occurred = recorded if occurred_at is None else _aware(event_type.type, occurred_at)
    identity = clock.new_id()
    cause = current_cause()
    story = correlation or (str(identity) if cause is None else cause.correlation)
    causation = None if cause is None else cause.causation
    envelope = encode(
        event_type,
        event,
        id=identity,
        occurred=occurred,
        recorded=recorded,
        correlation=story,
        causation=causation,
        key=key,
        sequence=sequence,
    )
    hashed = None if key is None else key_hash(key)
    return event_type.producer.schema or default_schema(), StagedEvent(
        identity,
        event_type.type,
        event_type.version,
        key,
        sequence,
        occurred,
        recorded,
        story,
        causation,
        event_type.retention,
        envelope,
        event_type.routing_key,
        None if hashed is None else shard_of(hashed),
        hashed,
    )


def prepare_many(events: Sequence[object], *, clock: Clock) -> list[tuple[str, StagedEvent]]:
    """`prepare` for events in their order, each plain or a `Publish` with its options.

    Raises:
        UsageError: one of them is not valid.
    """
    return [
        prepare(
            one.event,
            key=one.key,
            sequence=one.sequence,
            occurred_at=one.occurred_at,
            correlation=one.correlation,
            clock=clock,
        )
        for one in (event if isinstance(event, Publish) else Publish(event) for event in events)
    ]


def by_schema(prepared: Iterable[tuple[str, StagedEvent]]) -> Iterator[tuple[str, list[StagedEvent]]]:
    """The rows in their order, as runs that share a schema; nearly always one."""
    for schema, run in groupby(prepared, key=lambda pair: pair[0]):
        yield schema, [row for _, row in run]


@cache
def default_schema() -> str:
    """The schema of producers that name none: POSTROAD_SCHEMA as it was at the first publish, else ``postroad``."""
    return os.environ.get("POSTROAD_SCHEMA") or "postroad"


def outside_transaction(what: str, *, remedy: str) -> UsageError:
    """The error of a publish outside a transaction, which would commit apart from the author's state."""
    return UsageError("PR105", f"{what} outside a transaction would stand alone; {remedy}")


def _check(name: str, key: object, sequence: object, correlation: object) -> None:
    for option, value in (("key", key), ("correlation", correlation)):
        if value is not None:
            problem = text_problem(value) if isinstance(value, str) else "is not text"
            if problem:
                raise UsageError("PR107", f"publish of {name}: {option} {problem}")
    if sequence is not None and not (type(sequence) is int and 0 <= sequence <= MAX_SEQUENCE):
        raise UsageError("PR107", f"publish of {name}: sequence is not a whole number from 0 to 2^63-1")


def _aware(name: str, moment: object) -> datetime:
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise UsageError("PR107", f"publish of {name}: occurred_at is not a time with a zone; give an aware datetime")
    return moment
