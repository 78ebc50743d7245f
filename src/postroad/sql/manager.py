"""Our pool of database connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import urlsplit

import asyncpg

from postroad.clock import seconds
from postroad.errors import AccessRefused, PostroadError, Unavailable, UsageError
from postroad.hosts import each_host
from postroad.sql import pooler
from postroad.sql.advisory import SessionLocks, locked
from postroad.sql.asyncpg import AsyncpgHand, Loan, PooledConnection, own
from postroad.sql.drive import Rows, drive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from asyncpg.pool import PoolConnectionProxy

    from postroad.sql.statement import Pipeline, Statement

    Lent = PoolConnectionProxy[asyncpg.Record]

T = TypeVar("T")

PATIENCE: Final = seconds(60)
"""How long a handler's statement may take before it is given up."""
_CACHE: Final = 100
"""How many statements a connection keeps prepared: asyncpg's own default."""
OWN_PATIENCE: Final = seconds(10)
"""How long a statement of ours may take before its connection is cut: about as long as the shorter leases last."""

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
    asyncpg.IdleInTransactionSessionTimeoutError,
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
    except ssl.SSLCertVerificationError as error:
        why = " ".join(error.verify_message.split())
        message = f"the certificate of {masked(url)} is not trusted ({why}); correct sslrootcert or host in the URL"
        raise AccessRefused("PR303", message) from error
    except _AWAY as error:
        message = f"{masked(url)} cannot be reached ({type(error).__name__}); check that it runs and the URL is right"
        raise Unavailable("PR301", message) from error
    except asyncpg.InterfaceError as error:
        if not any(said in str(error) for said in _CLOSED):
            raise
        message = f"the connection to {masked(url)} was closed"
        raise Unavailable("PR301", message) from error


@contextmanager
def _connecting(url: str) -> Iterator[None]:
    """Around the opening of a connection: whatever else a server says there, it cannot be used now.

    A database that lets nobody in (55000), settings that a proxy refuses: all of it may end, unlike a wrong password.
    """
    try:
        yield
    except (*_REFUSED, *_AWAY):
        raise
    except asyncpg.PostgresError as error:
        kind = f"{type(error).__name__}, {error.sqlstate}"
        raise Unavailable("PR301", f"{masked(url)} lets nobody in ({kind}); it is tried again until it does") from error


async def connect(
    url: str, *, patience: float = 10, settings: Mapping[str, str] | None = None, prepared: bool = True
) -> asyncpg.Connection[asyncpg.Record]:
    """Open one connection outside any pool, within `patience` seconds; `settings` are the session's.

    Not `prepared`, it keeps no prepared statements, which not every pooler can do.

    Raises:
        AccessRefused: wrong password, role or database name.
        Unavailable: the database cannot be reached in time.
        UsageError: the URL cannot be read.
    """
    with translated(url), _readable(), _connecting(url):
        return await asyncpg.connect(
            url, timeout=patience, server_settings=dict(settings or {}), statement_cache_size=100 if prepared else 0
        )


@contextmanager
def _readable() -> Iterator[None]:
    """Around what reads a URL."""
    try:
        yield
    except OSError:  # A certificate that is not trusted is a ValueError besides.
        raise
    except (ValueError, asyncpg.ClientConfigurationError) as error:
        message = "the database URL cannot be read; it looks like postgresql://user:password@host:5432/name"
        raise UsageError("PR201", message) from error


def masked(url: str) -> str:
    """The URL's hosts, ports and path only: safe to print."""
    try:
        each = [urlsplit(one) for one in each_host(url)]
        places = [f"{one.hostname or 'socket'}{f':{one.port}' if one.port else ''}" for one in each]
    except ValueError:
        return "the database"
    if "@" in each[0].path:  # The rest of a password with a slash in it.
        return "the database"
    return f"database {','.join(places)}{each[0].path}"


