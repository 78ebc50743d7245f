"""Handlers' transactions as sessions of SQLAlchemy's, on connections of the author's own engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from postroad.errors import Unavailable, UsageError
from postroad.sql.drive import BEGIN, COMMIT, ROLLBACK, Block, BlockUnit, SyncHand, ended_by_handler, kept
from postroad.sql.handed_session import FINAL, Handing, Watch, drop, finish, guarded, watched
from postroad.sql.sqlalchemy import ASYNCPG, PSYCOPG, driver_of, sync_hand
from postroad.sql.threads import ThreadTransactions, Wire

if TYPE_CHECKING:
    import psycopg

    from postroad.owner import Owner

S = TypeVar("S", bound=AsyncSession)
B = TypeVar("B", bound=Session)


class AsyncSessions(Generic[S]):
    """``on=AsyncSessions(maker)``: each ``async def`` handler gets an `AsyncSession` of its own, from `maker`.

    What it adds is flushed when the handler returns, and commits with its inbox row; deliveries may share a
    transaction, never a session. After an error the session's objects are dropped, and nothing of it is written. It
    cannot be committed, rolled back or closed by the handler (PR111): raise an error, or nest ``begin_nested()``.
    Session and engine events happen as usual, but for those of the commit, which is not the session's.

    The engine is the author's, with a connection for each handler that may run at once and one for a group
    (`pool_size`), in the same database as the App's: a process does not start with any other (PR101). A job's
    ``run.transaction()`` gives such a session too.
    """

    threaded: ClassVar[bool] = False

    def __init__(self, maker: async_sessionmaker[S]) -> None:
        """Make sessions by `maker`.

        Raises:
            UsageError: PR101, it has not exactly one engine, or its driver is not asyncpg or psycopg.
        """
        engine = maker.kw.get("bind")
        if not isinstance(engine, AsyncEngine) or maker.kw.get("binds"):
            raise UsageError("PR101", "AsyncSessions takes async_sessionmaker(engine), with one engine and no binds")
        driver_of(engine.dialect)
        self._maker = maker
        self._engine = engine

    def transactions(self, url: str, owner: Owner, *, size: int, name: str) -> AsyncSessionTransactions[S]:  # noqa: ARG002
        """See `Form.transactions`."""
        return AsyncSessionTransactions(self._maker, self._engine)


class Sessions(Generic[B]):
    """``on=Sessions(maker)``: each ``def`` handler gets a `Session` of its own, on its thread; see `AsyncSessions`."""

    threaded: ClassVar[bool] = True

    def __init__(self, maker: sessionmaker[B]) -> None:
        """Make sessions by `maker`.

        Raises:
            UsageError: PR101, it has not exactly one engine, or its driver is not psycopg.
        """
        engine = maker.kw.get("bind")
        if not isinstance(engine, Engine) or maker.kw.get("binds"):
            raise UsageError("PR101", "Sessions takes sessionmaker(engine), with one engine and no binds")
        if driver_of(engine.dialect) != PSYCOPG:
            raise UsageError("PR101", "Sessions are for threads, which need postgresql+psycopg://")
        self._maker = maker
        self._engine = engine

    def transactions(self, url: str, owner: Owner, *, size: int, name: str) -> ThreadTransactions[B]:  # noqa: ARG002
        """See `Form.transactions`."""
        seat = partial(_SessionSeat, self._maker, Handing(self._engine))
        return ThreadTransactions(owner, seat, size=size, name=name)


class AsyncSessionTransactions(Generic[S]):
    """Implements `Transactions`: one connection of the author's engine for each."""

    def __init__(self, maker: async_sessionmaker[S], engine: AsyncEngine) -> None:
        """Take connections from `engine`."""
        self._maker = maker
        self._engine = engine
        self._handing = Handing(engine.sync_engine)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncSessionUnit[S]]:
        """See `Transactions.begin`.

        Raises:
            Unavailable: PR301, the engine has no connection to give.
        """
        connection = await self._connected()
        watch = watched(_sync(connection))
        block = _block(_sync(connection))
        try:
            async with kept(block):
                yield AsyncSessionUnit(self._maker, connection, block, watch)
        finally:
            with suppress(SQLAlchemyError):
                if block.lost or block.intact:
                    await connection.invalidate()
            await connection.close()

    async def _connected(self) -> AsyncConnection:
        with _connecting():
            if not self._handing.ready:
                async with self._engine.connect():
                    self._handing.prepare()
            return await AsyncEngine(self._handing.engine).connect()


