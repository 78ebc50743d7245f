"""What happens when an authority is compared with its projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from postroad.signals.catalog.base import Level, Signal


@dataclass(frozen=True, slots=True)
class ReconciliationLooked(Signal):
    """Everything was compared once; `pending` differences may be events on their way, and are waited for."""

    reconciliation: str
    compared: int
    drift: int
    pending: int


@dataclass(frozen=True, slots=True)
class ReconciliationEnded(Signal):
    """A run has ended: complete, stopped or superseded; and what has drifted. `ended` is a Unix time."""

    level: ClassVar[Level] = Level.INFO
    reconciliation: str
    end: str
    compared: int
    missing: int
    extra: int
    mismatched: int
    pending: int
    seconds: float
    ended: float


@dataclass(frozen=True, slots=True)
class DriftRepaired(Signal):
    """A repair has ended: for how many keys something was done, failed, or was left alone."""

    level: ClassVar[Level] = Level.INFO
    reconciliation: str
    done: int
    failed: int
    left: int


@dataclass(frozen=True, slots=True)
class ProjectionLag(Signal):
    """A batch of deliveries was handled; the time from the occurrence of its first to that, in seconds."""

    consumer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ProjectionBehind(Signal):
    """How many events are still to come for a consumer, as far as they can be seen."""

    consumer: str
    events: int
