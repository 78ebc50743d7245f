"""What is done once a second for all queues: due rows become ready, dead workers' rows come back, gauges are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from postroad.clock import seconds
from postroad.errors import Unavailable
from postroad.failures import Rules, classify
from postroad.signals.catalog import QuarantineState, TaskFailed, WorkRecovered, WorkSlots
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.work import store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.clock import Clock
    from postroad.signals import Signals
    from postroad.sql import Pipeline
    from postroad.sql.manager import Manager
    from postroad.work.lane import Lane
    from postroad.work.settings import WorkSettings

T = TypeVar("T")
_RULES: Final = Rules()
_RETURN: Final = seconds(5)
"""How long living processes may take to come back after an outage, at most."""


async def at_once(manager: Manager, pipeline: Pipeline[T]) -> T:
    """Run a pipeline of one statement without a transaction around it: one round trip."""
    async with manager.connection() as connection:
        return await drive(pipeline, AsyncpgHand(connection))


async def repeatedly(
    act: Callable[[], Awaitable[bool]], *, name: str, every: timedelta, signals: Signals
) -> None:  # fmt: skip
    """Run `act` until cancelled: at once again where it returns True, else after `every`.

    While the database is away it keeps trying, in silence: the claims tell of that. Other errors are reported.
    """
    while True:
        more = False
        try:
            more = await act()
        except Unavailable:
            pass
        except Exception as error:  # noqa: BLE001 - a service of ours: one bad round must not end the rounds
            report(error, name=name, signals=signals)
        if not more:
            await asyncio.sleep(every.total_seconds())


def report(error: Exception, *, name: str, signals: Signals) -> None:
    """Tell of an error that concerns the part `name` of this room alone."""
    verdict = classify(error, rules=_RULES, attempt=1)
    signals.emit(TaskFailed(name, verdict.error_type, verdict.reason))


class Sweeper:
    """Sweeps the tables on behalf of everybody: each process does, and they pass over each other's rows."""

    def __init__(
        self, manager: Manager, lanes: Mapping[str, Lane], *, signals: Signals, clock: Clock, settings: WorkSettings,
        wake: Callable[[], None], first: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Sweep `manager`'s schema; `first` goes before each, and `wake` is called when rows of a lane appeared."""
        self._manager = manager
        self._schema = manager.schema
        self._lanes = lanes
        self._signals = signals
        self._clock = clock
        self._settings = settings
        self._wake = wake
        self._first = first
        self._recover_at = float("-inf")
        self._gauges_at = 0.0

    async def sweep(self) -> bool:
        """Sweep once; whether there may be more to do at once.

        For one lease after the database was away nobody is taken for dead: an outage ends the leases of the living
        too, who come back and give back their rows uncharged.
        """
        try:
            return await self._sweep()
        except Unavailable:
            self._recover_at = self._clock.monotonic() + max(self._settings.lease, _RETURN).total_seconds()
            raise

    async def _sweep(self) -> bool:
        await self._apart(self._first(), None)
        due = await self._apart(at_once(self._manager, store.make_due(self._schema)), {})
        lost = await self._apart(self._recover(), {})
        for queue, count in lost.items():
            self._signals.emit(WorkRecovered(queue, count))
        for queue in {*due, *lost} & self._lanes.keys():
            self._lanes[queue].rewind()
        await self._apart(self._look_for_suspects(), None)
        self._wake()
        now = self._clock.monotonic()
        if now >= self._gauges_at:
            self._gauges_at = now + self._settings.gauges.total_seconds()
            await self._apart(self._tell(), None)
        return sum(due.values()) >= store.BATCH or sum(lost.values()) >= store.BATCH

    async def _apart(self, step: Awaitable[T], otherwise: T) -> T:
        """Take one step; one that fails is reported, and keeps no other from being taken."""
        try:
            return await step
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - what is wrong with one table or row stops nothing else
            report(error, name="work:sweep", signals=self._signals)
            return otherwise

    async def _recover(self) -> Mapping[str, int]:
        if self._clock.monotonic() < self._recover_at:
            return {}
        return await self._manager.run(store.recover(self._schema))

    async def _look_for_suspects(self) -> None:
        waiting = await at_once(self._manager, store.suspects(self._schema, list(self._lanes)))
        for queue, lane in self._lanes.items():
            lane.suspects = queue in waiting

    async def _tell(self) -> None:
        for lane in self._lanes.values():
            active = len(lane.in_hand) if lane.jobs is None else lane.jobs.active
            self._signals.emit(WorkSlots(lane.queue, lane.handler.slots, active))
        depths = await at_once(self._manager, store.quarantine_state(self._schema))
        self._signals.emit(
            QuarantineState(tuple((depth.queue, depth.count, depth.oldest.total_seconds()) for depth in depths))
        )