class AsyncSessionUnit(BlockUnit, Generic[S]):
    """One open transaction, in which each handler has a session of its own."""

    __slots__ = ("_connection", "_maker", "_watch")

    def __init__(self, maker: async_sessionmaker[S], connection: AsyncConnection, block: Block, watch: Watch) -> None:
        """Speak for the transaction that is open on `connection`."""
        super().__init__(block)
        self._maker = maker
        self._connection = connection
        self._watch = watch

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[S]:
        """See `Unit.lent`."""
        base = self._maker.kw.get("sync_session_class") or self._maker.class_.sync_session_class
        session = self._maker(bind=self._connection, sync_session_class=guarded(base), **FINAL)
        self._watch.rolled_back = False
        try:
            yield session
            await session.run_sync(partial(finish, watch=self._watch))
        finally:
            await session.run_sync(partial(drop, connection=_sync(self._connection), watch=self._watch))

    @property
    def entangled(self) -> bool:
        """See `Unit.entangled`."""
        return self._watch.savepoint


class _SessionSeat(Generic[B]):
    """Implements `Seat`: a connection of the author's engine, from the begin of a transaction to its end."""

    def __init__(self, maker: sessionmaker[B], handing: Handing) -> None:
        self._maker = maker
        self._handing = handing
        self._connection: Connection | None = None
        self._wire: Wire | None = None
        self._watch = Watch()
        self._cut = False

    @property
    def _open(self) -> Connection:
        assert self._connection is not None
        return self._connection

    @property
    def _raw(self) -> psycopg.Connection[Any]:
        return cast("psycopg.Connection[Any]", self._open.connection.driver_connection)

    usable = False
    """Each transaction opens one anew."""

    @property
    def lost(self) -> bool:
        return self._cut or (self._connection is not None and (self._connection.invalidated or self._raw.closed))

    @property
    def intact(self) -> bool:
        if self._connection is None or self.lost:
            return False
        from psycopg.pq import TransactionStatus

        return self._raw.info.transaction_status is not TransactionStatus.IDLE

    @property
    def hand(self) -> SyncHand:
        return sync_hand(PSYCOPG, self._raw)

    @contextmanager
    def lent(self) -> Iterator[B]:
        kind = guarded(self._maker.class_)
        session: Any = kind(**{**self._maker.kw, **FINAL, "bind": self._connection})
        self._watch.rolled_back = False
        try:
            yield session
            finish(session, watch=self._watch)
        finally:
            drop(session, connection=self._open, watch=self._watch)

    def open(self) -> None:
        self.close()
        self._cut = False
        with _connecting():
            if not self._handing.ready:
                with self._handing.engine.connect():
                    self._handing.prepare()
            self._connection = self._handing.engine.connect()
            self._watch = watched(self._connection)
            self._wire = Wire(self._raw.fileno())
            self.hand.fetch(BEGIN)

    def commit(self) -> None:
        from postroad.sql.psycopg import refuse_failed

        try:
            if not self.intact:
                raise ended_by_handler()
            refuse_failed(self._raw.info.transaction_status)
            self.hand.fetch(COMMIT)
        finally:
            self.close()

    def rollback(self) -> None:
        try:
            if self.intact:
                self.hand.fetch(ROLLBACK)
        finally:
            self.close()

    def cut(self) -> None:
        self._cut = True
        if self._wire is not None:
            self._wire.cut()

    def close(self) -> None:
        connection, wire, broken = self._connection, self._wire, self.lost or self.intact
        self._connection = self._wire = None
        if connection is not None:
            with suppress(SQLAlchemyError):
                if broken:
                    connection.invalidate()
            connection.close()
        if wire is not None:
            wire.close()


def _sync(connection: AsyncConnection) -> Connection:
    assert connection.sync_connection is not None
    return connection.sync_connection


def _block(connection: Connection) -> Block:
    raw: Any = connection.connection.driver_connection
    if driver_of(connection.dialect) == ASYNCPG:
        from postroad.sql.asyncpg import AsyncpgBlock

        return AsyncpgBlock(raw)
    from postroad.sql.psycopg import AsyncPsycopgBlock

    return AsyncPsycopgBlock(raw)


@contextmanager
def _connecting() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        kind = type(getattr(error, "orig", None) or error).__name__
        message = f"the engine of on= has no connection to give ({kind}); see that it can connect, and its pool_size"
        raise Unavailable("PR301", message) from error
