"""The keeper's own connection: one statement at a time, bounded in time, remade as soon as it is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import asyncpg

from postroad.errors import Unavailable
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.manager import connect, masked, translated

if TYPE_CHECKING:
    from postroad.sql import Rows, Statement

_CONNECT: Final = 10.0
_SETTINGS: Final = {
    "application_name": "postroad-leases",
    "lock_timeout": "1000",
    "default_transaction_isolation": "read committed",
}


class Line:
    """One direct connection, used from one event loop. Statements run by themselves (autocommit), in turn.

    A statement that does not end in time costs the connection: whether it was done is unknown, and asking the
    server to cancel would wait for the very server that does not answer.
    """

    def __init__(self, url: str) -> None:
        """Speak to the database at `url`; nothing is opened yet."""
        self._url = url
        self._turn = asyncio.Lock()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    @property
    def stands(self) -> bool:
        """Whether the connection is open, as far as this side knows."""
        return self._connection is not None and not self._connection.is_closed()

    async def open(self, *, patience: float = _CONNECT) -> None:
        """Connect, unless the connection stands.

        Raises:
            AccessRefused: wrong password, role or database name.
            Unavailable: no connection within `patience` seconds.
            UsageError: the URL cannot be read.
        """
        async with self._turn:
            await self._open(patience)

    async def fetch(self, statement: Statement, *, patience: float) -> Rows:
        """Run `statement` within `patience` seconds, connecting first where the connection was lost.

        Raises:
            Unavailable: the database is away, too slow, or a row was locked for too long. What was sent may or may
                not have been done.
        """
        try:
            async with asyncio.timeout(patience), self._turn:
                connection = await self._open(patience)
                return await self._run(connection, statement)
        except TimeoutError as error:
            raise Unavailable("PR301", f"{masked(self._url)} did not answer within {patience:.2g} s") from error

    async def _run(self, connection: asyncpg.Connection[asyncpg.Record], statement: Statement) -> Rows:
        try:
            with translated(self._url):
                return await AsyncpgHand(connection).fetch(statement)
        except asyncpg.LockNotAvailableError as error:
            raise Unavailable("PR304", f"rows of {masked(self._url)} were locked for too long") from error
        except asyncpg.PostgresError as error:
            # A standby after a failover, a full disk, missing rights: none of it may end the heartbeat.
            reason = f"{type(error).__name__}, {error.sqlstate}"
            raise Unavailable("PR301", f"{masked(self._url)} refused a statement about leases ({reason})") from error
        except BaseException:
            connection.terminate()
            raise

    async def _open(self, patience: float) -> asyncpg.Connection[asyncpg.Record]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._url, patience=patience, settings=_SETTINGS)
        return self._connection

    async def close(self) -> None:
        """Close the connection, waiting at most a second for the server."""
        if self._connection is not None and not self._connection.is_closed():
            try:
                await self._connection.close(timeout=1)
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self._connection.terminate()
