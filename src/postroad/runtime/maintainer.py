"""The service that keeps partitions ahead of the authors, in one process at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import asyncpg

from postroad.errors import Unavailable
from postroad.signals.catalog import PartitionsKept
from postroad.sql.partitions import days_ahead, make_ahead

if TYPE_CHECKING:
    from datetime import timedelta

    from postroad.leases import Keeper, Lease
    from postroad.owner import Readiness
    from postroad.signals import Signals
    from postroad.sql.manager import Manager

LEASE: Final = "maintain"
EVERY_SECONDS: Final = 3600.0
LOOK_SECONDS: Final = 60.0


class Maintainer:
    """Makes partitions ahead once an hour, under the lease ``maintain``: of several processes one does it.

    Authors do not depend on it: without a partition their rows land in the DEFAULT one. Where the database role may
    not make partitions, only the days ahead are reported, and `postroad maintain` as the owner must be scheduled.
    """

    name = "maintain"

    def __init__(self, manager: Manager, keeper: Keeper, *, ttl: timedelta, signals: Signals) -> None:
        """Work through `manager` while `keeper` holds the lease."""
        self._manager = manager
        self._keeper = keeper
        self._ttl = ttl
        self._signals = signals
        self._lease: Lease | None = None

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`. Ready also while another process has the lease or the database is away."""
        ready.up()
        try:
            while not stop.is_set():
                worked = await self._turn()
                await _wait(stop, EVERY_SECONDS if worked else LOOK_SECONDS)
        finally:
            lease, self._lease = self._lease, None
            if lease is not None:
                await asyncio.shield(self._keeper.release_many([lease]))

    async def _turn(self) -> bool:
        try:
            if self._lease is None or not self._lease.held:
                self._lease = await self._keeper.acquire(LEASE, ttl=self._ttl, on_lost=self._lost)
            if self._lease is None:
                return False
            await self.keep_ahead()
        except Unavailable:
            return False
        return True

    def _lost(self, _lease: Lease) -> None:
        self._lease = None

    async def keep_ahead(self) -> None:
        """Make what is missing, and report how many days lie ahead."""
        async with self._manager.connection() as lent:
            connection = cast("asyncpg.Connection[Any]", lent)
            schema = self._manager.schema
            made, allowed = 0, True
            try:
                made = (await make_ahead(connection, schema=schema)).get("made", 0)
            except asyncpg.InsufficientPrivilegeError:
                allowed = False
            ahead = await days_ahead(connection, schema=schema)
        self._signals.emit(PartitionsKept(made, ahead, allowed))


async def _wait(stop: asyncio.Event, within: float) -> None:
    try:
        async with asyncio.timeout(within):
            await stop.wait()
    except TimeoutError:
        return
