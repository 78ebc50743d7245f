"""Which shards this process dispatches: its fair share of sixteen, taken and given up by lease."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import ceil
from typing import TYPE_CHECKING, Final

from postroad.signals.catalog import ShardsHeld

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from datetime import timedelta

    from postroad.leases import Keeper, Lease
    from postroad.signals import Signals

SHARDS: Final = 16


def fair_share(living: int) -> int:
    """How many shards each of `living` dispatchers may hold: enough that together they can hold all."""
    return ceil(SHARDS / max(1, living))


def surplus(held: Collection[int], *, busy: Collection[int], draining: Collection[int], living: int) -> frozenset[int]:
    """Which of `held` to give up among `living` dispatchers: those already `draining` first, then those not `busy`."""
    ranked = sorted(held, key=lambda shard: (shard not in draining, shard in busy, -shard))
    return frozenset(ranked[: max(0, len(held) - fair_share(living))])


class Shards:
    """The shards held by lease. A surplus one is read no more, and given up once none of its rows is in flight."""

    def __init__(
        self,
        keeper: Keeper,
        *,
        ttl: timedelta,
        signals: Signals,
        busy: Callable[[int], bool],
        take: Callable[[Collection[int]], Awaitable[None]],
        drop: Callable[[int], None],
    ) -> None:
        """`take` is awaited with shards that were leased, before they are read; `drop` hears of each that is gone."""
        self._keeper = keeper
        self._ttl = ttl
        self._signals = signals
        self._busy = busy
        self._take = take
        self._drop = drop
        self._held: dict[int, Lease] = {}
        self._draining: frozenset[int] = frozenset()
        self._presence: Lease | None = None
        self._told: tuple[tuple[int, ...], int] = ((), 0)

    def reading(self) -> dict[int, Lease]:
        """The shards to read now, with their leases."""
        return {shard: lease for shard, lease in self._held.items() if shard not in self._draining and lease.held}

    def holds(self, shard: int, lease: Lease) -> bool:
        """Whether `shard` is still held under this very `lease`, and trusted."""
        return self._held.get(shard) is lease and lease.held

    async def balance(self) -> None:
        """Take what is missing from our fair share and is free; give up what is too much. Safe to repeat.

        Raises:
            Unavailable: the database is away; what is held stays so until its lease runs out.
        """
        if self._presence is None or not self._presence.held:
            name = f"dispatcher:{self._keeper.holder}"
            self._presence = await self._keeper.acquire(name, ttl=self._ttl, on_lost=self._absent)
        living = max(1, await self._keeper.living("dispatcher:"))
        self.check()
        busy = [shard for shard in self._held if self._busy(shard)]
        self._draining = surplus(self._held, busy=busy, draining=self._draining, living=living)
        await self._give_up([shard for shard in self._draining if not self._busy(shard)])
        missing = fair_share(living) - len(self._held)
        if missing > 0:
            await self._acquire(missing)
        self._tell(living)

    async def leave(self) -> None:
        """Count among the living no more, so that others take what is free; what is held stays until `release`."""
        presence, self._presence = self._presence, None
        if presence is not None:
            await self._keeper.release_many([presence])

    async def release(self) -> None:
        """Give everything up; call it once nothing is in flight."""
        leases = [*self._held.values(), *([self._presence] if self._presence else [])]
        for shard in list(self._held):
            self._forget(shard)
        self._presence = None
        await self._keeper.release_many(leases)

    def check(self) -> None:
        """Forget what is no longer to be trusted; called before anything is sent, since a stopped process may wake."""
        for lease in [lease for lease in self._held.values() if not lease.held]:
            self.lost(lease)

    def lost(self, lease: Lease) -> None:
        """A shard's lease is gone: nothing more of it is sent, and late answers change nothing."""
        for shard, held in list(self._held.items()):
            if held is lease:
                self._forget(shard)

    async def _acquire(self, missing: int) -> None:
        names = [lease_name(shard) for shard in range(SHARDS) if shard not in self._held]
        taken = await self._keeper.acquire_many(names, ttl=self._ttl, on_lost=self.lost)
        taken, excess = taken[:missing], taken[missing:]
        if excess:
            await self._keeper.release_many(excess)
        if not taken:
            return
        fresh = {shard_of(lease.name): lease for lease in taken}
        try:
            await self._take(list(fresh))
        except BaseException:
            await self._keeper.release_many(taken)
            raise
        self._held.update({shard: lease for shard, lease in fresh.items() if lease.held})

    async def _give_up(self, shards: Collection[int]) -> None:
        leases = [self._held[shard] for shard in shards]
        for shard in shards:
            self._forget(shard)
        if leases:
            await self._keeper.release_many(leases)

    def _forget(self, shard: int) -> None:
        del self._held[shard]
        self._draining -= {shard}
        self._drop(shard)

    def _absent(self, lease: Lease) -> None:
        if self._presence is lease:
            self._presence = None

    def _tell(self, living: int) -> None:
        now = (tuple(sorted(self._held)), living)
        if now != self._told:
            self._told = now
            self._signals.emit(ShardsHeld(*now))


def lease_name(shard: int) -> str:
    """The name of a shard's lease."""
    return f"shard:{shard:02}"


def shard_of(name: str) -> int:
    """The shard of a lease's name."""
    return int(name.partition(":")[2])
