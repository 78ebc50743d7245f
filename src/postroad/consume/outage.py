"""What a consumer does about an outage: whom it asks, how often, and what else waits with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from postroad.clock import seconds
from postroad.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
