"""The scheduler: in one process of an App at a time it plans what is due, under a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from postroad.clock import seconds
from postroad.errors import LeaseLost, Unavailable
from postroad.failures import Rules, classify
from postroad.retry import full_jitter
from postroad.schedules import planner, settle
from postroad.schedules.decide import JUMP
from postroad.schedules.planner import Office
from postroad.schedules.registry import Registered, Release, register
from postroad.schedules.store import BATCH
from postroad.signals.catalog import (
    DatabaseClockStepped,
    LateWriteRefused,
    SchedulesDeclared,
    SchedulesSuperseded,
    TaskFailed,
)

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.leases import Keeper, Lease
    from postroad.owner import Readiness
    from postroad.schedules.schedule import Schedule
    from postroad.signals import Signals
    from postroad.sql.manager import Manager

SWEEP: Final = seconds(1)
"""How often the leader looks for what events have changed, and the others whether there is a leader."""
STANDBY: Final = seconds(5)
"""How often a process of an older release looks whether the newer one is gone."""
TTL: Final = seconds(15)
_BACK: Final = timedelta(minutes=1)
"""A database's clock that loses more than this against ours is reported."""
_RULES: Final = Rules()
_LEAST: Final = 0.05


@dataclass(slots=True)
class _Seen:
    """The database's time, and ours, at the last tick."""

    at: datetime
    steady: float


