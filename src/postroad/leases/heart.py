"""What runs on the heartbeat thread: one connection, the leases that it renews, and who hears of their loss."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from postroad.errors import Unavailable
from postroad.leases import store
from postroad.leases.lease import Lease
from postroad.leases.line import Line
from postroad.signals.catalog import LeaseAcquired, LeaseGone, LeaseReleased, LeasesRenewed, LossReason

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.signals import Signals
    from postroad.sql import Rows, Statement

OnLost = Callable[[Lease], None]

_LONGEST_REST: Final = 1.0
_LONGEST_WAIT: Final = 5.0
_AFTER_FAILURE: Final = 0.25
_AFTER_LOCKED: Final = 0.1
"""Soon, since most locks are a shard's, and short; a statement that waited for one would hold up all other leases."""


class Held:
    """A lease that is renewed, and whom to tell when it is lost."""

    __slots__ = ("ends_at", "lease", "loop", "on_lost", "renew_at", "told_at_stop")

    def __init__(
        self, lease: Lease, *, on_lost: OnLost, loop: asyncio.AbstractEventLoop, ends_at: float, told_at_stop: bool
    ) -> None:
        """Tell `on_lost` on `loop`. At `ends_at` it is lost, however well it is renewed.

        Our own rooms have ended when the heart stops; an author's block may not have, and is `told_at_stop`.
        """
        self.ends_at = ends_at
        self.told_at_stop = told_at_stop
        self.lease = lease
        self.on_lost = on_lost
        self.loop = loop
        self.renew_at = 0.0

    @property
    def good_until(self) -> float:
        """When it is lost unless a renewal comes first."""
        return min(self.lease.trusted_until, self.ends_at)

    def prolong(self, sent: float) -> None:
        """A take or renewal that was sent at `sent` succeeded."""
        self.lease.prolong(sent)
        self.renew_at = sent + self.lease.ttl.total_seconds() / 3

    def tell(self) -> None:
        """Call `on_lost` on the loop that acquired; a loop that is closed has nobody to tell."""
        try:
            self.loop.call_soon_threadsafe(self.on_lost, self.lease)
        except RuntimeError:
            return


