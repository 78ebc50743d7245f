"""The asyncpg hand: how pipelines run on an asyncpg connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import asyncpg
from typing_extensions import override

from postroad.sql.drive import AsyncHand, Rows

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from postroad.sql.statement import Statement

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
    _DriverConnection = asyncpg.Connection[asyncpg.Record]
else:
    _DriverConnection = asyncpg.Connection

T = TypeVar("T")


class PooledConnection(_DriverConnection):
    """A connection of our pool: it is cleaned after strangers only, and a commit that rolled back is an error on it.

    Handlers may leave settings, cursors and locks on a session, so that it is reset before its next use: a round
    trip. Our own statements leave nothing, and are not followed by one.

    When an error inside a transaction is caught and not answered by a savepoint, ``COMMIT`` succeeds and commits
    nothing: only its tag says so, which asyncpg does not look at. An ack after that would lose the message.
    """

    _lent = True

    def lend(self, *, to_strangers: bool) -> None:
        """Say who uses it until it goes back to the pool."""
        self._lent = to_strangers

    @override
    def get_reset_query(self) -> str:
        """See asyncpg."""
        return super().get_reset_query() if self._lent else ""

    @override
    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """See asyncpg."""
        tag = await super().execute(query, *args, timeout=timeout)
        if tag == "ROLLBACK" and query == "COMMIT;":
            raise asyncpg.InFailedSQLTransactionError("an earlier error in the transaction was caught: it rolled back")
        return tag


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
