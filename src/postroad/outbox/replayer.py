"""The service that carries replays on: from the log into the outbox, at their rates, in one process at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad.clock import seconds
from postroad.errors import LeaseLost, Unavailable
from postroad.failures import Rules, classify
from postroad.outbox import replay
from postroad.retry import full_jitter
from postroad.signals.catalog import LateWriteRefused, ReplayAdvanced, ReplayEnded, ReplayWaits, TaskFailed

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.leases import Keeper, Lease
    from postroad.owner import Readiness
    from postroad.signals import Signals
    from postroad.sql.manager import Manager

LEASE: Final = "replay"
TTL: Final = seconds(15)
SWEEP: Final = seconds(1)
"""How often it looks for replays that were started, and whether one that was stopped may be forgotten."""

STEPS_A_SECOND: Final = 5
"""How finely a rate is spread: what is staged meanwhile waits behind a fifth of a second's events at most."""

_MOST: Final = 500
_LATE: Final = 1.0
"""How many seconds that a slow database cost are caught up with: a rate is what the consumer can bear."""

_RULES: Final = Rules()
_FIRST_AWAY, _MOST_AWAY = seconds(0.2), seconds(2)


class Replayer:
    """Carries the replays of a database; any number of processes run it, and one of them has the lease ``replay``.

    Each step is one transaction, fenced by the lease, that puts events into the outbox and moves the cursor past them.
    Killed anywhere, another goes on within the lease and one sweep, without a gap; only what a dispatcher sends twice
    comes twice, as ever. One that lost its lease writes nothing, which is counted.
    """

    name = "replay"

    def __init__(
        self, manager: Manager, keeper: Keeper, *, signals: Signals, clock: Clock, chance: Callable[[], float],
        ttl: timedelta = TTL, sweep: timedelta = SWEEP,
    ) -> None:  # fmt: skip
        """Carry the replays of `manager`'s schema; `chance` draws a number from 0 to 1 for jitter."""
        self._manager = manager
        self._schema = manager.schema
        self._keeper = keeper
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._ttl = ttl
        self._sweep = sweep.total_seconds()
        self._lease: Lease | None = None
        self._rates: dict[int, float] = {}
        self._due: dict[int, float] = {}
        self._looks: dict[int, int] = {}
        self._troubles: dict[int, str] = {}
        self._looked = float("-inf")

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`. Ready also while another process carries them."""
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
                    jitter = full_jitter(tries, first=_FIRST_AWAY, most=_MOST_AWAY, chance=self._chance())
                    wait = 0.05 + jitter.total_seconds()
                await _pause(stop, wait)
        finally:
            lease, self._lease = self._lease, None
            await asyncio.shield(self._keeper.release_many([] if lease is None else [lease]))

    async def _turn(self) -> float:
        """Do what is due; in how many seconds to look again."""
        if self._lease is None or not self._lease.held:
            self._lease = await self._keeper.acquire(LEASE, ttl=self._ttl, on_lost=lambda _: None)
            if self._lease is None:
                return self._sweep
            self._looked = float("-inf")
        try:
            return await self._carry(self._lease)
        except LeaseLost:
            self._signals.emit(LateWriteRefused("replay", 1))
            self._lease = None
            return self._sweep

    async def _carry(self, lease: Lease) -> float:
        now = self._clock.monotonic()
        if now - self._looked >= self._sweep:
            self._rates = await self._manager.run(replay.running(self._schema))
            self._looked = now
            for book in (self._due, self._looks, self._troubles):
                for number in book.keys() - self._rates.keys():
                    del book[number]
        for number, rate in list(self._rates.items()):
            if self._due.get(number, now) <= self._clock.monotonic():
                await self._advance(lease, number, rate)
        now = self._clock.monotonic()
        due = min((self._due.get(number, now) for number in self._rates), default=float("inf"))
        return min(max(0.0, due - now), max(0.0, self._looked + self._sweep - now))

    async def _advance(self, lease: Lease, number: int, rate: float) -> None:
        """One step of one replay; one that cannot be carried stalls no other."""
        pause = 1 / STEPS_A_SECOND
        batch = max(1, min(_MOST, round(rate / STEPS_A_SECOND)))
        try:
            look = self._looks.get(number, 2 * batch)
            done = await self._manager.run(replay.step(self._schema, lease, number, batch=batch, look=look))
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:  # noqa: BLE001 - a service of ours: one replay must not end the others
            verdict = classify(error, rules=_RULES, attempt=1)
            self._signals.emit(TaskFailed(f"{self.name}:{number}", verdict.error_type, verdict.reason))
            self._due[number] = self._clock.monotonic() + self._sweep
            return
        if done is None or done.done:
            self._rates.pop(number, None)
        if done is not None:
            self._tell(number, done)
            few = done.again and done.sent + done.redacted < batch  # Where few are chosen, more is looked through.
            self._looks[number] = min(2 * look, replay.LOOKED) if few else max(look // 2, 2 * batch)
            now = self._clock.monotonic()
            spent = done.sent / rate if done.sent else 0.0 if done.again else pause
            self._due[number] = max(self._due.get(number, now), now - _LATE) + spent

    def _tell(self, number: int, done: replay.Step) -> None:
        target = done.target or ""
        if done.sent or done.redacted:
            self._signals.emit(ReplayAdvanced(number, target, done.sent, done.redacted))
        if done.trouble is not None and self._troubles.get(number) != done.trouble:
            self._signals.emit(ReplayWaits(number, target, done.trouble))
        self._troubles[number] = done.trouble or ""
        if done.done:
            self._signals.emit(ReplayEnded(number, target, done.seconds))


async def _pause(stop: asyncio.Event, within: float) -> None:
    if within <= 0:
        return
    try:
        async with asyncio.timeout(within):
            await stop.wait()
    except TimeoutError:
        return
