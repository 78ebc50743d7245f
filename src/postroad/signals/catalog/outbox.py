"""What happens between the outbox and the broker."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from postroad.signals.catalog.base import Level, Signal


class PublishResult(StrEnum):
    """What became of a publish."""

    CONFIRMED = "confirmed"
    NO_SUBSCRIBER = "no_subscriber"
    RETURNED = "returned"
    NACKED = "nacked"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class PublishesSettled(Signal):
    """A batch of publishes of one route was settled by the broker; the outbox does not know it yet.

    `seconds` is hand-over to settlement, `delays` is recorded to settlement, both per event; `attempts` counts
    the failed tries before this one, per event.
    """

    event_type: str
    version: int
    result: PublishResult
    count: int
    seconds: tuple[float, ...] = ()
    delays: tuple[float, ...] = ()
    attempts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OutboxRead(Signal):
    """A poll read `count` rows to dispatch."""

    count: int


@dataclass(frozen=True, slots=True)
class OutboxCleared(Signal):
    """Confirmed rows were deleted from the outbox, or refused ones charged, in one fenced statement."""

    deleted: int
    refused: int


@dataclass(frozen=True, slots=True)
class PublishRefused(Signal):
    """The broker returned or refused events of one route; they stay in the outbox, with their reason."""

    level: ClassVar[Level] = Level.WARNING
    event_type: str
    version: int
    result: PublishResult
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class RouteBlocked(Signal):
    """A route was refused, or never answered: its rows are passed over, and one is tried after each wait."""

    level: ClassVar[Level] = Level.WARNING
    event_type: str
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class RouteReleased(Signal):
    """A blocked route took an event again, or has none any more, after so many seconds: its rows go on, in order."""

    level: ClassVar[Level] = Level.INFO
    event_type: str
    version: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BodyMissing(Signal):
    """A waiting row has no body in the log; it is kept and reported, never skipped in silence."""

    level: ClassVar[Level] = Level.ERROR
    place: int
    seq: int


@dataclass(frozen=True, slots=True)
class OutboxState(Signal):
    """What waits in the outbox: `pending` per route, and the age of the oldest in seconds."""

    pending: tuple[tuple[str, int], ...]
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class ShardsHeld(Signal):
    """The shards that this process dispatches changed."""

    level: ClassVar[Level] = Level.INFO
    shards: tuple[int, ...]
    dispatchers: int


@dataclass(frozen=True, slots=True)
class InstallationConfirmed(Signal):
    """This database is the one that the broker knows: the process sends and takes."""

    level: ClassVar[Level] = Level.INFO
    installation: str
    broker: str


@dataclass(frozen=True, slots=True)
class InstallationDoubted(Signal):
    """This database may be a copy, or belongs to another broker: nothing is sent or taken until a person says so."""

    level: ClassVar[Level] = Level.ERROR
    installation: str
    reason: str
