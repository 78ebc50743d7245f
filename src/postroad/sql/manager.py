"""Our pool of database connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import urlsplit

import asyncpg

from postroad.clock import seconds
from postroad.errors import AccessRefused, Unavailable, UsageError
from postroad.sql.asyncpg import AsyncpgHand, PooledConnection
from postroad.sql.drive import Rows, drive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from asyncpg.pool import PoolConnectionProxy

    from postroad.sql.statement import Pipeline, Statement

T = TypeVar("T")

PATIENCE: Final = seconds(60)
"""How long one statement may take before its connection is given up."""

_REFUSED = (
    asyncpg.InvalidPasswordError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InternalClientError,  # A pooled connection that was told of the shutdown while idle.
)


_CLOSED = ("is closed", "is closing", "released back to the pool")  # InterfaceError is also for misuse


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn what asyncpg raises when a database is away or refuses into our errors; others pass.

    Raises:
        AccessRefused: wrong password, role or database name.
        Unavailable: no connection can be made, or it was lost.
    """
    try:
        yield
    except _REFUSED as error:
        message = f"{masked(url)} refused access ({error.sqlstate}); check the URL's user, password and database name"
        raise AccessRefused("PR303", message) from error
    except _AWAY as error:
        message = f"{masked(url)} cannot be reached ({type(error).__name__}); check that it runs and the URL is right"
        raise Unavailable("PR301", message) from error
    except asyncpg.InterfaceError as error:
        if not any(said in str(error) for said in _CLOSED):
            raise
        message = f"the connection to {masked(url)} was closed"
        raise Unavailable("PR301", message) from error


async def connect(
    url: str, *, patience: float = 10, settings: Mapping[str, str] | None = None
) -> asyncpg.Connection[asyncpg.Record]:
    """Open one connection outside any pool, within `patience` seconds; `settings` are the session's.

    Raises:
        AccessRefused: wrong password, role or database name.
        Unavailable: the database cannot be reached in time.
        UsageError: the URL cannot be read.
    """
    with translated(url), _readable():
        return await asyncpg.connect(url, timeout=patience, server_settings=dict(settings or {}))


@contextmanager
def _readable() -> Iterator[None]:
    """Around what reads a URL."""
    try:
        yield
    except (ValueError, asyncpg.ClientConfigurationError) as error:
        message = "the database URL cannot be read; it looks like postgresql://user:password@host:5432/name"
        raise UsageError("PR201", message) from error


def masked(url: str) -> str:
    """The URL's host, port and path only: safe to print."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "the database"
    return f"database {parts.hostname or 'socket'}{port}{parts.path}"


class Manager:
    """A pool of asyncpg connections to one service's database.

    It opens connections as they are needed, up to `size`, and replaces what breaks. Everything here but `transaction`
    raises `Unavailable` while the database is away; nothing is retried here.
    """

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], url: str, *, schema: str) -> None:
        """Wrap `pool`; use `open` instead."""
        self._pool = pool
        self._url = url
        self.schema = schema

    @classmethod
    async def open(
        cls, url: str, *, schema: str, size: int = 10, name: str = "postroad", patience: timedelta = PATIENCE
    ) -> Self:
        """Open the pool and prove that the database answers; a statement may take `patience`, handlers' too.

        Raises:
            AccessRefused: wrong password, role or database name.
            Unavailable: it cannot be reached within ten seconds.
            UsageError: the URL cannot be read.
        """
        with translated(url), _readable():
            pool = await asyncpg.create_pool(
                url, min_size=1, max_size=size, timeout=10, command_timeout=patience.total_seconds(),
                connection_class=PooledConnection, server_settings={"application_name": name},
            )  # fmt: skip
        return cls(pool, url, schema=schema)

    async def close(self) -> None:
        """Close every connection, waiting at most five seconds for those in use."""
        try:
            await asyncio.wait_for(self._pool.close(), 5)
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PoolConnectionProxy[asyncpg.Record]]:
        """Lend a connection for statements of ours, outside any transaction."""
        with translated(self._url):
            async with self._pool.acquire() as connection:
                _lend(connection, to_strangers=False)
                yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PoolConnectionProxy[asyncpg.Record]]:
        """Lend a connection to anybody inside a READ COMMITTED transaction: leaving commits, an error rolls back.

        The driver's errors come out as they are, with the borrower's own: whoever runs strangers' code classifies
        them.
        """
        async with self._pool.acquire() as connection:
            _lend(connection, to_strangers=True)
            async with connection.transaction():
                yield connection

    async def fetch(self, statement: Statement) -> Rows:
        """Run one statement in a transaction of its own: one round trip."""
        async with self.connection() as connection:
            return await AsyncpgHand(connection).fetch(statement)

    async def run(self, pipeline: Pipeline[T]) -> T:
        """Run `pipeline` in a transaction of its own."""
        async with self.connection() as connection, connection.transaction():
            return await drive(pipeline, AsyncpgHand(connection))

    async def answers(self, *, within_seconds: float = 2.0) -> bool:
        """Whether the database answers ``SELECT 1`` in time; never raises for its absence."""
        try:
            async with asyncio.timeout(within_seconds), self.connection() as connection:
                await connection.execute("SELECT 1")
        except (Unavailable, TimeoutError):
            return False
        return True


def _lend(connection: PoolConnectionProxy[asyncpg.Record], *, to_strangers: bool) -> None:
    connection.lend(to_strangers=to_strangers)  # type: ignore[attr-defined] # the proxy forwards it
