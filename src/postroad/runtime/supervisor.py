"""Runs the services of an App: each is started, watched, started again when it fails, and stopped in its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from postroad.clock import seconds
from postroad.errors import AccessRefused, PostroadError, UsageError
from postroad.retry import Backoff
from postroad.runtime.executor import safe_reason
from postroad.signals.catalog import ServiceFailed, ServiceReady, ServiceStarted, TaskFailed

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.owner import Owner, Service
    from postroad.signals import Signals

RESTARTS: Final = Backoff(first=seconds(0.2), most=seconds(30))
_STEADY_SECONDS: Final = 60.0  # A service that ran this long starts its backoff anew.


class Tier(IntEnum):
    """When a service stops: what takes work in goes first, what it stands on goes last."""

    WORK = 1
    GROUND = 2


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What health shows of a service."""

    name: str
    ready: bool
    reason: str


class Supervisor:
    """Owns the tasks of services. Everything but `states` belongs to the loop that made it."""

    def __init__(self, owner: Owner, *, signals: Signals, clock: Clock, chance: Callable[[], float]) -> None:
        """Start tasks through `owner`; `chance` gives random numbers in [0, 1) for the jitter of restarts."""
        self._owner = owner
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._members: dict[str, _Member] = {}
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.fatal: asyncio.Future[PostroadError] = self._loop.create_future()

    def start(self, service: Service, *, tier: Tier = Tier.WORK, essential: bool = True) -> None:
        """Run `service` until it is stopped.

        An *essential* service that is misused or refused before it was ever ready sets `fatal`: trying again would
        not help. Any other end is reported as `ServiceFailed`, and the service starts again with backoff.

        Raises:
            UsageError: a service of this name runs already.
        """
        if service.name in self._members:
            raise UsageError("PR104", f"two services are called {service.name!r}; rename one")
        member = _Member(service, tier=tier, essential=essential, heard=self._note)
        self._members[service.name] = member
        member.task = self._owner.task(self._supervise(member), name=f"service:{service.name}")

    @property
    def states(self) -> tuple[ServiceState, ...]:
        """How every service is, in the order of their start; safe from any thread."""
        return tuple(ServiceState(member.name, member.is_ready, member.reason) for member in [*self._members.values()])

    async def wait_ready(self, names: Iterable[str] | None = None) -> None:
        """Wait until the named services (default all) are ready at the same time, for as long as it takes."""
        wanted = None if names is None else set(names)
        while not all(state.ready for state in self.states if wanted is None or state.name in wanted):
            self._changed.clear()
            await self._changed.wait()

    def tell(self, tier: Tier) -> None:
        """Tell the services of `tier` to stop; they finish or give back what they hold."""
        for member in self._of(tier):
            member.stop.set()

    def cancel(self, tier: Tier) -> None:
        """Cancel the services of `tier` that still run: they let go at once."""
        for member in self._of(tier):
            if member.task is not None:
                member.task.cancel("the grace period is over")

    def running(self, tier: Tier) -> list[asyncio.Task[None]]:
        """The tasks of the services of `tier` that have not ended."""
        return [member.task for member in self._of(tier) if member.task is not None and not member.task.done()]

    def holding(self, tier: Tier) -> list[str]:
        """The names of the services of `tier` that have not ended."""
        return [member.name for member in self._of(tier) if member.task is not None and not member.task.done()]

    def _of(self, tier: Tier) -> list[_Member]:
        return [member for member in self._members.values() if member.tier is tier]

    def _note(self, member: _Member) -> None:
        self._signals.emit(ServiceReady(member.name, member.is_ready, member.reason))
        self._loop.call_soon_threadsafe(self._changed.set)

    async def _supervise(self, member: _Member) -> None:
        failures = 0
        while not member.stop.is_set():
            began = self._clock.monotonic()
            self._signals.emit(ServiceStarted(member.name))
            error = await self._once(member)
            if self._is_over(member, error):
                break
            failures = 1 if self._clock.monotonic() - began >= _STEADY_SECONDS else failures + 1
            await self._report(member, error, failures)
        member.down("stopped")

    async def _once(self, member: _Member) -> Exception | None:
        try:
            await member.service.run(member.stop, member)
        except Exception as error:  # noqa: BLE001 - a service's border: reported, then started again
            return error
        return None

    def _is_over(self, member: _Member, error: Exception | None) -> bool:
        if member.stop.is_set():
            if error is not None:
                self._signals.emit(TaskFailed(member.name, type(error).__name__, safe_reason(error)))
            return True
        if member.essential and not member.was_ready and isinstance(error, UsageError | AccessRefused):
            if not self.fatal.done():
                self.fatal.set_result(error)
            return True
        return False

    async def _report(self, member: _Member, error: Exception | None, failures: int) -> None:
        kind = "Returned" if error is None else type(error).__name__
        reason = "ended without being told to" if error is None else safe_reason(error)
        delay = RESTARTS.delay(failures, chance=self._chance())
        self._signals.emit(ServiceFailed(member.name, kind, reason, delay.total_seconds()))
        member.down(f"failed ({kind}), starts again")
        await _pause(member.stop, delay)


async def _pause(stop: asyncio.Event, delay: timedelta) -> None:
    try:
        async with asyncio.timeout(delay.total_seconds()):
            await stop.wait()
    except TimeoutError:
        return


class _Member:
    """One service: its task, and the `Readiness` that it is handed."""

    def __init__(self, service: Service, *, tier: Tier, essential: bool, heard: Callable[[_Member], None]) -> None:
        self.service = service
        self.name = service.name
        self.tier = tier
        self.essential = essential
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.is_ready = False
        self.was_ready = False
        self.reason = "starting"
        self._heard = heard

    def up(self) -> None:
        """See `Readiness.up`; saying it twice changes nothing."""
        self.was_ready = True
        self._set("", is_ready=True)

    def down(self, reason: str) -> None:
        """See `Readiness.down`; saying the same twice changes nothing."""
        self._set(reason, is_ready=False)

    def _set(self, reason: str, *, is_ready: bool) -> None:
        if (self.is_ready, self.reason) == (is_ready, reason):
            return
        self.is_ready, self.reason = is_ready, reason
        self._heard(self)
