"""The author's door for psycopg 3: publish and enqueue in a connection's open transaction, blocking or not."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar, overload
from uuid import UUID

from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import UsageError
from postroad.outbox.publish import Publish, by_schema, default_schema, outside_transaction, prepare, prepare_many
from postroad.outbox.stage import StagedEvent, stage
from postroad.outbox.unawaited import Publishing, UnawaitedPublish
from postroad.sql.connections import AsyncConnections
from postroad.sql.drive import drive, drive_sync
from postroad.sql.psycopg import AsyncPsycopgHand, PsycopgHand
from postroad.work import enqueue as work
from postroad.work.enqueue import Enqueue, Enqueued

A = TypeVar("A")

_LATE = "a publish that was awaited"  # The block may have ended between the call and its await.
_OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


@overload
def within(connection: Connection[Any], *, clock: Clock = ...) -> Within: ...
@overload
def within(connection: AsyncConnection[Any], *, clock: Clock = ...) -> AsyncWithin: ...
def within(connection: Connection[Any] | AsyncConnection[Any], *, clock: Clock = SYSTEM_CLOCK) -> Within | AsyncWithin:
    """Publish and enqueue in the transaction of `connection`: all of it commits or rolls back with it.

    Outside autocommit a connection is always in a transaction: where none has begun, the publish begins it, as any
    statement would. In autocommit there must be a block: ``with connection.transaction():``.

    On a `Connection` a publish stages at once and returns; on an `AsyncConnection` it is awaited. Nothing needs to
    run: no App, no broker, no other process. `clock` gives identifiers and times; tests move it.

    Raises:
        UsageError: PR107, `connection` is not a psycopg connection (a pool is not one: take one from it).
    """
    if isinstance(connection, Connection):
        return Within(connection, clock)
    given: object = connection  # Untyped code may hand in anything.
    if not isinstance(given, AsyncConnection):
        raise UsageError("PR107", f"within() takes a psycopg connection, not {_of(given)}")
    return AsyncWithin(given, clock)


def _of(given: object) -> str:
    kind = type(given)
    other = (kind.__module__ or "").partition(".")[0] == "asyncpg" and hasattr(given, "is_in_transaction")
    remedy = "its door is postroad.asyncpg.within" if other else "take one from the pool"
    return f"{kind.__module__}.{kind.__qualname__}; {remedy}"


class Within:
    """The transaction of one blocking psycopg connection, to publish and enqueue in; made by `within`."""

    __slots__ = ("_clock", "_connection")

    def __init__(self, connection: Connection[Any], clock: Clock) -> None:
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
    ) -> UUID:
        """Stage one event in the transaction, in one round trip, and return the event's id.

        `event` is an instance of a class that its producer declared. `key` (at most 255 bytes) keeps events of one
        thing in order; `sequence` (0 to 2^63-1) is their number within the key, for consumers with ``order="latest"``;
        `occurred_at` is when it happened (aware; now by default). `correlation` names the story that it belongs to:
        inside a handler that of the handled event, which is also its cause; elsewhere the new event's own id.

        The event is sent after the commit, at least once, with this id for ever. A crash before the commit leaves
        nothing; publishing again after an error is a new event. An error from the database leaves the transaction
        failed, as any statement's would.

        Raises:
            UsageError: before anything is sent: PR105, the connection is in autocommit and no transaction is open;
                PR109, the class is not declared; PR107, a value is not valid; PR106, the payload is over its limit.
        """
        _check(self._connection, "a publish")
        schema, row = prepare(
            event,
            key=key,
            sequence=sequence,
            occurred_at=occurred_at,
            correlation=correlation,
            clock=self._clock,
        )
        drive_sync(stage(schema, [row]), PsycopgHand(self._connection))
        return row.id

    def publish_many(self, events: Sequence[object]) -> list[UUID]:
        """Stage several events in their order, in one round trip (per 2,000 events, or 8 MiB); their ids.

        Each is an event, or a `Publish` with its options. All of them are checked before anything is sent.

        Raises:
            UsageError: as `publish` does, if one of them is not valid.
        """
        _check(self._connection, "a publish")
        prepared = prepare_many(events, clock=self._clock)
        hand = PsycopgHand(self._connection)
        for schema, rows in by_schema(prepared):
            drive_sync(stage(schema, rows), hand)
        return [row.id for _, row in prepared]

    def enqueue(
        self,
        job: Callable[[A, Any], Any],
        request: A,
        *,
        run_at: datetime | None = None,
        priority: int = 0,
        queue: str | None = None,
        unique: str | None = None,
    ) -> Enqueued:
        """Leave one job in the open transaction, in one round trip; what became of it.

        `job` is a function decorated with `@job`, `request` what it is given. It runs at least once after the commit,
        not before `run_at` (aware; at once by default), lower `priority` first (-32,768 to 32,767). It waits in
        `queue`, by default the job's own; another is that of some job of the same App, else nobody ever looks there.
        While a job of that queue is open (scheduled, ready, running or waiting) with the same `unique` key, of any
        length and alphabet, nothing is written and ``new`` is False; once that one is finished or in quarantine the key
        is free again. An open transaction that has written the key is waited for. Inside a handler it carries the
        handled event on as its cause.

        A crash before the commit leaves nothing; enqueueing again after an error is another job, unless it is unique.

        Raises:
            UsageError: before anything is sent: PR105, the connection is in autocommit and no transaction is
                open; PR101, `job` is not one; PR107, the request
                does not fit it or an option is not valid; PR106, the request is over its limit.
        """
        _check(self._connection, "an enqueue")
        row = work.prepare(job, request, run_at=run_at, priority=priority, queue=queue, unique=unique)
        return drive_sync(work.enqueue(default_schema(), [row]), PsycopgHand(self._connection))[0]

    def enqueue_many(self, jobs: Sequence[Enqueue[Any]]) -> list[Enqueued]:
        """Leave several jobs in their order, in one round trip (per 2,000 jobs, or 8 MiB); what became of each.

        Each is an `Enqueue` with its options. All of them are checked before anything is sent. Of two with one unique
        key the first is written.

        Raises:
            UsageError: as `enqueue` does, if one of them is not valid.
        """
        _check(self._connection, "an enqueue")
        return drive_sync(work.enqueue(default_schema(), work.prepare_many(jobs)), PsycopgHand(self._connection))


class AsyncWithin:
    """The transaction of one asynchronous psycopg connection, to publish and enqueue in; made by `within`."""

    __slots__ = ("_clock", "_connection")

    def __init__(self, connection: AsyncConnection[Any], clock: Clock) -> None:
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
        """Stage one event in the transaction; await it for the event's id. All else as `Within.publish`.

        Raises:
            UsageError: at the call, before anything is sent, as `Within.publish`; PR105 also when it is awaited after
                its transaction ended.
        """
        _check(self._connection, "a publish")
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
        """Stage several events in their order; await it for their ids. All else as `Within.publish_many`.

        Raises:
            UsageError: at the call, as `publish` does, if one of them is not valid.
        """
        _check(self._connection, "a publish")
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
        """Leave one job in the transaction; await it for what became of it. All else as `Within.enqueue`.

        Raises:
            UsageError: at the call, before anything is sent, as `Within.enqueue`; PR105 also when it is awaited after
                its transaction ended.
        """
        _check(self._connection, "an enqueue")
        row = work.prepare(job, request, run_at=run_at, priority=priority, queue=queue, unique=unique)
        return Publishing(self._enqueue_one(row), row.name, "enqueue")

    def enqueue_many(self, jobs: Sequence[Enqueue[Any]]) -> Coroutine[Any, Any, list[Enqueued]]:
        """Leave several jobs in their order; await it for what became of each. All else as `Within.enqueue_many`.

        Raises:
            UsageError: at the call, as `enqueue` does, if one of them is not valid.
        """
        _check(self._connection, "an enqueue")
        rows = work.prepare_many(jobs)
        return Publishing(self._enqueue(rows), rows[0].name if rows else "nothing", "enqueue")

    async def _stage_one(self, schema: str, row: StagedEvent) -> UUID:
        _check(self._connection, _LATE)
        await drive(stage(schema, [row]), AsyncPsycopgHand(self._connection))
        return row.id

    async def _stage_many(self, prepared: list[tuple[str, StagedEvent]]) -> list[UUID]:
        _check(self._connection, _LATE)
        hand = AsyncPsycopgHand(self._connection)
        for schema, rows in by_schema(prepared):
            await drive(stage(schema, rows), hand)
        return [row.id for _, row in prepared]

    async def _enqueue_one(self, row: work.NewJob) -> Enqueued:
        return (await self._enqueue([row]))[0]

    async def _enqueue(self, rows: list[work.NewJob]) -> list[Enqueued]:
        _check(self._connection, "an enqueue that was awaited")
        return await drive(work.enqueue(default_schema(), rows), AsyncPsycopgHand(self._connection))


def _check(connection: Connection[Any] | AsyncConnection[Any], what: str) -> None:
    if not connection.autocommit or connection.info.transaction_status in _OPEN:
        return
    # In pipeline mode the status of what was sent is not known yet; psycopg's own count of open blocks is.
    if connection.info.transaction_status is TransactionStatus.ACTIVE and getattr(
        connection, "_num_transactions", False
    ):
        return
    word = "async with" if isinstance(connection, AsyncConnection) else "with"
    raise outside_transaction(what, remedy=f"open one: `{word} connection.transaction():`")


__all__ = ["AsyncConnections", "AsyncWithin", "Enqueue", "Enqueued", "Publish", "UnawaitedPublish", "Within", "within"]
