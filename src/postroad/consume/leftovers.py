"""Deliveries that lie in `work` although a broker carries events by now: a moved App loses nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from postroad.clock import seconds
from postroad.consume.arrival import received
from postroad.consume.retries import Retries
from postroad.errors import LeaseLost, Unavailable
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.transport.postgres import store
from postroad.transport.postgres.intake import incoming_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from postroad.clock import Clock
    from postroad.consume.arrival import Arrival
    from postroad.consume.attempt import Attempts
    from postroad.owner import Readiness
    from postroad.signals import Signals
    from postroad.sql.manager import Manager
    from postroad.work.claimer import Claimer
    from postroad.work.store import ClaimedRow

_LOOK: Final = seconds(5)


class Leftovers(Retries):
    """Runs what the PostgreSQL transport has left for one consumer, each delivery in a transaction of its own.

    It goes the way of a delivery, not of a retry: the inbox knows what was handled before. Killed between the commit
    and the end of its row, it finds a duplicate the next time.
    """

    def __init__(self, attempts: Attempts, *, manager: Manager, signals: Signals, clock: Clock) -> None:
        """Run what is left for `attempts.consumer` in `manager`'s schema."""
        super().__init__(attempts, signals=signals, clock=clock)
        self.queue = store.deliveries_of(attempts.consumer.name)
        self._manager = manager

    @override
    async def run(self, row: ClaimedRow) -> None:
        """See `Retries.run`."""
        await super().run(row)
        if not await self._manager.fetch(store.ack(self._manager.schema, [(row.id, row.token)])):
            raise LeaseLost("PR401", f"row {row.id} of work was claimed by another worker")

    @override
    def _arrival(self, row: ClaimedRow) -> Arrival:
        return received(incoming_of(row))


class LeftoversWatch:
    """The service that lets the claimer look for leftovers as long as there are any, and no longer: most never are."""

    name = "leftovers"

    def __init__(self, claimer: Claimer, queues: Collection[str], *, manager: Manager) -> None:
        """Watch `queues`, of which `claimer` has the handlers."""
        self._claimer = claimer
        self._queues = frozenset(queues)
        self._manager = manager
        for queue in self._queues:
            claimer.pause(queue)

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`. It looks every five seconds: an older process may still write some."""
        ready.up()
        while not stop.is_set():
            try:
                async with self._manager.connection() as connection:
                    work = store.holding(self._manager.schema, sorted(self._queues))
                    held = await drive(work, AsyncpgHand(connection))
            except Unavailable:
                held = frozenset()
            for queue in self._queues:
                (self._claimer.resume if queue in held else self._claimer.pause)(queue)
            try:
                async with asyncio.timeout(_LOOK.total_seconds()):
                    await stop.wait()
            except TimeoutError:
                continue
