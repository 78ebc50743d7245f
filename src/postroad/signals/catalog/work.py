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
    """Claimed rows that ended within one turn of the loop, alike: ok, failed, cancelled, interrupted or lease_lost.

    `seconds` is how long each ran; `job` is the name of a job.
    """

    queue: str
    kind: str
    result: str
    count: int
    seconds: tuple[float, ...] = ()
    job: str = ""


@dataclass(frozen=True, slots=True)
class JobDelayed(Signal):
    """A job's attempt failed, or it asked for time; it is tried again after `delay_seconds`."""

    level: ClassVar[Level] = Level.INFO
    queue: str
    job: str
    reason_class: str
    error_type: str
    attempt: int
    delay_seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JobQuarantined(Signal):
    """A job was moved to quarantine: a person decides."""

    level: ClassVar[Level] = Level.WARNING
    queue: str
    job: str
    reason_class: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueuePaused(Signal):
    """This process heard that an operator has paused a queue: it claims nothing of it."""

    level: ClassVar[Level] = Level.INFO
    queue: str


@dataclass(frozen=True, slots=True)
class QueueResumed(Signal):
    """This process heard that a paused queue goes on."""

    level: ClassVar[Level] = Level.INFO
    queue: str


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
