"""The asyncpg hand: how pipelines run on an asyncpg connection."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import asyncpg
from typing_extensions import override

from postroad.errors import Unavailable
from postroad.sql.drive import BEGIN, COMMIT, ROLLBACK, AsyncHand, Block, Rows
from postroad.sql.guard import check

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from postroad.sql.statement import Statement

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
    _DriverConnection = asyncpg.Connection[asyncpg.Record]
else:
    _DriverConnection = asyncpg.Connection

T = TypeVar("T")


_OURS = ("BEGIN", "COMMIT", "ROLLBACK")
"""Statements around a stranger's: a rollback waits for what it stops, and has to end sooner than that."""


class Loan:
    """What holds for a connection of our pool until it goes back: whose it is, and how long a statement may take.

    While it is `guarded`, every way of sending SQL refuses transaction control.
    """

    __slots__ = ("guarded", "patience", "savepoint", "silent", "to_strangers")

    def __init__(self, patience: float, *, to_strangers: bool) -> None:
        """Each statement may take `patience` seconds; of strangers' only those that are ours."""
        self.patience = patience
        self.to_strangers = to_strangers
        self.guarded = False
        self.savepoint = False
        """Whether a stranger has set a savepoint by SQL of his own."""
        self.silent = False
        """Whether a statement got no answer in time, and the connection was cut."""


class PooledConnection(_DriverConnection):
    """A connection of our pool: it is cleaned after strangers only, and guarded while a handler has it.

    Handlers may leave settings, cursors and locks on a session, so that it is reset before its next use: a round
    trip. Our own statements leave nothing, and are not followed by one.

    A handler that commits would commit the marks of deliveries that have not run: the loan says while this is refused.

    When an error inside a transaction is caught and not answered by a savepoint, ``COMMIT`` succeeds and commits
    nothing: only its tag says so, which asyncpg does not look at. An ack after that would lose the message.

    A statement of ours without an answer cuts the connection: asyncpg would go on to ask the server for a
    cancellation, and wait as long again for an end that a connection which leads nowhere never tells of.
    """

    latest = 0
    """The number of the latest connection: they are counted as they are opened."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._loan: Loan | None = None
        PooledConnection.latest += 1
        self.number = PooledConnection.latest

    def lend(self, loan: Loan) -> None:
        """Say what holds until it goes back to the pool."""
        self._loan = loan

    @property
    def loan(self) -> Loan | None:
        """What holds until it goes back to the pool."""
        return self._loan

    @override
    def get_reset_query(self) -> str:
        """See asyncpg."""
        return super().get_reset_query() if self._loan is None or self._loan.to_strangers else ""

    # Plain functions that hand on the driver's coroutine: one frame less on the way of every statement.

    @override
    def execute(self, query: str, *args: Any, timeout: float | None = None) -> Coroutine[Any, Any, str]:
        """See asyncpg."""
        loan = self._loan
        if loan is not None and loan.guarded and check(query):
            loan.savepoint = True
        if loan is None or (loan.to_strangers and not query.startswith(_OURS)):
            work = super().execute(query, *args, timeout=timeout)
        else:
            work = self._in_time(loan, super().execute(query, *args, timeout=loan.patience))
        return self._commit(work) if query == "COMMIT;" else work

    async def _commit(self, work: Coroutine[Any, Any, str]) -> str:
        tag = await work
        if tag == "ROLLBACK":
            raise asyncpg.InFailedSQLTransactionError("an earlier error in the transaction was caught: it rolled back")
        return tag

    @override
    def fetch(self, query: str, *args: Any, timeout: float | None = None, **options: Any) -> Coroutine[Any, Any, Any]:
        """See asyncpg."""
        loan = self._loan
        if loan is None or loan.to_strangers:
            self._check(query)
            return super().fetch(query, *args, timeout=timeout, **options)
        return self._in_time(loan, super().fetch(query, *args, timeout=loan.patience, **options))

    @override
    def fetchval(
        self, query: str, *args: Any, timeout: float | None = None, **options: Any
    ) -> Coroutine[Any, Any, Any]:
        """See asyncpg."""
        loan = self._loan
        if loan is None or loan.to_strangers:
            self._check(query)
            return super().fetchval(query, *args, timeout=timeout, **options)
        return self._in_time(loan, super().fetchval(query, *args, timeout=loan.patience, **options))

    @override
    def reset(self, *, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """See asyncpg."""
        self._check("ROLLBACK")
        return super().reset(timeout=timeout)

    def _check(self, query: str) -> None:
        if self._loan is not None and self._loan.guarded and check(query):
            self._loan.savepoint = True

    async def _in_time(self, loan: Loan, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except TimeoutError as error:
            loan.silent = True
            self.terminate()
            message = f"the database did not answer within {loan.patience:g} s; the connection was cut"
            raise Unavailable("PR301", message) from error


def own(lent: Connection) -> PooledConnection:
    """A connection of our pool, which lends proxies: they forward what they do not know."""
    return cast("PooledConnection", lent)


def _guarded(name: str) -> Callable[..., Any]:
    original = getattr(asyncpg.Connection, name)

    @wraps(original)
    def method(self: PooledConnection, query: str, *args: Any, **options: Any) -> Any:
        self._check(query)
        return original(self, query, *args, **options)

    return method


for _name in ("executemany", "fetchrow", "fetchmany", "prepare", "cursor", "copy_from_query"):
    setattr(PooledConnection, _name, _guarded(_name))


class AsyncpgHand(AsyncHand):
    """Runs statements on one asyncpg connection, whoever opened its transaction."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection) -> None:
        """Work on `connection`."""
        self.connection = connection

    @override
    async def fetch(self, statement: Statement) -> Rows:
        """See `AsyncHand.fetch`: one round trip (two the first time that a connection sees the text)."""
        if statement.command:
            await self.connection.execute(statement.text)
            return ()
        rows: Any = await self.connection.fetch(statement.text, *statement.args)
        return cast("Rows", rows)  # A Record is read like a mapping; it is not registered as one.


class AsyncpgBlock(Block):
    """Implements `Block` on any asyncpg connection."""

    def __init__(self, connection: Connection) -> None:
        """Of `connection`."""
        self._connection = connection
        self._hand = AsyncpgHand(connection)

    @property
    @override
    def hand(self) -> AsyncpgHand:
        """See `Block.hand`."""
        return self._hand

    @property
    @override
    def lost(self) -> bool:
        """See `Block.lost`."""
        return self._connection.is_closed()

    @property
    @override
    def intact(self) -> bool:
        """See `Block.intact`."""
        return not self.lost and self._connection.is_in_transaction()

    @override
    async def begin(self) -> None:
        """See `Block.begin`."""
        await self._connection.execute(BEGIN.text)

    @override
    async def commit(self) -> None:
        """See `Block.commit`."""
        if await self._connection.execute(COMMIT.text) == ROLLBACK.text:
            what = "an earlier error in the transaction was caught: it rolled back"
            raise asyncpg.InFailedSQLTransactionError(what)

    @override
    async def rollback(self) -> None:
        """See `Block.rollback`."""
        await self._connection.execute(ROLLBACK.text)

    @override
    def terminate(self) -> None:
        """See `Block.terminate`."""
        self._connection.terminate()
