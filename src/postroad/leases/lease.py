"""The handle of one lease: a name, its fencing token, and whether we may still trust it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from postroad.clock import seconds
from postroad.errors import LeaseLost, UsageError

if TYPE_CHECKING:
    from postroad.clock import Clock

_SHORT: Final = seconds(5)


def margin(ttl: timedelta) -> timedelta:
    """By how much local trust ends before the database's: clocks may run at different rates.

    The larger of one second and a tenth of `ttl`; under five seconds (tests) always a tenth.
    """
    tenth = ttl / 10
    return tenth if ttl < _SHORT else max(seconds(1), tenth)


class Lease:
    """A name that is ours until further notice; made by `Keeper`. Safe to read from any thread.

    `token` grows with every take-over of the name: a write that carries it can be refused later (see `FENCE`).
    """

    __slots__ = ("_clock", "_gone", "_trusted_until", "holder", "name", "token", "ttl")

    def __init__(self, name: str, *, token: int, holder: UUID, ttl: timedelta, sent: float, clock: Clock) -> None:
        """A lease that was asked for at monotonic time `sent`."""
        self.name = name
        self.token = token
        self.holder = holder
        self.ttl = ttl
        self._clock = clock
        self._gone = False
        self._trusted_until = sent
        self.prolong(sent)

    @property
    def kind(self) -> str:
        """The part of the name before the colon: a label of metrics."""
        return self.name.partition(":")[0]

    @property
    def trusted_until(self) -> float:
        """The monotonic time at which `held` ends unless a renewal comes first."""
        return self._trusted_until

    @property
    def held(self) -> bool:
        """Whether no other process can hold the name now. Once False it stays so: acquire again for a new token."""
        return not self._gone and self._clock.monotonic() < self._trusted_until

    def check(self) -> None:
        """Do nothing while the lease is held; call it before every side effect.

        Raises:
            LeaseLost: it is not; stop at once and write nothing.
        """
        if not self.held:
            raise LeaseLost("PR401", f"the lease {self.name!r} (token {self.token}) is no longer held; stop this work")

    def prolong(self, sent: float) -> None:
        """Trust the lease anew: a renewal that was sent at monotonic time `sent` succeeded. The keeper's to call.

        The database stamps after `sent`, so local trust ends first as long as both clocks run at about one rate.
        """
        self._trusted_until = sent + (self.ttl - margin(self.ttl)).total_seconds()

    def end(self) -> None:
        """Never trust the lease again. The keeper's to call."""
        self._gone = True


def checked_ttl(ttl: timedelta) -> timedelta:
    """Return `ttl` if it is long enough to be renewed in time.

    Raises:
        UsageError: it is under a quarter of a second.
    """
    if ttl < timedelta(milliseconds=250):
        raise UsageError("PR107", f"a lease of {ttl.total_seconds():g} s cannot be renewed in time; use 5 s or more")
    return ttl
