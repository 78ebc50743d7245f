"""The service that keeps partitions ahead of the authors and lets go of old rows, in one process at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import asyncpg

from postroad.errors import Unavailable
from postroad.runtime.upkeep import Maintained, Upkeep
from postroad.signals.catalog import PartitionsKept, RetentionKept
from postroad.sql.partitions import days_ahead

if TYPE_CHECKING:
    from datetime import timedelta

    from postroad.clock import Clock
    from postroad.leases import Keeper, Lease
    from postroad.owner import Readiness
    from postroad.signals import Signals
    from postroad.sql.manager import Manager

LEASE: Final = "maintain"
EVERY_SECONDS: Final = 3600.0
LOOK_SECONDS: Final = 60.0
MARKS_EVERY: Final = 24
"""In every so many rounds of a process the inbox is gone through for old marks: it reads all of it."""


class Maintainer:
    """Does a round of maintenance once an hour, under the lease ``maintain``: of several processes one does it.

    Authors do not depend on it: without a partition their rows land in the DEFAULT one, and it waits for no lock
    longer than 50 ms. Where the database role may not, only the days ahead are reported, and `postroad maintain` as
    the owner must be scheduled.
    """

    name = "maintain"

    def __init__(
        self, manager: Manager, keeper: Keeper, *, ttl: timedelta, remember: timedelta, signals: Signals, clock: Clock,
    ) -> None:  # fmt: skip
        """Work through `manager` while `keeper` holds the lease; inbox marks are kept for `remember`."""
        self._manager = manager
        self._keeper = keeper
        self._ttl = ttl
        self._remember = remember
        self._signals = signals
        self._clock = clock
        self._lease: Lease | None = None
        self._rounds = 0

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`. Ready also while another process has the lease or the database is away."""
        ready.up()
        try:
            while not stop.is_set():
                worked = await self._turn(stop)
                await _wait(stop, EVERY_SECONDS if worked else LOOK_SECONDS)
        finally:
            lease, self._lease = self._lease, None
            if lease is not None:
                await asyncio.shield(self._keeper.release_many([lease]))

    async def _turn(self, stop: asyncio.Event) -> bool:
        try:
            if self._lease is None or not self._lease.held:
                self._lease = await self._keeper.acquire(LEASE, ttl=self._ttl, on_lost=self._lost)
            if self._lease is None:
                return False
            await self._maintain(stop)
        except Unavailable:
            return False
        return True

    def _lost(self, _lease: Lease) -> None:
        self._lease = None

    async def _maintain(self, stop: asyncio.Event) -> None:
        done: Maintained | None = None
        ahead, schema = 0, self._manager.schema
        async with self._manager.connection() as connection:
            upkeep = Upkeep(connection, schema, now=self._clock.now(), remember=self._remember, stopped=stop.is_set)
            try:
                done = await upkeep.round(marks=self._rounds % MARKS_EVERY == 0)
            except asyncpg.InsufficientPrivilegeError:
                ahead = await days_ahead(connection, schema=schema)
        self._rounds += 1
        if done is None:
            self._signals.emit(PartitionsKept(0, ahead, allowed=False))
            return
        self._signals.emit(PartitionsKept(done.made, done.days_ahead, allowed=True))
        rows = done.events + done.finished + done.resolved + done.starts + done.occurrences
        self._signals.emit(
            RetentionKept(len(done.dropped), len(done.needed), len(done.held), rows, done.marks, done.leases)
        )


async def _wait(stop: asyncio.Event, within: float) -> None:
    try:
        async with asyncio.timeout(within):
            await stop.wait()
    except TimeoutError:
        return