class Scheduler:
    """Plans an App's schedules; any number of processes run it, and one of them has the lease ``scheduler:<app>``.

    The lease only saves work: a tick is one transaction, fenced by it, that writes occurrences, their rows of work and
    the cursors, and occurrences are unique. A leader that is killed anywhere is followed by another within the lease
    and one sweep, which decides what is overdue by the schedules' own policies. A leader that lost its lease writes
    nothing, which is counted. All times are the database's.

    The schedules of the newest release that started hold; a process of an older one plans nothing while that lives.
    """

    name = "schedule"

    def __init__(
        self, app: str, schedules: Sequence[Schedule], *, manager: Manager, keeper: Keeper, signals: Signals,
        clock: Clock, chance: Callable[[], float], ttl: timedelta = TTL, sweep: timedelta = SWEEP,
        wake: Callable[[str], None] = lambda _: None, tz_version: str | None = None,
    ) -> None:  # fmt: skip
        """Plan `schedules`; `wake` is told of each queue in which a tick has put rows.

        Without schedules it retires those of an earlier release, and looks after their last runs.
        """
        self._release = Release.of(app, schedules, tz_version=tz_version)
        self._manager = manager
        self._schema = manager.schema
        self._keeper = keeper
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._ttl = ttl
        self._sweep = sweep if schedules else STANDBY
        self._wake = wake
        self._presence: Lease | None = None
        self._lease: Lease | None = None
        self._office: Office | None = None
        self._told = -1
        self._seen: _Seen | None = None
        self._swept = float("-inf")
        self._superseded = False

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`. Ready also while another process plans."""
        tries = 0
        try:
            while not stop.is_set():
                try:
                    wait = await self._turn()
                    tries = 0
                    ready.up()
                except Unavailable as error:
                    tries += 1
                    ready.down(error.code)
                    wait = (
                        0.05
                        + full_jitter(tries, first=seconds(0.2), most=seconds(2), chance=self._chance()).total_seconds()
                    )
                await _pause(stop, wait)
        finally:
            held = [lease for lease in (self._lease, self._presence) if lease is not None]
            self._lease = self._presence = None
            await asyncio.shield(self._keeper.release_many(held))

    async def _turn(self) -> float:
        """Do what there is to do; in how many seconds to look again."""
        await self._be_present()
        if self._lease is None or not self._lease.held:
            self._lease = self._office = None
            if not await self._lead():
                return (STANDBY if self._superseded else self._sweep).total_seconds()
        try:
            return await self._plan()
        except LeaseLost:
            self._signals.emit(LateWriteRefused("schedules", 1))
            await self._let_go()
            return self._sweep.total_seconds()
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a service of ours: one bad tick must not end the ticks
            verdict = classify(error, rules=_RULES, attempt=1)
            self._signals.emit(TaskFailed(self.name, verdict.error_type, verdict.reason))
            return self._sweep.total_seconds()

    # --- who plans --------------------------------------------------------------------------------------------------

    async def _be_present(self) -> None:
        """Count among the living of our release, so that an older one does not take it for gone."""
        if self._presence is None or not self._presence.held:
            name = f"{self._release.presence}{self._keeper.holder}"
            self._presence = await self._keeper.acquire(name, ttl=self._ttl, on_lost=lambda _: None)
        if self._told < 0:
            await self._register()

    async def _lead(self) -> bool:
        """Become the one that plans, if nobody is."""
        if self._superseded and not (await self._register()).number:
            return False
        lease = await self._keeper.acquire(f"scheduler:{self._release.app}", ttl=self._ttl, on_lost=lambda _: None)
        if lease is None:
            return False
        found = await self._register()
        if not found.number:
            await self._keeper.release_many([lease])
            return False
        self._lease = lease
        self._office = Office(
            app=self._release.app, release=found.number, lease=lease, tz_version=self._release.tz_version,
            known=found.known,
        )  # fmt: skip
        return True

    async def _register(self) -> Registered:
        found = await self._manager.run(register(self._schema, self._release))
        self._superseded = not found.number
        if found.number != self._told or found.new or found.changed or found.retired:
            self._told = found.number
            app, count = self._release.app, len(self._release.schedules)
            self._signals.emit(
                SchedulesDeclared(app, found.number, count, found.new, found.changed, found.retired)
                if found.number
                else SchedulesSuperseded(app)
            )
        return found

    # --- what is planned --------------------------------------------------------------------------------------------

    async def _plan(self) -> float:
        office = self._office
        assert office is not None
        if self._clock.monotonic() - self._swept >= self._sweep.total_seconds():
            await self._look_around(office)
        done = await self._manager.run(planner.tick(self._schema, office))
        if done.superseded:
            self._superseded = True
            await self._let_go()
            return self._sweep.total_seconds()
        for signal in done.told:
            self._signals.emit(signal)
        for queue in done.queues:
            self._wake(queue)
        self._compare(done.now)
        if done.visited >= BATCH:
            return 0.0
        longest = self._sweep.total_seconds()
        least = 0.0 if done.visited else _LEAST  # What is overdue, and was not had, is held by somebody for a moment.
        return longest if done.wait is None else min(max(done.wait, least), longest)

    async def _look_around(self, office: Office) -> None:
        """What is looked for once a sweep: runs that have ended, and backfills."""
        full = True
        while full:
            settled = await self._manager.run(settle.settle(self._schema, office))
            for signal in settled.told:
                self._signals.emit(signal)
            full = settled.count >= settle.BATCH
        await self._manager.run(settle.backfill(self._schema, office))
        self._swept = self._clock.monotonic()

    async def _let_go(self) -> None:
        """Lead no more; where the lease is lost already, the keeper forgets it."""
        lease, self._lease, self._office = self._lease, None, None
        if lease is not None:
            await self._keeper.release_many([lease])

    def _compare(self, now: datetime) -> None:
        """Report a database clock that has jumped against ours: what it made due went by the missed-run policies."""
        seen, steady = self._seen, self._clock.monotonic()
        self._seen = _Seen(now, steady)
        if seen is None:
            return
        gained = now - seen.at - seconds(steady - seen.steady)
        if gained > JUMP or gained < -_BACK:
            self._signals.emit(DatabaseClockStepped(round(gained.total_seconds(), 1)))


async def _pause(stop: asyncio.Event, within: float) -> None:
    if within <= 0:
        return
    try:
        async with asyncio.timeout(within):
            await stop.wait()
    except TimeoutError:
        return
