"""What happens to replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from postroad.signals.catalog.base import Level, Signal


@dataclass(frozen=True, slots=True)
class ReplayAdvanced(Signal):
    """Events of a replay are in the outbox again, for a consumer or (empty) for all; tombstones are passed over."""

    number: int
    target: str
    sent: int
    redacted: int


@dataclass(frozen=True, slots=True)
class ReplayWaits(Signal):
    """A replay sends no more while the broker refuses what it has sent."""

    level: ClassVar[Level] = Level.WARNING
    number: int
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplayEnded(Signal):
    """All of a replay has been sent, and arrived, so many seconds after its start."""

    level: ClassVar[Level] = Level.INFO
    number: int
    target: str
    seconds: float


@dataclass(frozen=True, slots=True)
class DeliveryRehandled(Signal):
    """A consumer runs an event of a replay again, which it had handled: its owner has asked for that."""

    consumer: str
    event_type: str
