"""The author's door for SQLAlchemy 2: publish and enqueue in the transaction of a session or a connection."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar, overload
from uuid import UUID

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import UsageError
from postroad.outbox.publish import Publish, by_schema, default_schema, outside_transaction, prepare, prepare_many
from postroad.outbox.stage import StagedEvent, stage
from postroad.outbox.unawaited import Publishing, UnawaitedPublish
from postroad.sql.drive import SyncHand, drive_sync
from postroad.sql.sessions import AsyncSessions, Sessions
from postroad.sql.sqlalchemy import driver_of, hand_within, in_autocommit
from postroad.work import enqueue as work
from postroad.work.enqueue import Enqueue, Enqueued

A = TypeVar("A")
T = TypeVar("T")

Blocking: TypeAlias = "Session | scoped_session[Any] | Connection"
Asynchronous: TypeAlias = "AsyncSession | async_scoped_session[Any] | AsyncConnection"

_LATE: Final = "a publish that was awaited"  # The block may have ended between the call and its await.
_AUTOCOMMIT: Final = "its isolation level is AUTOCOMMIT; leave it at another: `isolation_level='READ COMMITTED'`"


@overload
def within(on: Blocking, *, bind: Engine | None = ..., clock: Clock = ...) -> Within: ...
@overload
def within(on: Asynchronous, *, bind: AsyncEngine | None = ..., clock: Clock = ...) -> AsyncWithin: ...
def within(
    on: Blocking | Asynchronous, *, bind: Engine | AsyncEngine | None = None, clock: Clock = SYSTEM_CLOCK
) -> Within | AsyncWithin:
    """Publish and enqueue in the transaction of a session or connection: all of it commits or rolls back with it.

    A session first flushes what is pending. Where no transaction has begun, the publish begins it, as any statement
    would; a savepoint (``begin_nested()``) that is rolled back takes its events along. With a `Session` or `Connection`
    a publish stages at once and returns, with an `AsyncSession` or `AsyncConnection` it is awaited. In event hooks and
    ``run_sync``, which see the blocking one of an asynchronous pair, use that. Drivers: psycopg and asyncpg.

    `bind` is the engine whose database has Postroad's tables, for a session with several. Nothing needs to run: no
    App, no broker, no other process. `clock` gives identifiers and times; tests move it.

    Raises:
        UsageError: PR107, `on` is not one of these (an engine or a session's maker is not), its driver is another, or
            a session with several binds is given without `bind`.
    """
    given: object = on() if isinstance(on, scoped_session | async_scoped_session) else on
    if isinstance(given, Session | Connection):
        return Within(_Ground(given, bind), clock)
    if isinstance(given, AsyncSession):
        return AsyncWithin(given, _Ground(given.sync_session, bind), clock)
    if isinstance(given, AsyncConnection):
        if given.sync_connection is None:
            raise UsageError("PR107", "within() was given a connection that is not open; `async with engine.connect()`")
        return AsyncWithin(given, _Ground(given.sync_connection, bind), clock)
    raise UsageError("PR107", f"within() takes a session or connection of SQLAlchemy's, not {_of(given)}")


def _of(given: object) -> str:
    kind = type(given)
    origin = (kind.__module__ or "").partition(".")[0]
    remedy = "open one from it"
    if origin in {"asyncpg", "psycopg"}:
        remedy = f"its door is postroad.{origin}.within"
    return f"{kind.__module__}.{kind.__qualname__}; {remedy}"


class _Ground:
    """A session or connection, in its blocking form, and which of a session's databases is meant."""

    __slots__ = ("_bind", "_on")

    def __init__(self, on: Session | Connection, bind: Engine | AsyncEngine | None) -> None:
        self._on = on
        self._bind: Engine | Connection | None = bind.sync_engine if isinstance(bind, AsyncEngine) else bind
        if isinstance(on, Connection):
            if bind is not None:
                raise UsageError("PR107", "within() takes bind= with a session; a connection has one database")
            driver_of(on.dialect)
            return
        self._bind = self._bind or _only_bind(on)
        driver_of(self._bind.dialect)

    def check(self, what: str) -> object:
        """The transaction that is open now, if one is.

        Raises:
            UsageError: PR105, none is and none can begin, or it is known to be in autocommit.
        """
        on = self._on
        transaction = on.get_transaction()
        if transaction is not None:
            return transaction
        if isinstance(on, Session):
            if not on.autobegin:
                raise outside_transaction(what, remedy="open one: `with session.begin():`")
        elif on.closed:
            raise outside_transaction(what, remedy="the connection is closed: open another")
        elif not on.invalidated and in_autocommit(on):
            raise outside_transaction(what, remedy=_AUTOCOMMIT)
        return None

    def opened(self, what: str) -> SyncHand:
        """Flush, and give the hand for the transaction; it begins here at the latest."""
        on = self._on
        connection = on.connection(bind_arguments={"bind": self._bind}) if isinstance(on, Session) else on
        if in_autocommit(connection):
            raise outside_transaction(what, remedy=_AUTOCOMMIT)
        if isinstance(on, Session) and not getattr(on, "_flushing", False):  # Else we are in a hook of the flush.
            on.flush()
        return hand_within(connection)

    def stage(self, prepared: list[tuple[str, StagedEvent]]) -> list[UUID]:
        """Write the events."""
        hand = self.opened("a publish")
        for schema, rows in by_schema(prepared):
            drive_sync(stage(schema, rows), hand)
        return [row.id for _, row in prepared]

    def enqueue(self, rows: list[work.NewJob]) -> list[Enqueued]:
        """Write the jobs."""
        return drive_sync(work.enqueue(default_schema(), rows), self.opened("an enqueue"))


def _only_bind(session: Session) -> Engine | Connection:
    """The one database of `session`; it has several where it was given `binds`, or finds them itself."""
    # Under two names: that of SQLAlchemy 2.1, and that of 2.0.
    named: Mapping[Any, Engine | Connection] = getattr(session, "binds", getattr(session, "_Session__binds", {}))
    binds = {id(one): one for one in (session.bind, *named.values()) if one is not None}
    if len(binds) > 1 or type(session).get_bind is not Session.get_bind:
        raise UsageError("PR107", "the session has several binds; name one: `within(session, bind=engine)`")
    for one in binds.values():
        return one
    try:
        return session.get_bind()
    except UnboundExecutionError as error:
        raise UsageError("PR107", "the session has no bind; name one: `within(session, bind=engine)`") from error


class Within:
    """The transaction of a session or connection, to publish and enqueue in; made by `within`."""

    __slots__ = ("_clock", "_ground")

    def __init__(self, ground: _Ground, clock: Clock) -> None:
        """Publish on `ground`."""
        self._ground = ground
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
        """Flush, stage one event in the transaction, in one round trip, and return the event's id.

        `event` is an instance of a class that its producer declared. `key` (at most 255 bytes) keeps events of one
        thing in order; `sequence` (0 to 2^63-1) is their number within the key, for consumers with ``order="latest"``;
        `occurred_at` is when it happened (aware; now by default). `correlation` names the story that it belongs to:
        inside a handler that of the handled event, which is also its cause; elsewhere the new event's own id.

        The event is sent after the commit, at least once, with this id for ever. A crash before the commit leaves
        nothing; publishing again after an error is a new event. An error from the database leaves the transaction
        failed, as any statement's would, and comes out as the driver's own.

        Raises:
            UsageError: before anything is sent: PR105, the isolation level is AUTOCOMMIT, or no transaction is open
                and none may begin; PR109, the class is not declared; PR107, a value is not valid; PR106, the payload
                is over its limit.
            SchemaError: PR202, Postroad's tables are not in this database.
            AccessRefused: PR303, the connection's role may not publish.
        """
        self._ground.check("a publish")
        prepared = prepare(
            event,
            key=key,
            sequence=sequence,
            occurred_at=occurred_at,
            correlation=correlation,
            clock=self._clock,
        )
        return self._ground.stage([prepared])[0]

    def publish_many(self, events: Sequence[object]) -> list[UUID]:
        """Stage several events in their order, in one round trip (per 2,000 events, or 8 MiB); their ids.

        Each is an event, or a `Publish` with its options. All of them are checked before anything is sent.

        Raises:
            UsageError: as `publish` does, if one of them is not valid.
        """
        self._ground.check("a publish")
        return self._ground.stage(prepare_many(events, clock=self._clock))

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
        """Flush, and leave one job in the transaction, in one round trip; what became of it.

        The options, and what is promised, are those of `postroad.psycopg.Within.enqueue`: at least one run after the
        commit, not before `run_at`, and nothing new while a job of that queue with the same `unique` key is open.

        Raises:
            UsageError: before anything is sent: PR105, as `publish`; PR101, `job` is not one; PR107, the request does
                not fit it or an option is not valid; PR106, the request is over its limit.
        """
        self._ground.check("an enqueue")
        row = work.prepare(job, request, run_at=run_at, priority=priority, queue=queue, unique=unique)
        return self._ground.enqueue([row])[0]

    def enqueue_many(self, jobs: Sequence[Enqueue[Any]]) -> list[Enqueued]:
        """Leave several jobs in their order, in one round trip (per 2,000 jobs, or 8 MiB); what became of each.

        Each is an `Enqueue` with its options. All of them are checked before anything is sent. Of two with one unique
        key the first is written.

        Raises:
            UsageError: as `enqueue` does, if one of them is not valid.
        """
        self._ground.check("an enqueue")
        return self._ground.enqueue(work.prepare_many(jobs))


class AsyncWithin:
    """The transaction of an asynchronous session or connection, to publish and enqueue in; made by `within`."""

    __slots__ = ("_clock", "_ground", "_on")

    def __init__(self, on: AsyncSession | AsyncConnection, ground: _Ground, clock: Clock) -> None:
        """Publish on `on`, whose blocking form is `ground`."""
        self._on = on
        self._ground = ground
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
        """Flush, and stage one event in the transaction; await it for the event's id. All else as `Within.publish`.

        Raises:
            UsageError: at the call, before anything is sent, as `Within.publish`; PR105 also when it is awaited after
                its transaction ended, or where a session's isolation level turns out to be AUTOCOMMIT.
        """
        began = self._ground.check("a publish")
        prepared = prepare(
            event,
            key=key,
            sequence=sequence,
            occurred_at=occurred_at,
            correlation=correlation,
            clock=self._clock,
        )
        return Publishing(self._first(lambda: self._ground.stage([prepared]), began), prepared[1].type)

    def publish_many(self, events: Sequence[object]) -> Coroutine[Any, Any, list[UUID]]:
        """Stage several events in their order; await it for their ids. All else as `Within.publish_many`.

        Raises:
            UsageError: at the call, as `publish` does, if one of them is not valid.
        """
        began = self._ground.check("a publish")
        prepared = prepare_many(events, clock=self._clock)
        name = prepared[0][1].type if prepared else "nothing"
        return Publishing(self._run(lambda: self._ground.stage(prepared), began), name)

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
        """Flush, and leave one job in the transaction; await it for what became of it. All else as `Within.enqueue`.

        Raises:
            UsageError: at the call, before anything is sent, as `Within.enqueue`; awaited, as `publish`.
        """
        began = self._ground.check("an enqueue")
        row = work.prepare(job, request, run_at=run_at, priority=priority, queue=queue, unique=unique)
        return Publishing(self._first(lambda: self._ground.enqueue([row]), began), row.name, "enqueue")

    def enqueue_many(self, jobs: Sequence[Enqueue[Any]]) -> Coroutine[Any, Any, list[Enqueued]]:
        """Leave several jobs in their order; await it for what became of each. All else as `Within.enqueue_many`.

        Raises:
            UsageError: at the call, as `enqueue` does, if one of them is not valid.
        """
        began = self._ground.check("an enqueue")
        rows = work.prepare_many(jobs)
        name = rows[0].name if rows else "nothing"
        return Publishing(self._run(lambda: self._ground.enqueue(rows), began), name, "enqueue")

    async def _first(self, write: Callable[[], list[T]], began: object) -> T:
        return (await self._run(write, began))[0]

    async def _run(self, write: Callable[[], list[T]], began: object) -> list[T]:
        now = self._ground.check(_LATE)
        if began is not None and now is not began:
            raise outside_transaction(_LATE, remedy="await it before its transaction ends")
        return await self._on.run_sync(lambda _: write())


__all__ = [
    "AsyncSessions",
    "AsyncWithin",
    "Enqueue",
    "Enqueued",
    "Publish",
    "Sessions",
    "UnawaitedPublish",
    "Within",
    "within",
]
