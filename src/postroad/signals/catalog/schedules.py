"""What happens to schedules and their occurrences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from postroad.signals.catalog.base import Level, Signal


@dataclass(frozen=True, slots=True)
class SchedulesDeclared(Signal):
    """A release of an App has put its schedules into the database: how many are new, changed and retired."""

    level: ClassVar[Level] = Level.INFO
    app: str
    release: int
    declared: int
    new: int
    changed: int
    retired: int


@dataclass(frozen=True, slots=True)
class SchedulesSuperseded(Signal):
    """A newer release of the App has started: this process plans nothing while that one lives."""

    level: ClassVar[Level] = Level.INFO
    app: str


@dataclass(frozen=True, slots=True)
class OccurrencesDue(Signal):
    """Occurrences of a schedule became due and were written."""

    schedule: str
    count: int


@dataclass(frozen=True, slots=True)
class OccurrenceStarted(Signal):
    """An occurrence's job was enqueued, `late_seconds` after the time at which it was to start."""

    schedule: str
    kind: str
    late_seconds: float


@dataclass(frozen=True, slots=True)
class OccurrencesPassed(Signal):
    """Occurrences that do not run: `result` is missed, skipped, cancelled or failed, and why."""

    level: ClassVar[Level] = Level.INFO
    schedule: str
    result: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class OccurrenceEnded(Signal):
    """A run of a schedule ended: ok, failed or cancelled.

    `ended` is the time of its end as a Unix time. `delays` holds how long after the time at which it was to start a
    worker began it, in seconds; nothing where it was not the first attempt that ended.
    """

    schedule: str
    result: str
    ended: float
    delays: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulePaused(Signal):
    """A schedule was paused because its runs failed: a person decides."""

    level: ClassVar[Level] = Level.WARNING
    schedule: str
    failures: int


@dataclass(frozen=True, slots=True)
class DatabaseClockStepped(Signal):
    """The database's clock moved against ours by so many seconds, forward or (below zero) back."""

    level: ClassVar[Level] = Level.ERROR
    seconds: float
