"""One frozen record for each thing that happens on the road."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Level(StrEnum):
    """How much a person should mind."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that happened. Fields are safe to print: never a payload, a key or a password."""

    level: ClassVar[Level] = Level.DEBUG


# --- outbox -----------------------------------------------------------------------------------------------------


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


# --- leases -----------------------------------------------------------------------------------------------------


class LossReason(StrEnum):
    """How a lease ended without its holder's wish."""

    EXPIRED = "expired"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class LeaseAcquired(Signal):
    """A lease was taken; `kind` is the part of its name before the colon."""

    kind: str
    name: str
    token: int


@dataclass(frozen=True, slots=True)
class LeaseReleased(Signal):
    """A lease was given up after its work had stopped."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class LeaseGone(Signal):
    """A lease was lost; whoever relied on it was told at once."""

    level: ClassVar[Level] = Level.WARNING
    kind: str
    name: str
    reason: LossReason


@dataclass(frozen=True, slots=True)
class LeasesRenewed(Signal):
    """A renewal round ended: `result` is ok, lost, late or error."""

    kind: str
    result: str
    count: int


@dataclass(frozen=True, slots=True)
class LateWriteRefused(Signal):
    """A write under a lost lease changed nothing: the fence held."""

    level: ClassVar[Level] = Level.WARNING
    room: str
    count: int


# --- transport --------------------------------------------------------------------------------------------------


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
    """Our consumer no longer stands on its queue; `cause` is broker, channel_closed, connection or stopped."""

    level: ClassVar[Level] = Level.WARNING
    consumer: str
    cause: str


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


# --- consume ----------------------------------------------------------------------------------------------------


class DeliveryResult(StrEnum):
    """What became of a delivery (section "failure classes" of the documentation)."""

    OK = "ok"
    DUPLICATE = "duplicate"
    DROP = "drop"
    RETRY = "retry"
    QUARANTINE = "quarantine"
    GIVEN_BACK = "given_back"


@dataclass(frozen=True, slots=True)
class DeliveriesReceived(Signal):
    """Deliveries arrived from the transport; `redelivered` of them carry the broker's flag."""

    consumer: str
    count: int
    redelivered: int


@dataclass(frozen=True, slots=True)
class HandlerStarted(Signal):
    """The author's handler is about to run, inside an open transaction."""

    consumer: str
    event_type: str
    attempt: int


@dataclass(frozen=True, slots=True)
class DeliveriesCommitted(Signal):
    """The effects of `count` deliveries are committed; the broker does not know it yet."""

    consumer: str
    count: int


@dataclass(frozen=True, slots=True)
class DeliverySettled(Signal):
    """One delivery (from the broker or from `work`) reached its outcome."""

    consumer: str
    event_type: str
    result: DeliveryResult
    seconds: float
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
    """A consumer takes nothing because something that it needs is away; nothing is charged."""

    level: ClassVar[Level] = Level.WARNING
    consumer: str
    reason: str


@dataclass(frozen=True, slots=True)
class IntakeResumed(Signal):
    """A paused consumer takes deliveries again."""

    level: ClassVar[Level] = Level.INFO
    consumer: str
    after_seconds: float


@dataclass(frozen=True, slots=True)
class Unacked(Signal):
    """How many deliveries a consumer holds that the broker still waits for."""

    consumer: str
    count: int


# --- work -------------------------------------------------------------------------------------------------------


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


# --- runtime ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServiceStarted(Signal):
    """A service of the App was started."""

    service: str


@dataclass(frozen=True, slots=True)
class ServiceReady(Signal):
    """A service reached (or left) the state in which it does its work."""

    level: ClassVar[Level] = Level.INFO
    service: str
    ready: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ServiceFailed(Signal):
    """A service ended without being told to; it is started again after `delay_seconds`."""

    level: ClassVar[Level] = Level.ERROR
    service: str
    error_type: str
    reason: str
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class TaskFailed(Signal):
    """A task or thread ended with an error that nobody awaited."""

    level: ClassVar[Level] = Level.ERROR
    task: str
    error_type: str
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionsKept(Signal):
    """Partitions were looked after: `days_ahead` stand; without `allowed` the database role may not make any."""

    level: ClassVar[Level] = Level.INFO
    made: int
    days_ahead: int
    allowed: bool


@dataclass(frozen=True, slots=True)
class HealthServing(Signal):
    """The health and metrics pages are served at this address."""

    level: ClassVar[Level] = Level.INFO
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ShutdownBegan(Signal):
    """The process was told to stop; `cause` is the signal's name or the reason."""

    level: ClassVar[Level] = Level.INFO
    cause: str
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class ShutdownReceipt(Signal):
    """The last word: what was finished, given back and abandoned, and how long it took."""

    level: ClassVar[Level] = Level.INFO
    finished: int
    given_back: int
    abandoned: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PublishDropped(Signal):
    """A publish was called and never awaited: nothing was staged."""

    level: ClassVar[Level] = Level.ERROR
    event_type: str
