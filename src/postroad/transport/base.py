"""What a transport promises: publishes are settled one by one, deliveries are owed until acked or given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

REPLAY_HEADER: Final = "postroad-replay"
"""The header that names the replay which a publish belongs to; its value is the replay's id."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One publish. `ticket` names it to its publisher: unique while in flight, the same in its `Settled`.

    A `probe` finds out whether a route that was refused is well again: it goes out on a channel of its own, so that
    its end, or a broker that never answers it, disturbs no other publish.
    """

    ticket: int
    exchange: str
    routing_key: str
    body: bytes = field(repr=False)
    message_id: str
    type: str
    app_id: str
    correlation_id: str
    content_type: str
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    probe: bool = False


class Settlement(StrEnum):
    """How a publish ended. Only CONFIRMED means: accepted by the broker **and** routed to a queue."""

    CONFIRMED = "confirmed"
    RETURNED = "returned"  # accepted, but no queue wants it
    NACKED = "nacked"  # refused by a queue (full) or its process failed
    UNKNOWN = "unknown"  # the connection was lost, or the channel closed, before an answer
    OVERDUE = "overdue"  # no answer in time, while others were answered or not: its queue may hang; it may have arrived
    REFUSED = "refused"  # this very message made the broker close the channel (404, 403, 406)


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of one publish. `reason` is safe to print.

    UNKNOWN with a `code` says that the broker closed the channel over one publish of those that are UNKNOWN with it.
    """

    ticket: int
    settlement: Settlement
    reason: str = ""
    code: int = 0


class Publisher(Protocol):
    """Sends publishes and settles every one of them, once, in batches, on the caller's event loop.

    Nothing here raises for the broker's absence: what was handed over while it is away is settled UNKNOWN.
    """

    @property
    def writable(self) -> bool:
        """Whether to hand over more now: connected, and not blocked by the broker."""
        ...

    def publish(self, batch: Sequence[Outgoing]) -> None:
        """Hand over a batch in order; never waits. The caller bounds how much is in flight."""
        ...

    def on_settled(self, hear: Callable[[Sequence[Settled]], None]) -> None:
        """Who hears of settlements: called on the event loop on which the publisher was made."""
        ...

    def on_writable(self, hear: Callable[[], None]) -> None:
        """Who is told, on the same loop, that `writable` changed."""
        ...


class Tag(NamedTuple):
    """Names one delivery to its transport, within one generation of the channel."""

    generation: int
    number: int


@dataclass(slots=True)  # Not frozen: that would cost every delivery four times as much.
class Incoming:
    """One delivery as it came: bytes and wire properties, nothing decoded."""

    tag: Tag
    body: bytes = field(repr=False)
    content_type: str
    headers: Mapping[str, Any] = field(repr=False)
    exchange: str
    routing_key: str
    redelivered: bool
    message_id: str | None = None
    type: str | None = None
    app_id: str | None = None
    user_id: str | None = None


class Intake(Protocol):
    """One consumer's stream of deliveries. Everything received is owed: ack it, or give it back.

    What was taken before a `pause` may still be acked or given back. After a lost connection, a channel that the
    broker closed, or a consumer that it cancelled, the tags of that generation are dead: acking them is harmless,
    counted as stale, and the broker delivers those messages again.
    """

    async def take(self, most: int) -> Sequence[Incoming]:
        """Wait for deliveries and return at most `most` of those that are here; empty once stopped."""
        ...

    def ack(self, tags: Sequence[Tag]) -> None:
        """Tell the broker that these are in safe hands; never waits."""
        ...

    def give_back(self, tags: Sequence[Tag]) -> None:
        """Return these to the queue, uncharged."""
        ...

    async def pause(self) -> None:
        """Take nothing more: cancel at the broker, give back what was received and not taken."""
        ...

    async def resume(self) -> None:
        """Take again, by a new consumer."""
        ...

    async def stop(self) -> None:
        """Pause for good; acks already handed over are flushed before the channel closes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Where transports differ within the promise: what is wired asks, and so do the tests that all of them pass."""

    dead_letters: bool  # it takes messages out by itself, into a queue beside each consumer's
    blocks: bool  # it may take no publishes for a while although it is connected
    requeue_keeps_order: bool  # what is given back comes again where it was, whatever else was given back
    tags_outlive_cut: bool  # what was taken may still be acked after a connection was lost


class Transport(Protocol):
    """A road between Apps."""

    @property
    def abilities(self) -> Abilities:
        """Where it differs from others."""
        ...

    def publisher(self) -> Publisher:
        """The one publisher of this process, bound to the running loop."""
        ...

    def intake(self, queue: str, *, prefetch: int) -> Intake:
        """The stream of `queue`, bound to the running loop; it starts with the transport's service."""
        ...
