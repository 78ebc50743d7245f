"""Session locks: PostgreSQL's advisory locks, each on a direct connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from postroad.clock import seconds
from postroad.errors import LeaseLost, SettingsError, Unavailable
from postroad.retry import next_look
from postroad.sql import pooler
from postroad.sql.advisory import checked_name, checked_wait, held, key_of
from postroad.sql.interrupt import Interrupt
from postroad.sql.manager import connect, masked, translated

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.owner import Owner

    Connection = asyncpg.Connection[asyncpg.Record]

_TRY: Final = "SELECT pg_try_advisory_lock($1)"
_UNLOCK: Final = "SELECT pg_advisory_unlock($1)"
# The server gives a session up after some 25 s of silence from a peer that is gone; we do after half of that.
_SESSION: Final = """
    SET application_name = 'postroad-lock'; SET idle_session_timeout = 0; SET tcp_keepalives_idle = 10;
    SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; SET tcp_user_timeout = 25000
"""
_LOOK_EVERY: Final = 5.0
_PATIENCE: Final = 5.0
_PREPARE: Final = 30.0
_LET_GO: Final = 1.0


class Locks:
    """Session locks, each on a connection of its own: held for as long as that connection lives.

    A process that stands still keeps its lock, as far as its machine answers the network; one that is killed loses it
    at once. There is no fencing token: what must never be written late takes a lease.
    """

    def __init__(
        self, url: str, *, schema: str, owner: Owner, clock: Clock, chance: Callable[[], float],
        look_every: timedelta = seconds(_LOOK_EVERY),
    ) -> None:  # fmt: skip
        """Lock in the database at `url` (direct, never through a transaction pooler); nothing is opened yet."""
        self._url = url
        self._schema = schema
        self._owner = owner
        self._clock = clock
        self._chance = chance
        self._look_every = look_every.total_seconds()
        self._waiting = 0

    @asynccontextmanager
    async def hold(self, name: str, *, wait: timedelta | None = None) -> AsyncIterator[None]:
        """Hold the lock `name` for the block; its task is cancelled when the connection is lost (`LeaseLost`, PR403).

        Without `wait` it is tried once. The connection is looked at every five seconds, and given up after five more
        without an answer, before the server gives up the session.

        Raises:
            AccessRefused: the server refuses us.
            LeaseHeld: PR402, another session still has it after `wait`.
            LeaseLost: PR403, the connection was lost within the block; what it had begun may go on elsewhere.
            SettingsError: PR201, a transaction pooler answers: behind it a session lock means nothing.
            Unavailable: the database cannot be reached.
            UsageError: PR107, the name or `wait` is not valid.
        """
        key, patience = key_of(self._schema, checked_name("lock", name)), checked_wait(wait)
        interrupt = Interrupt(lambda: LeaseLost("PR403", f"the lock {name!r} was lost with its connection; stop"))
        connection = await connect(self._url, prepared=False)
        try:
            connection.add_termination_listener(lambda _: interrupt.tell())
            await self._prepare(connection)
            await self._take(connection, key, name, patience)
            done = asyncio.Event()
            watching = self._owner.task(self._watch(connection, done), name="lock")
            try:
                with interrupt:
                    yield
            finally:
                done.set()
                await asyncio.wait([watching])
                await self._release(connection, key)
        finally:
            await _closed(connection)

    async def _prepare(self, connection: Connection) -> None:
        with translated(self._url):
            async with asyncio.timeout(_PREPARE):
                if (await pooler.ask(connection, self._url)).shares:
                    message = (
                        f"{masked(self._url)} is a transaction pooler, behind which a session lock means nothing; set"
                        " POSTROAD_DIRECT_URL to the database itself, or lock within a transaction"
                    )
                    raise SettingsError("PR201", message)
                await connection.execute(_SESSION)

    async def _take(self, connection: Connection, key: int, name: str, patience: float) -> None:
        # By looking again and again, since a statement that waits keeps vacuum from its rows.
        deadline = self._clock.monotonic() + patience
        self._waiting += 1
        try:
            while not await self._ask(connection, _TRY, key):
                left = deadline - self._clock.monotonic()
                pause = next_look(left=left, crowd=self._waiting, chance=self._chance())
                if pause is None:
                    raise held(name, patience)
                await asyncio.sleep(pause)  # Nobody tells of another session's unlocking.
        finally:
            self._waiting -= 1

    async def _watch(self, connection: Connection, done: asyncio.Event) -> None:
        """Ask now and then whether the session is there, and cut the connection where nobody answers."""
        while not done.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_every):
                    await done.wait()
                    return
            try:
                await self._ask(connection, "SELECT 1")
            except (Unavailable, asyncpg.PostgresError):
                connection.terminate()
                return

    async def _ask(self, connection: Connection, query: str, *args: Any) -> bool:
        with translated(self._url):
            return bool(await connection.fetchval(query, *args, timeout=_PATIENCE))

    async def _release(self, connection: Connection, key: int) -> None:
        """Unlock, so that the next one has it at once; the end of the session does it in any case."""
        if not connection.is_closed():
            with suppress(Unavailable, TimeoutError, asyncpg.PostgresError):
                await self._ask(connection, _UNLOCK, key)


async def _closed(connection: Connection) -> None:
    try:
        await connection.close(timeout=_LET_GO)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
