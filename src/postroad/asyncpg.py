"""The author's door for asyncpg: publish events and enqueue jobs in the transaction that is open on a connection."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import UsageError
from postroad.outbox.publish import Publish, by_schema, default_schema, outside_transaction, prepare, prepare_many
from postroad.outbox.stage import StagedEvent, stage
from postroad.outbox.unawaited import Publishing, UnawaitedPublish
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.drive import drive
from postroad.sql.transactions import AsyncpgTransactions
from postroad.work import enqueue as work
from postroad.work.enqueue import Enqueue, Enqueued

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

A = TypeVar("A")

_LATE = "a publish that was awaited"  # The block may have ended between the call and its await.
_REMEDY = "open one: `async with connection.transaction():`"
_CLOSED = "the connection is closed: acquire another"


def within(connection: Connection, *, clock: Clock = SYSTEM_CLOCK) -> Within:
    """Publish and enqueue in the transaction that is open on `connection`: all of it commits or rolls back with it.

    Nothing needs to run: no App, no broker, no other process. `clock` gives identifiers and times; tests move it.

    Raises:
        UsageError: PR107, `connection` is not an asyncpg connection (a pool is not one: acquire from it).
    """
    if not hasattr(connection, "is_in_transaction"):
        kind = type(connection)
        other = any(
            base.__module__.partition(".")[0] == "psycopg" and "Connection" in base.__name__ for base in kind.__mro__
        )
        remedy = "its door is postroad.psycopg.within" if other else "acquire one from the pool"
        message = f"within() takes an asyncpg connection, not {kind.__module__}.{kind.__qualname__}; {remedy}"
        raise UsageError("PR107", message)
    return Within(connection, clock)


class Within:
    """The open transaction of one asyncpg connection, to publish and enqueue in; made by `within`."""

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

    def enqueue(
        self,
        job: Callable[[A, Any], Any],
        request: A,
        *,
        run_at: datetime | None = None,
        priority: int = 0,
        queue: str | None = None,
        unique: str | None = None,
    ) -> Coroutine[Any, Any, Enqueued]:
        """Leave one job in the open transaction, in one round trip; await it for what became of it.

        `job` is a function decorated with `@job`, `request` what it is given. It runs at least once after the commit,
        not before `run_at` (aware; at once by default), lower `priority` first (-32,768 to 32,767). It waits in
        `queue`, by default the job's own; another is that of some job of the same App, else nobody ever looks there.
        While a job of that queue is open (scheduled, ready, running or waiting) with the same `unique` key, of any
        length and alphabet, nothing is written and ``new`` is False; once that one is finished or in quarantine the key
        is free again. An open transaction that has written the key is waited for. Inside a handler it carries the
        handled event on as its cause.

        A crash before the commit leaves nothing; enqueueing again after an error is another job, unless it is unique.

        Raises:
            UsageError: at once, before anything is sent: PR105, no transaction is open; PR101, `job` is not one; PR107,
                the request does not fit it or an option is not valid; PR106, the request is over its limit.
            SchemaError: PR202, awaited: Postroad's tables are not in this database.
            AccessRefused: PR303, awaited: the connection's role may not enqueue.
        """
        self._check("an enqueue")
        row = work.prepare(job, request, run_at=run_at, priority=priority, queue=queue, unique=unique)
        return Publishing(self._enqueue_one(row), row.name, "enqueue")

    def enqueue_many(self, jobs: Sequence[Enqueue[Any]]) -> Coroutine[Any, Any, list[Enqueued]]:
        """Leave several jobs in their order, in one round trip (per 2,000, or 8 MiB); await what became of each.

        Each is an `Enqueue` with its options. All of them are checked before anything is sent. Of two with one unique
        key the first is written.

        Raises:
            UsageError: at once, as `enqueue` does, if one of them is not valid.
        """
        self._check("an enqueue")
        rows = work.prepare_many(jobs)
        return Publishing(self._enqueue(rows), rows[0].name if rows else "nothing", "enqueue")

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

    async def _enqueue_one(self, row: work.NewJob) -> Enqueued:
        return (await self._enqueue([row]))[0]

    async def _enqueue(self, rows: list[work.NewJob]) -> list[Enqueued]:
        self._check("an enqueue that was awaited")
        return await drive(work.enqueue(default_schema(), rows), AsyncpgHand(self._connection))

    def _check(self, what: str) -> None:
        if not self._connection.is_in_transaction():
            raise outside_transaction(what, remedy=_CLOSED if self._connection.is_closed() else _REMEDY)


__all__ = ["AsyncpgTransactions", "Enqueue", "Enqueued", "Publish", "UnawaitedPublish", "Within", "within"]
