"""Whether what an author named as a dependency is there: its check, asked not too often."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from postroad.work.use import used

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.failures import Dependency
    from postroad.work.use import Resources

T = TypeVar("T")

_FRESH_SECONDS: Final = 0.5


class DependencyProbe:
    """Asks one dependency, for a consumer or queue; who asks within half a second of another gets the same answer."""

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
