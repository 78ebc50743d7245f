"""Handlers' transactions on connections of our pool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from postroad.sql.asyncpg import AsyncpgHand, own
from postroad.sql.drive import drive

if TYPE_CHECKING:
    from postroad.sql.asyncpg import Connection
    from postroad.sql.manager import Manager
    from postroad.sql.statement import Pipeline

T = TypeVar("T")


class AsyncpgUnit:
    """One open transaction on a pooled asyncpg connection."""

    __slots__ = ("_hand", "_loan", "tx")

    def __init__(self, connection: Connection) -> None:
        """Speak for the transaction that is open on `connection`."""
        self.tx = connection
        self._hand = AsyncpgHand(connection)
        self._loan = own(connection).loan

    def lent(self) -> AbstractAsyncContextManager[Connection]:
        """See `Unit.lent`."""
        return nullcontext(self.tx)

    @property
    def lost(self) -> bool:
        """See `Unit.lost`."""
        try:
            return self.tx.is_closed()
        except asyncpg.InterfaceError:  # Cut, and taken back by the pool.
            return True

    @property
    def intact(self) -> bool:
        """See `Unit.intact`."""
        return self.tx.is_in_transaction()

    @property
    def entangled(self) -> bool:
        """See `Unit.entangled`."""
        return self._loan is not None and self._loan.savepoint

    async def drive(self, pipeline: Pipeline[T]) -> T:
        """See `Unit.drive`."""
        return await drive(pipeline, self._hand)

    def terminate(self) -> None:
        """See `Unit.terminate`."""
        self.tx.terminate()


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
