"""What code of the author's may ask of an App that runs: leases and locks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from postroad.errors import UsageError
from postroad.leases.hold import TTL, refuse_loop

if TYPE_CHECKING:
    from postroad.leases import AsyncLease, SyncLease
    from postroad.runtime.process import Process


class Doors:
    """The doors of an App that runs: inside ``async with app:``, and in its background services."""

    name: str
    _process: Process | None

    @asynccontextmanager
    async def lease(
        self, name: str, *, ttl: timedelta = TTL, wait: timedelta | None = None, max_runtime: timedelta | None = None
    ) -> AsyncIterator[AsyncLease]:
        """Hold the lease `name` for the block: of all processes on this database one at a time does.

        See `postroad.leases.Leases.hold` for what is promised and raised. An App without roles connects to its
        database when it first takes one.

        Raises:
            LeaseHeld: PR402, another has it; at once, or after `wait`.
            LeaseLost: PR401, it was lost, and the block was cancelled.
            UsageError: the App does not run, has no database, or an argument is not valid.
        """
        database = await self._running("lease").database()
        async with database.leases.hold(name, ttl=ttl, wait=wait, max_runtime=max_runtime) as lease:
            yield lease

    @contextmanager
    def lease_sync(
        self, name: str, *, ttl: timedelta = TTL, wait: timedelta | None = None, max_runtime: timedelta | None = None
    ) -> Iterator[SyncLease]:
        """`lease` for ``def`` code on a thread; see `postroad.leases.Leases.hold_sync`."""
        refuse_loop()
        process = self._running("lease")
        opening = asyncio.run_coroutine_threadsafe(process.database(), process.loop)
        with opening.result().leases.hold_sync(name, ttl=ttl, wait=wait, max_runtime=max_runtime) as lease:
            yield lease

    @asynccontextmanager
    async def lock(self, name: str, *, wait: timedelta | None = None) -> AsyncIterator[None]:
        """Hold the lock `name` for the block, on a connection of its own: for something short.

        See `postroad.sql.lock.Locks.hold`. There is no fencing token: what must never be written late takes a lease.

        Raises:
            LeaseHeld: PR402, another session has it; at once, or after `wait`.
            LeaseLost: PR403, the connection was lost, and the block was cancelled.
            UsageError: the App does not run, has no database, or an argument is not valid.
        """
        database = await self._running("lock").database()
        async with database.manager.lock(name, wait=wait):
            yield

    def _running(self, what: str) -> Process:
        if self._process is None:
            message = f"App {self.name!r} does not run; take a {what} inside 'async with app:' or a background service"
            raise UsageError("PR101", message)
        return self._process
