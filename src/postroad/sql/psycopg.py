"""The psycopg hands: how pipelines run on psycopg connections, blocking and asynchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import AsyncRawCursor, RawCursor, errors
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from typing_extensions import override

from postroad.sql.drive import BEGIN, COMMIT, ROLLBACK, AsyncHand, Block, Rows, SyncHand
from postroad.sql.threads import Wire

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from postroad.sql.statement import Statement

# Raw cursors send the text as it is, with its ``$1`` parameters bound by the server: no translation, no escaping. Ours
# are made directly, so that neither a connection's own cursor and row factories nor the guard are in the way.


class PsycopgHand(SyncHand):
    """Runs statements on one blocking psycopg connection, whoever opened its transaction."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection[Any]) -> None:
        """Work on `connection`."""
        self.connection = connection

    @override
    def fetch(self, statement: Statement) -> Rows:
        """See `SyncHand.fetch`: one round trip, and one more for BEGIN where it is the transaction's first."""
        with RawCursor(self.connection, row_factory=dict_row) as cursor:
            cursor.execute(statement.text.encode(), statement.args or None)
            return cursor.fetchall() if statement.answered or cursor.description else ()


class AsyncPsycopgHand(AsyncHand):
    """Runs statements on one asynchronous psycopg connection, whoever opened its transaction."""

    __slots__ = ("connection",)

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        """Work on `connection`."""
        self.connection = connection

    @override
    async def fetch(self, statement: Statement) -> Rows:
        """See `AsyncHand.fetch`; round trips as in `PsycopgHand.fetch`."""
        async with AsyncRawCursor(self.connection, row_factory=dict_row) as cursor:
            await cursor.execute(statement.text.encode(), statement.args or None)
            return await cursor.fetchall() if statement.answered or cursor.description else ()


class AsyncPsycopgBlock(Block):
    """Implements `Block` on any asynchronous psycopg connection in autocommit."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        """Of `connection`."""
        self._connection = connection
        self._hand = AsyncPsycopgHand(connection)
        self._cut = False

    @property
    @override
    def hand(self) -> AsyncPsycopgHand:
        """See `Block.hand`."""
        return self._hand

    @property
    @override
    def lost(self) -> bool:
        """See `Block.lost`."""
        return self._cut or self._connection.closed

    @property
    @override
    def intact(self) -> bool:
        """See `Block.intact`."""
        return not self.lost and self._connection.info.transaction_status is not TransactionStatus.IDLE

    @override
    async def begin(self) -> None:
        """See `Block.begin`."""
        await self._hand.fetch(BEGIN)

    @override
    async def commit(self) -> None:
        """See `Block.commit`."""
        refuse_failed(self._connection.info.transaction_status)
        await self._hand.fetch(COMMIT)

    @override
    async def rollback(self) -> None:
        """See `Block.rollback`."""
        await self._hand.fetch(ROLLBACK)

    @override
    def terminate(self) -> None:
        """See `Block.terminate`."""
        if not self.lost:
            wire = Wire(self._connection.fileno())
            wire.cut()
            wire.close()
        self._cut = True


def refuse_failed(status: TransactionStatus) -> None:
    """Refuse to commit what failed: when an error is caught and no savepoint answers it, COMMIT commits nothing.

    An ack after that would lose the message.
    """
    if status is TransactionStatus.INERROR:
        raise errors.InFailedSqlTransaction("an earlier error in the transaction was caught: it rolls back")