class Heart:
    """Renews until it is stopped. All of it runs on one event loop, but for `stop`."""

    def __init__(self, url: str, *, schema: str, holder: UUID, clock: Clock, signals: Signals) -> None:
        """Nothing is opened yet."""
        self.beat = clock.monotonic()
        self._line = Line(url)
        self._schema = schema
        self._holder = holder
        self._clock = clock
        self._signals = signals
        self._held: dict[str, Held] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._stopping = False

    async def open(self) -> None:
        """Connect; see `Line.open`."""
        await self._line.open()

    def stop(self) -> None:
        """Make `run` return; call it on the heart's loop."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Renew what is due, in rounds, until `stop`; what is still held then runs out."""
        try:
            while not self._stopping:
                await self._rest(await self._round())
        finally:
            for held in self._held.values():
                held.lease.end()
                if held.told_at_stop or not self._stopping:  # a crash of the heart: nobody else will tell
                    held.tell()
            self._held.clear()
            self._arm()
            await self._line.close()

    async def take(
        self, names: Sequence[str], *, ttl: timedelta, on_lost: OnLost,
        loop: asyncio.AbstractEventLoop | None = None, max_runtime: timedelta | None = None,
        told_at_stop: bool = False,
    ) -> list[Lease]:  # fmt: skip
        """See `Keeper.acquire_many`; without a `loop` losses are told on the heart's own."""
        free = [name for name in names if name not in self._held]
        if not free:
            return []
        sent = self._clock.monotonic()
        statement = store.acquire(self._schema, free, holder=self._holder, ttl=ttl)
        rows = await self._line.fetch(statement, patience=self._patience(ttl))
        taken = []
        told_on = loop or asyncio.get_running_loop()
        ends_at = math.inf if max_runtime is None else sent + max_runtime.total_seconds()
        for row in rows:
            lease = Lease(row["name"], token=row["token"], holder=self._holder, ttl=ttl, sent=sent, clock=self._clock)
            held = Held(lease, on_lost=on_lost, loop=told_on, ends_at=ends_at, told_at_stop=told_at_stop)
            held.prolong(sent)
            self._held[lease.name] = held
            taken.append(lease)
            self._signals.emit(LeaseAcquired(lease.kind, lease.name, lease.token))
        self._arm()
        self._wake.set()
        return taken

    async def release(self, leases: Sequence[Lease]) -> None:
        """See `Keeper.release_many`."""
        ours = [lease for lease in leases if self._drop(lease)]
        for lease in ours:
            lease.end()
        if not ours:
            return
        try:
            await self.fetch(store.release(self._schema, ours))
        except Unavailable:
            return
        for lease in ours:
            self._signals.emit(LeaseReleased(lease.kind, lease.name))

    async def forget(self, leases: Sequence[Lease]) -> None:
        """See `Keeper.forget`."""
        for lease in leases:
            self._drop(lease)
            lease.end()
        self._arm()

    async def fetch(self, statement: Statement) -> Rows:
        """Run one statement on the heart's connection; see `Line.fetch`."""
        return await self._line.fetch(statement, patience=self._patience())

    # --- rounds -------------------------------------------------------------------------------------------------

    async def _round(self) -> float:
        """Do what is due now; how long to rest before the next round."""
        self.beat = self._clock.monotonic()
        self._expire()
        due = [held for held in self._held.values() if held.renew_at <= self.beat]
        done = await (self._renew(due) if due else self._stand())
        now = self.beat = self._clock.monotonic()
        if not done:
            return min(_AFTER_FAILURE, self._patience() / 2)
        next_at = min((held.renew_at for held in self._held.values()), default=now + _LONGEST_REST)
        return min(_LONGEST_REST, next_at - now)

    async def _rest(self, pause: float) -> None:
        self._wake.clear()
        if self._stopping or pause <= 0:
            return
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _renew(self, due: Sequence[Held]) -> bool:
        sent = self._clock.monotonic()
        leases = [held.lease for held in due]
        try:
            rows = await self.fetch(store.renew(self._schema, leases))
        except Unavailable:
            self._tell_renewed("error", due)
            return False
        locked = {row["name"]: row["locked"] for row in rows}
        kept = [held for held in due if locked.get(held.lease.name) is False and self._is_ours(held)]
        now = self._clock.monotonic()
        self._put_off([held for held in due if locked.get(held.lease.name)], now)
        late = [held for held in kept if now - held.renew_at > held.lease.ttl.total_seconds() / 3]
        for held in kept:
            held.prolong(sent)
        self._arm()
        self._tell_renewed("late", late)
        self._tell_renewed("ok", [held for held in kept if held not in late])
        lost = [held for held in due if held.lease.name not in locked and self._is_ours(held)]
        if lost:
            await self._lose(lost)
        return True

    def _put_off(self, locked: Sequence[Held], now: float) -> None:
        """Transactions fenced by these are open: neither renewed nor lost, tried again soon while trust lasts."""
        for held in locked:
            held.renew_at = now + min(_AFTER_LOCKED, held.lease.ttl.total_seconds() / 12)
        self._tell_renewed("locked", locked)

    async def _lose(self, lost: Sequence[Held]) -> None:
        """Zero rows: these are lost now, even where local trust remains. Tell first, then find out why."""
        for held in lost:
            self._drop(held.lease)
            held.lease.end()
            held.tell()
        self._tell_renewed("lost", lost)
        try:
            rows = await self.fetch(store.standing(self._schema, [held.lease for held in lost]))
            ours = {row["name"] for row in rows}
        except Unavailable:
            ours = {held.lease.name for held in lost}
        for held in lost:
            reason = LossReason.EXPIRED if held.lease.name in ours else LossReason.FENCED
            self._signals.emit(LeaseGone(held.lease.kind, held.lease.name, reason))

    async def _stand(self) -> bool:
        """With nothing to renew: remake a lost connection, so that the next request finds one."""
        if self._line.stands:
            return True
        try:
            await self._line.open(patience=self._patience())
        except Unavailable:
            return False
        return True

    # --- local trust --------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        """End what is no longer trusted: its renewals did not come through in time."""
        now = self._clock.monotonic()
        for held in [held for held in self._held.values() if held.good_until <= now]:
            self._drop(held.lease)
            held.lease.end()
            held.tell()
            reason = LossReason.OVERTIME if held.ends_at <= now else LossReason.EXPIRED
            self._signals.emit(LeaseGone(held.lease.kind, held.lease.name, reason))
        self._arm()

    def _arm(self) -> None:
        """Have `_expire` run the moment that the first lease runs out, also while a renewal waits for its answer."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._held:
            first = min(held.good_until for held in self._held.values())
            delay = max(0.0, first - self._clock.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(delay, self._expire)

    def _is_ours(self, held: Held) -> bool:
        return self._held.get(held.lease.name) is held

    def _drop(self, lease: Lease) -> bool:
        """Stop renewing `lease`; whether we did renew it."""
        held = self._held.get(lease.name)
        if held is None or held.lease is not lease:
            return False
        del self._held[lease.name]
        return True

    def _patience(self, ttl: timedelta | None = None) -> float:
        """How long one statement may take: a sixth of the shortest lease concerned, five seconds at most."""
        ttls = [held.lease.ttl for held in self._held.values()]
        ttls += [] if ttl is None else [ttl]
        return min(_LONGEST_WAIT, *(each.total_seconds() / 6 for each in ttls), _LONGEST_WAIT)

    def _tell_renewed(self, result: str, leases: Iterable[Held]) -> None:
        for kind, count in Counter(held.lease.kind for held in leases).items():
            self._signals.emit(LeasesRenewed(kind, result, count))
