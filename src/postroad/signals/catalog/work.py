"""What happens to claimed work and in quarantine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from postroad.signals.catalog.base import Level, Signal


@dataclass(frozen=True, slots=True)
class WorkClaimed(Signal):
    """Rows of `work` were claimed by this process."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class WorkSettled(Signal):
    """A claimed row reached its outcome: ok, failed, interrupted or lease_lost."""

    queue: str
    kind: str
    result: str
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkRecovered(Signal):
    """Rows of a dead worker were given back, uncharged and suspect."""

    level: ClassVar[Level] = Level.WARNING
    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class WorkSlots(Signal):
    """How many rows a process may run at once, and how many it runs."""

    queue: str
    limit: int
    active: int


@dataclass(frozen=True, slots=True)
class QuarantineState(Signal):
    """What lies open in quarantine, per queue: `(queue, count, age of the oldest in seconds)`."""

    depth: tuple[tuple[str, int, float], ...]


@dataclass(frozen=True, slots=True)
class QueueDepth(Signal):
    """How many messages wait in a declared queue."""

    queue: str
    ready: int
