"""Handlers' transactions on blocking psycopg connections, each on a thread of its own."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

from postroad.sql.drive import ended_by_handler
from postroad.sql.handed import HandedConnection, HandedCursor, HandedServerCursor
from postroad.sql.psycopg import PsycopgHand, refuse_failed
from postroad.sql.threads import ThreadTransactions, Wire

if TYPE_CHECKING:
    from postroad.owner import Owner

# A server that runs a statement looks this often whether we are still there: what was cut ends there too.
WATCH: Final = b"SET client_connection_check_interval = '500ms'"
# The same as asyncpg's: handlers may leave settings, cursors and locks behind.
CLEAN: Final = b"SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL; " + WATCH
NETWORK: Final[dict[str, Any]] = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}  # fmt: skip


class PsycopgTransactions(ThreadTransactions[HandedConnection]):
    """The default for ``def`` handlers: each thread has a psycopg connection of its own."""

    def __init__(self, url: str, owner: Owner, *, size: int, name: str) -> None:
        """Open up to `size` connections to `url`, as they are needed; `name` is a label, and bounded."""
        super().__init__(owner, partial(PsycopgSeat, url, name), size=size, name=name)


class PsycopgSeat:
    """A connection, used by one thread; only `cut`, `lost` and `usable` are for others."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._connection: HandedConnection | None = None
        self._wire: Wire | None = None
        self._cut = False

    @property
    def connected(self) -> HandedConnection:
        """The connection."""
        assert self._connection is not None
        return self._connection

    @property
    def lost(self) -> bool:
        """Whether it is gone, or cut."""
        return self._cut or self._connection is None or self._connection.closed

    @property
    def usable(self) -> bool:
        """Whether a transaction may begin on it."""
        return not self.lost and self.connected.info.transaction_status is TransactionStatus.IDLE

    @property
    def intact(self) -> bool:
        """See `Seat.intact`."""
        return self.connected.info.transaction_status is not TransactionStatus.IDLE

    @property
    def hand(self) -> PsycopgHand:
        """See `Seat.hand`."""
        return PsycopgHand(self.connected)

    def lent(self) -> AbstractContextManager[HandedConnection]:
        """See `Seat.lent`."""
        return nullcontext(self.connected)

    def cut(self) -> None:
        """See `Seat.cut`."""
        self._cut = True
        if self._wire is not None:
            self._wire.cut()

    def open(self) -> None:
        """Connect anew."""
        self.close()
        self._cut = False
        connection = HandedConnection.connect(
            self._url, cursor_factory=HandedCursor, application_name=f"postroad {self._name}"[:63], **NETWORK
        )
        connection.server_cursor_factory = HandedServerCursor
        told = connection.pgconn.exec_(b"SELECT pg_backend_pid()").get_value(0, 0)
        if told != str(connection.info.backend_pid).encode():
            connection.prepare_threshold = None  # A pooler stands in between, which may lose prepared statements.
        self._connection, self._wire = connection, Wire(connection.fileno())
        self._command(WATCH)

    def commit(self) -> None:
        """Commit, and clean up behind the handler."""
        try:
            status = self.connected.info.transaction_status
            refuse_failed(status)
            if status is TransactionStatus.IDLE:
                raise ended_by_handler()  # noqa: TRY301 - what ends here is undone below
            self.connected.end(commit=True)
        except BaseException:
            self.close()
            raise
        self._clean()

    def rollback(self) -> None:
        """Roll back, and clean up; a connection that cannot is closed, which rolls back as well."""
        try:
            self.connected.end(commit=False)
        except psycopg.Error:
            self.close()
        else:
            self._clean()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, wire = self._connection, self._wire
        self._connection = self._wire = None
        if connection is not None:
            connection.shut()
        if wire is not None:
            wire.close()

    def _clean(self) -> None:
        try:
            self._command(CLEAN)
        except psycopg.Error:
            self.close()
            return
        connection = self.connected
        connection.cursor_factory, connection.server_cursor_factory = HandedCursor, HandedServerCursor
        connection.row_factory = psycopg.rows.tuple_row

    def _command(self, text: bytes) -> None:
        """Run `text` outside of any transaction of psycopg's."""
        result = self.connected.pgconn.exec_(text)
        if result.status in {ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE}:
            raise psycopg.OperationalError("the connection could not be cleaned")
