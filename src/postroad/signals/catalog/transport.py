"""What happens between us and the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from postroad.signals.catalog.base import Level, Signal


@dataclass(frozen=True, slots=True)
class ConnectionUp(Signal):
    """A connection to the broker stands; `role` is publish or consume, `after_seconds` how long it was away."""

    level: ClassVar[Level] = Level.INFO
    role: str
    after_seconds: float


@dataclass(frozen=True, slots=True)
class ConnectionDown(Signal):
    """A connection to the broker was lost or could not be made."""

    level: ClassVar[Level] = Level.WARNING
    role: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionBlocked(Signal):
    """The broker blocked (or unblocked) the connection because of an alarm."""

    level: ClassVar[Level] = Level.WARNING
    role: str
    blocked: bool


@dataclass(frozen=True, slots=True)
class ChannelClosed(Signal):
    """The broker closed a channel; `code` is the AMQP reply code."""

    level: ClassVar[Level] = Level.WARNING
    role: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerSubscribed(Signal):
    """The broker confirmed our consumer on its queue."""

    level: ClassVar[Level] = Level.INFO
    consumer: str
    prefetch: int


@dataclass(frozen=True, slots=True)
class ConsumerGone(Signal):
    """Our consumer no longer stands on its queue.

    `cause` is broker, channel_closed, connection, watchdog (the broker did not know of it) or stopped (by us).
    """

    consumer: str
    cause: str

    @property
    @override
    def level(self) -> Level:  # type: ignore[override]  # the one record whose weight depends on what it says
        """A warning, unless it was we who stopped or paused it."""
        return Level.INFO if self.cause == "stopped" else Level.WARNING


@dataclass(frozen=True, slots=True)
class StaleAcks(Signal):
    """Acks for a channel that died were dropped; the inbox decides when the broker delivers again."""

    consumer: str
    count: int


@dataclass(frozen=True, slots=True)
class TopologyMismatch(Signal):
    """What is declared and what the broker has differ, by kind of thing."""

    level: ClassVar[Level] = Level.ERROR
    kind: str
    count: int
