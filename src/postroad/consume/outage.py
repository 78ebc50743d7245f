"""What a consumer does about an outage: whom it asks, how often, and what else waits with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from postroad.clock import seconds
from postroad.retry import Backoff
from postroad.work.use import used

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.clock import Clock
    from postroad.failures import Dependency
    from postroad.work.use import Resources

T = TypeVar("T")

_FRESH_SECONDS: Final = 0.5
_PROBE: Final = Backoff(first=seconds(0.4), most=seconds(2), attempts=1)  # Waits 0.2 to 2 s.


class Probe(Protocol):
    """Says whether something is there: `sql.Manager` of our database, `DependencyProbe` of what an author named."""

    async def answers(self) -> bool:
        """Whether it answers; never raises for its absence."""
        ...


class Pausable(Protocol):
    """What else must wait while the consumer waits: the claimer of its retries."""

    def pause(self, queue: str) -> None:
        """Claim nothing of `queue`."""
        ...

    def resume(self, queue: str) -> None:
        """Claim of it again."""
        ...


class DependencyProbe:
    """Asks one dependency for one consumer; whoever asks within half a second of another gets the same answer."""

    def __init__(self, dependency: Dependency, resources: Resources, clock: Clock) -> None:
        """Not asked yet."""
        self._dependency = dependency
        self._resources = resources
        self._clock = clock
        self._lock = asyncio.Lock()
        self._answered = False
        self._at = float("-inf")

    async def answers(self) -> bool:
        """Whether its check returns in time; whatever the check raises means no."""
        async with self._lock:
            if self._clock.monotonic() - self._at >= _FRESH_SECONDS:
                self._answered = await self._ask()
                self._at = self._clock.monotonic()
            return self._answered

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(self._dependency.timeout.total_seconds()):
                await self._dependency.check(self._use)
        except Exception:  # noqa: BLE001 - the author's check: whatever it raises says that it is away
            return False
        return True

    def _use(self, kind: type[T], /) -> T:
        return used(self._resources, kind, by=f"the check of dependency {self._dependency.name!r}")


async def answered(probes: Sequence[Probe], stop: asyncio.Event, *, tries: int, chance: Callable[[], float]) -> None:
    """Ask `probes` again and again until all answer, or until we are told to `stop`.

    `tries` says how often one has gone away of late: the more often, the longer they are left alone at first.
    """
    while not stop.is_set():
        wait = _PROBE.delay(tries, chance=chance())
        try:
            async with asyncio.timeout(wait.total_seconds()):
                await stop.wait()
        except TimeoutError:
            tries += 1
        if all([await probe.answers() for probe in probes]):
            return
