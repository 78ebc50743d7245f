"""The psycopg hands: how pipelines run on psycopg connections, blocking and asynchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import AsyncRawCursor, RawCursor
from psycopg.rows import dict_row
from typing_extensions import override

from postroad.sql.drive import AsyncHand, Rows, SyncHand

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