class Manager:
    """A pool of asyncpg connections to one service's database.

    It opens connections as they are needed, up to `size`, and replaces what breaks. Everything here but `transaction`
    raises `Unavailable` while the database is away; nothing is retried here.
    """

    def __init__(
        self, pool: asyncpg.Pool[asyncpg.Record], url: str, *, schema: str, locks: SessionLocks | None = None
    ) -> None:
        """Wrap `pool`; use `open` instead."""
        self.loop = asyncio.get_running_loop()  # No other can use the pool.
        self._locks = locks
        self._pool = pool
        self._url = url
        self._trusted = 0  # Connections up to this number are not used again.
        self.schema = schema

    @classmethod
    async def open(
        cls, url: str, *, schema: str, size: int = 10, name: str = "postroad", patience: timedelta = PATIENCE,
        locks: SessionLocks | None = None,
    ) -> Self:  # fmt: skip
        """Open the pool and prove that the database answers; a statement may take `patience`, handlers' too.

        It finds out by itself whether a transaction pooler stands in between, and what it can do (see `pooler`).
        `locks` is what `lock` takes them from.

        Raises:
            AccessRefused: wrong password, role or database name.
            Unavailable: it cannot be reached within ten seconds.
            UsageError: the URL cannot be read.
        """
        with translated(url), _readable(), _connecting(url):
            pool = await _pool(url, size=size, name=name, patience=patience)
            try:
                lent = await pool.acquire()
                keeps = (await pooler.ask(lent, url)).keeps
                await pool.release(lent)
            except BaseException:
                pool.terminate()
                raise
            if not keeps:
                pool.terminate()
                pool = await _pool(url, size=size, name=name, patience=patience, cache=0)
        return cls(pool, url, schema=schema, locks=locks)

    async def close(self) -> None:
        """Close every connection, waiting at most five seconds for those in use."""
        try:
            await asyncio.wait_for(self._pool.close(), 5)
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self, *, patience: timedelta | None = None) -> AsyncIterator[Lent]:
        """Lend a connection for statements of ours, outside any transaction.

        A statement that does not end within `patience` costs the connection at once, and the others of the pool
        before their next use. Whether it was done is unknown then. None is `OWN_PATIENCE`.
        """
        with translated(self._url):
            async with self._lent(_loan(patience or OWN_PATIENCE, to_strangers=False)) as connection:
                yield connection

    @asynccontextmanager
    async def transaction(self, *, lock: str | None = None, wait: timedelta | None = None) -> AsyncIterator[Lent]:
        """Lend a connection to anybody inside a READ COMMITTED transaction: leaving commits, an error rolls back.

        With `lock` it begins by locking that name until its end (`LeaseHeld` after `wait`, at once without one): the
        form of a lock that works behind a transaction pooler. See `postroad.sql.advisory.locked`.

        Inside, the connection refuses transaction control, in raw text too; a nested ``transaction()`` is a savepoint.

        The driver's errors come out as they are, with the borrower's own: whoever runs strangers' code classifies
        them. What cannot be opened for another reason than the usual ones, or not begun in time, is `Unavailable`.
        """
        loan = _loan(OWN_PATIENCE, to_strangers=True)
        async with self._lent(loan) as connection, connection.transaction(isolation="read_committed"):
            if lock is not None:
                await drive(locked(self.schema, lock, wait=wait), AsyncpgHand(connection))
            loan.guarded = True
            try:
                yield connection
            finally:
                loan.guarded = False

    def lock(self, name: str, *, wait: timedelta | None = None) -> AbstractAsyncContextManager[None]:
        """Hold the lock `name` for the block, on a direct connection of its own; see `postroad.sql.lock.Locks.hold`.

        Raises:
            UsageError: PR107, this pool was opened without `locks`.
        """
        if self._locks is None:
            raise UsageError("PR107", "this pool has no locks: open it with locks=Locks(...), or run it in an App")
        return self._locks.hold(name, wait=wait)

    @asynccontextmanager
    async def _lent(self, loan: Loan) -> AsyncIterator[Lent]:
        connection = await self._acquired()
        try:
            own(connection).lend(loan)
            yield connection
        finally:
            await self._pool.release(connection)
            if loan.silent:  # The others may lead nowhere as well: each is replaced before its next use.
                self._trusted = PooledConnection.latest

    async def _acquired(self) -> Lent:
        while True:
            with _connecting(self._url):
                connection = await self._pool.acquire()
            if own(connection).number > self._trusted:
                return connection
            # Not by the pool's own expiry: that closes in good order, and waits for ever where nobody answers.
            connection.terminate()
            await self._pool.release(connection)

    async def fetch(self, statement: Statement) -> Rows:
        """Run one statement in a transaction of its own: one round trip."""
        async with self.connection() as connection:
            return await AsyncpgHand(connection).fetch(statement)

    async def run(self, pipeline: Pipeline[T]) -> T:
        """Run `pipeline` in a transaction of its own."""
        async with self.connection() as connection, connection.transaction():
            return await drive(pipeline, AsyncpgHand(connection))

    async def answers(self, *, within_seconds: float = 2.0) -> bool:
        """Whether the database answers ``SELECT 1`` in time; never raises for its absence, or for being refused."""
        try:
            async with asyncio.timeout(within_seconds), self.connection() as connection:
                await connection.execute("SELECT 1")
        except (PostroadError, asyncpg.PostgresError, TimeoutError):
            return False
        return True


async def _pool(
    url: str, *, size: int, name: str, patience: timedelta, cache: int = _CACHE
) -> asyncpg.Pool[asyncpg.Record]:
    """A pool that connects as it is used; with a `cache` of nought asyncpg sends each statement whole (since 0.29)."""
    return await asyncpg.create_pool(  # No least size: asyncpg keeps that one by a task that nobody owns.
        url, min_size=0, max_size=size, timeout=10, command_timeout=patience.total_seconds(),
        connection_class=PooledConnection, server_settings={"application_name": name}, statement_cache_size=cache,
    )  # fmt: skip


def _loan(patience: timedelta, *, to_strangers: bool) -> Loan:
    return Loan(patience.total_seconds(), to_strangers=to_strangers)
