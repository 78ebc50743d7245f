"""The author's door for asyncpg: publish events in the transaction that is open on a connection."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import UsageError
from postroad.outbox.publish import Publish, by_schema, outside_transaction, prepare, prepare_many
from postroad.outbox.stage import StagedEvent, stage
from postroad.outbox.unawaited import Publishing, UnawaitedPublish
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.drive import drive
from postroad.sql.transactions import AsyncpgTransactions

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

_LATE = "a publish that was awaited"  # The block may have ended between the call and its await.
_REMEDY = "open one: `async with connection.transaction():`"
_CLOSED = "the connection is closed: acquire another"


def within(connection: Connection, *, clock: Clock = SYSTEM_CLOCK) -> Within:
    """Publish in the transaction that is open on `connection`: what is staged commits or rolls back with it.

    Nothing needs to run: no App, no broker, no other process. `clock` gives identifiers and times; tests move it.

    Raises:
        UsageError: PR107, `connection` is not an asyncpg connection (a pool is not one: acquire from it).
    """
    if not hasattr(connection, "is_in_transaction"):
        message = f"within() takes an asyncpg connection, not {type(connection).__name__}; acquire one from the pool"
        raise UsageError("PR107", message)
    return Within(connection, clock)


class Within:
    """The open transaction of one asyncpg connection, to publish in; made by `within`."""

    __slots__ = ("_clock", "_connection")

    def __init__(self, connection: Connection, clock: Clock) -> None:
        """Publish on `connection`."""
        self._connection = connection
        self._clock = clock

    def publish(
        self,
        event: object,
        *,
        key: str | None = None,
        sequence: int | None = None,
        occurred_at: datetime | None = None,
        correlation: str | None = None,
    ) -> Coroutine[Any, Any, UUID]:
        """Stage one event in the open transaction, in one round trip; await it for the event's id.

        `event` is an instance of a class that its producer declared. `key` (at most 255 bytes) keeps events of one
        thing in order; `sequence` (0 to 2^63-1) is their number within the key, for consumers with ``order="latest"``;
        `occurred_at` is when it happened (aware; now by default). `correlation` names the story that it belongs to:
        inside a handler that of the handled event, which is also its cause; elsewhere the new event's own id.

        The event is sent after the commit, at least once, with this id for ever. A crash before the commit leaves
        nothing; publishing again after an error is a new event. An error from the database leaves the transaction
        failed, as any statement's would.

        Raises:
            UsageError: at once, before anything is sent: PR105, no transaction is open; PR109, the class is not
                declared; PR107, a value is not valid; PR106, the payload is over its limit.
            SchemaError: PR202, awaited: Postroad's tables are not in this database.
            AccessRefused: PR303, awaited: the connection's role may not publish.
        """
        self._check("a publish")
        schema, row = prepare(
            event,
            key=key,
            sequence=sequence,
            occurred_at=occurred_at,
            correlation=correlation,
            clock=self._clock,
        )
        return Publishing(self._stage_one(schema, row), row.type)

    def publish_many(self, events: Sequence[object]) -> Coroutine[Any, Any, list[UUID]]:
        """Stage several events in their order, in one round trip (per 2,000 events, or 8 MiB); await it for their ids.

        Each is an event, or a `Publish` with its options. All of them are checked before anything is sent.

        Raises:
            UsageError: at once, as `publish` does, if one of them is not valid.
        """
        self._check("a publish")
        prepared = prepare_many(events, clock=self._clock)
        return Publishing(self._stage_many(prepared), prepared[0][1].type if prepared else "nothing")

    async def _stage_one(self, schema: str, row: StagedEvent) -> UUID:
        self._check(_LATE)
        await drive(stage(schema, [row]), AsyncpgHand(self._connection))
        return row.id

    async def _stage_many(self, prepared: list[tuple[str, StagedEvent]]) -> list[UUID]:
        self._check(_LATE)
        hand = AsyncpgHand(self._connection)
        for schema, rows in by_schema(prepared):
            await drive(stage(schema, rows), hand)
        return [row.id for _, row in prepared]

    def _check(self, what: str) -> None:
        if not self._connection.is_in_transaction():
            raise outside_transaction(what, remedy=_CLOSED if self._connection.is_closed() else _REMEDY)


__all__ = ["AsyncpgTransactions", "Publish", "UnawaitedPublish", "Within", "within"]
