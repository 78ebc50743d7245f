"""The asyncpg hand: how pipelines run on an asyncpg connection, and handlers' transactions from a pool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from postroad.sql.drive import AsyncHand, Rows, drive

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    from postroad.sql.manager import Manager
    from postroad.sql.statement import Pipeline, Statement

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

T = TypeVar("T")


class AsyncpgHand(AsyncHand):
    """Runs statements on one asyncpg connection, whoever opened its transaction."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection) -> None:
        """Work on `connection`."""
        self.connection = connection

    async def fetch(self, statement: Statement) -> Rows:
        """See `AsyncHand.fetch`: one round trip (two the first time that a connection sees the text)."""
        if statement.command:
            await self.connection.execute(statement.text)
            return ()
        return await self.connection.fetch(statement.text, *statement.args)


class AsyncpgUnit:
    """One open transaction on a pooled asyncpg connection."""

    __slots__ = ("_hand", "tx")

    def __init__(self, connection: Connection) -> None:
        """Speak for the transaction that is open on `connection`."""
        self.tx = connection
        self._hand = AsyncpgHand(connection)

    async def drive(self, pipeline: Pipeline[T]) -> T:
        """See `Unit.drive`."""
        return await drive(pipeline, self._hand)


class AsyncpgTransactions:
    """Handlers' transactions from our own pool: the default for ``async def`` handlers."""

    def __init__(self, manager: Manager) -> None:
        """Take connections from `manager`."""
        self._manager = manager

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncpgUnit]:
        """See `Transactions.begin`."""
        async with self._manager.transaction() as connection:
            yield AsyncpgUnit(connection)
