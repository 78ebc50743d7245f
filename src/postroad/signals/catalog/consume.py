"""What happens to deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from postroad.signals.catalog.base import Level, Signal


class DeliveryResult(StrEnum):
    """What became of a delivery (section "failure classes" of the documentation)."""

    OK = "ok"
    DUPLICATE = "duplicate"
    DROP = "drop"
    RETRY = "retry"
    QUARANTINE = "quarantine"
    GIVEN_BACK = "given_back"
    TAKEN = "taken"  # written to `work`, where its consumer's effects run


@dataclass(frozen=True, slots=True)
class DeliveriesReceived(Signal):
    """Deliveries arrived from the transport; `redelivered` of them carry the broker's flag."""

    consumer: str
    count: int
    redelivered: int


@dataclass(frozen=True, slots=True)
class HandlerStarted(Signal):
    """The author's handler is about to run, inside an open transaction unless it names effects."""

    consumer: str
    event_type: str
    attempt: int


@dataclass(frozen=True, slots=True)
class SuspectStarted(Signal):
    """A redelivered message is about to run that was started before, `unanswered` times, by processes that then died.

    `alone`: nothing runs beside it in the process.
    """

    level: ClassVar[Level] = Level.WARNING
    consumer: str
    event_type: str
    unanswered: int
    alone: bool


@dataclass(frozen=True, slots=True)
class DeadLetterCollected(Signal):
    """What the broker took out of a consumer's queue lies in quarantine; `fresh` where it did not before."""

    level: ClassVar[Level] = Level.ERROR
    consumer: str
    event_type: str
    reason: str
    fresh: bool


@dataclass(frozen=True, slots=True)
class DeliveriesCommitted(Signal):
    """The effects of `count` deliveries are committed; the broker does not know it yet."""

    consumer: str
    count: int


@dataclass(frozen=True, slots=True)
class DeliverySettled(Signal):
    """Deliveries (from the broker or from `work`) that reached their outcome within one turn of the loop, alike.

    `seconds` is how long each took.
    """

    consumer: str
    event_type: str
    result: DeliveryResult
    count: int
    seconds: tuple[float, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeliveriesAcked(Signal):
    """The transport was told that `count` deliveries are in safe hands."""

    consumer: str
    count: int


@dataclass(frozen=True, slots=True)
class DeliveryDelayed(Signal):
    """A failed delivery waits in `work` for its next attempt."""

    level: ClassVar[Level] = Level.WARNING
    consumer: str
    event_type: str
    reason_class: str
    error_type: str
    attempt: int
    delay_seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryQuarantined(Signal):
    """A delivery is kept in quarantine until a person decides."""

    level: ClassVar[Level] = Level.ERROR
    consumer: str
    event_type: str
    reason_class: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class IntakePaused(Signal):
    """A consumer (or queue of jobs) takes nothing because something that it needs is away; nothing is charged."""

    level: ClassVar[Level] = Level.WARNING
    consumer: str
    reason: str


@dataclass(frozen=True, slots=True)
class IntakeResumed(Signal):
    """A paused consumer, or queue of jobs, goes on."""

    level: ClassVar[Level] = Level.INFO
    consumer: str
    after_seconds: float


@dataclass(frozen=True, slots=True)
class Unacked(Signal):
    """How many deliveries a consumer holds that the broker still waits for."""

    consumer: str
    count: int
