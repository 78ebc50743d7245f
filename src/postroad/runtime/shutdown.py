"""The way down: who is told when, what is cancelled when, and the receipt at the end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad.runtime.supervisor import Supervisor, Tier
from postroad.signals.catalog import DeliveryResult, DeliverySettled, ExecutorSettled, ShutdownReceipt, WorkSettled

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.signals import Signal

FINISH: Final = 2 / 3
"""Until this part of the grace period what runs may finish; then it is cancelled."""
GIVE_UP: Final = 7 / 8
"""From this part on nothing is waited for: acks and confirms are flushed, leases released, connections closed."""
LET_GO: Final = 15 / 16  # Once hurried, what was cancelled may roll back and give back until here,
_CLOSED: Final = 31 / 32  # and acks and confirms go out until here.
_LOOK_SECONDS: Final = 0.02
_INTERRUPTED: Final = frozenset({"interrupted", "lease_lost"})


class Told:
    """Whether the process was told to stop, since when, and whether to hurry. Safe from any thread.

    The first word begins the grace period; a second one means: give up now, as at seven eighths of it.
    """

    def __init__(self, grace: timedelta, *, clock: Clock) -> None:
        """Not told yet."""
        self.grace = grace
        self.cause = ""
        self._clock = clock
        self._lock = threading.RLock()  # A signal handler may interrupt itself.
        self._began: float | None = None
        self._hurried: float | None = None
        self._listeners: list[Callable[[], object]] = []

    @property
    def begun(self) -> bool:
        """Whether the first word was said."""
        return self._began is not None

    @property
    def hurried(self) -> bool:
        """Whether the second word was said."""
        return self._hurried is not None

    @property
    def elapsed(self) -> float:
        """Seconds since the first word; 0 before it."""
        return 0.0 if self._began is None else self._clock.monotonic() - self._began

    @property
    def late(self) -> float:
        """Seconds since the end of the grace period (shortened once hurried); 0 before it."""
        if self._hurried is not None:
            return max(self._clock.monotonic() - self._hurried - self.grace.total_seconds() * (1 - GIVE_UP), 0.0)
        return max(self.elapsed - self.grace.total_seconds(), 0.0)

    def tell(self, cause: str) -> None:
        """Say it once, or once more. `cause` is the signal's name or a short reason."""
        with self._lock:
            if self._began is None:
                self._began, self.cause = self._clock.monotonic(), cause
            elif self._hurried is None:
                self._hurried = self._clock.monotonic()
            listeners = [*self._listeners]
        for hear in listeners:
            hear()

    def on_word(self, hear: Callable[[], object]) -> None:
        """Call `hear`, in whatever thread speaks, at every word; at once if one was said already."""
        with self._lock:
            self._listeners.append(hear)
            late = self._began is not None
        if late:
            hear()

    def left(self, part: float) -> float:
        """Seconds until `part` of the grace period is over; none before GIVE_UP once hurried."""
        if self._hurried is not None:
            spent = self._clock.monotonic() - self._hurried
            return max(self.grace.total_seconds() * (part - GIVE_UP) - spent, 0.0)
        return max(self.grace.total_seconds() * part - self.elapsed, 0.0)


class Tally:
    """A sink that counts what became of what was in hand when the process was told to stop."""

    def __init__(self, told: Told) -> None:
        """Count from `told`'s first word on."""
        self._told = told
        self._lock = threading.Lock()
        self.finished = 0
        self.given_back = 0

    def __call__(self, signal: Signal) -> None:
        """Hear of settled deliveries, rows or background task; rows that are deliveries are counted as those."""
        if not self._told.begun:
            return
        if isinstance(signal, DeliverySettled):
            self._count(signal.count, given_back=signal.result is DeliveryResult.GIVEN_BACK)
        elif isinstance(signal, WorkSettled) and signal.kind not in {"retry", "delivery"}:
            self._count(signal.count, given_back=signal.result in _INTERRUPTED)
        elif isinstance(signal, ExecutorSettled) and signal.result != "cancelled":
            self._count(given_back=False)

    def _count(self, count: int = 1, *, given_back: bool) -> None:
        with self._lock:
            if given_back:
                self.given_back += count
            else:
                self.finished += count


async def wind_down(supervisor: Supervisor, *, told: Told) -> list[str]:
    """Stop what takes work in: told at once, cancelled at two thirds, left alone at seven eighths of the grace period.

    What it stands on (transport, leases, pool) still runs when this returns, so that acks go out and leases are
    renewed to the end. Returns the names of the services that still run.
    """
    supervisor.tell(Tier.WORK)
    await _ended(supervisor, Tier.WORK, told=told, part=FINISH)
    supervisor.cancel(Tier.WORK)
    await _ended(supervisor, Tier.WORK, told=told, part=GIVE_UP, hurried=LET_GO)
    return supervisor.holding(Tier.WORK)


async def close_ground(supervisor: Supervisor, *, told: Told) -> list[str]:
    """Stop what the others stood on: acks and confirms are flushed, within what is left of the grace period."""
    supervisor.tell(Tier.GROUND)
    await _ended(supervisor, Tier.GROUND, told=told, part=_CLOSED)
    supervisor.cancel(Tier.GROUND)
    await _ended(supervisor, Tier.GROUND, told=told, part=1)
    return supervisor.holding(Tier.GROUND)


def receipt(
    tally: Tally, more: tuple[int, int, int], *, told: Told, unfinished: Counter[str], left: Iterable[str] = (),
    strays: Iterable[str] = (),
) -> ShutdownReceipt:  # fmt: skip
    """The last word of a process: what was counted here, and `more` that services counted themselves.

    `unfinished` are background tasks by name: each was abandoned.
    """
    finished, given_back, abandoned = more
    names = tuple(name if count == 1 else f"{name} ({count})" for name, count in sorted(unfinished.items()))
    return ShutdownReceipt(
        tally.finished + finished, tally.given_back + given_back, abandoned + unfinished.total(), told.elapsed,
        unfinished=names, left=tuple(left), strays=tuple(strays),
    )  # fmt: skip


async def _ended(supervisor: Supervisor, tier: Tier, *, told: Told, part: float, hurried: float | None = None) -> None:
    """Wait until the services of `tier` have ended, or that part of the grace period is over (another once hurried)."""

    def left() -> float:
        return told.left(hurried if told.hurried and hurried is not None else part)

    while supervisor.running(tier) and left() > 0:  # noqa: ASYNC110 - three ends, one of them another thread's
        await asyncio.sleep(_LOOK_SECONDS)
