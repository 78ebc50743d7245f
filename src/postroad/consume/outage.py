"""What a consumer does about an outage: whom it asks, how often, and what else waits with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from postroad.clock import seconds
from postroad.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

_PROBE: Final = Backoff(first=seconds(0.4), most=seconds(2), attempts=1)  # Waits 0.2 to 2 s.


class Probe(Protocol):
    """Says whether our database is there; `sql.Manager` does."""

    async def answers(self) -> bool:
        """Whether the database answers; never raises for its absence."""
        ...


class Pausable(Protocol):
    """What else must wait while the consumer waits: the claimer of its retries."""

    def pause(self, queue: str) -> None:
        """Claim nothing of `queue`."""
        ...

    def resume(self, queue: str) -> None:
        """Claim of it again."""
        ...


async def answered(database: Probe, stop: asyncio.Event, *, tries: int, chance: Callable[[], float]) -> None:
    """Ask `database` again and again until it answers, or until we are told to `stop`.

    `tries` says how often it has gone away of late: the more often, the longer it is left alone at first.
    """
    while not stop.is_set():
        wait = _PROBE.delay(tries, chance=chance())
        try:
            async with asyncio.timeout(wait.total_seconds()):
                await stop.wait()
        except TimeoutError:
            tries += 1
        if await database.answers():
            return
