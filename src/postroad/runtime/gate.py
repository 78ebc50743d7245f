"""A service that starts only once the installation is proven: a copy of a database neither sends nor takes anything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.owner import Owner, Readiness, Service


class Bonded(Protocol):
    """Whether the installation is proven; `outbox.bond.Bond` knows."""

    cleared: asyncio.Event
    """Set while there is no doubt."""

    @property
    def doubt(self) -> str:
        """Why nothing may be sent or taken now."""
        ...


class Gate:
    """Runs a service under its own name, once there is no doubt; what it stands on is made only then."""

    def __init__(self, name: str, make: Callable[[], Service], *, bond: Bonded, owner: Owner) -> None:
        """`make` is called once, when `bond` is clear for the first time."""
        self.name = name
        self._make = make
        self._bond = bond
        self._owner = owner
        self._service: Service | None = None

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`."""
        if not self._bond.cleared.is_set():
            ready.down("waits until the installation is proven")
            waits = [self._owner.task(event.wait(), name=f"{self.name}:gate") for event in (stop, self._bond.cleared)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        if stop.is_set() and self._service is None:
            return
        if self._service is None:
            self._service = self._make()
        await self._service.run(stop, ready)
