"""One message on its way to its handler: from bytes to an event that its consumer reads, without I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.consume import inbox, legacy
from postroad.errors import ContractError
from postroad.events.envelope import decode, message_key
from postroad.events.redacted import is_redacted
from postroad.failures import Drop
from postroad.transport.base import REPLAY_HEADER
from postroad.transport.topology import events_exchange, replay_exchange
from postroad.work.wire import Wire

if TYPE_CHECKING:
    from postroad.consume.consumer import Consumer
    from postroad.events import Subscription
    from postroad.events.envelope import Envelope
    from postroad.transport.base import Incoming, Tag
    from postroad.work.store import ClaimedRow

UNKNOWN_TYPE: Final = "unknown"
_SOURCE: Final = "urn:postroad:"
_TYPE = re.compile(r"[a-z0-9._-]{1,200}")


@dataclass(slots=True, kw_only=True)  # Not frozen: that would cost every delivery four times as much.
class Arrival:
    """One message at one consumer, as far as it has come.

    It came from the broker (`tag`) or from `work` (`row`, which owns the inbox mark). The steps below fill in the
    rest, or leave a `refusal`: then it can never be handled as it is. Without a `message_key` nothing vouches for
    its identity, and no mark is set in its name.
    """

    wire: Wire
    tag: Tag | None = None
    row: ClaimedRow | None = None
    redelivered: bool = False
    aged: bool = False  # old enough that its mark may have expired
    rehandled: bool = False  # its consumer's owner lets its replay run again, whatever its age
    envelope: Envelope | None = None
    message_key: UUID | None = None
    subscription: Subscription[Any] | None = None
    event: Any = field(default=None, repr=False)
    refusal: ContractError | Drop | None = None

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return 1 if self.row is None else self.row.attempt + 1

    @property
    def age(self) -> timedelta:
        """How long ago its first attempt failed."""
        return timedelta(0) if self.row is None else self.row.age

    @property
    def recorded(self) -> datetime | None:
        """When it was staged; for foreign events that do not say, when it occurred, if they say that."""
        envelope = self.envelope
        return None if envelope is None else envelope.recorded or envelope.time

    @property
    def occurred(self) -> datetime | None:
        """When it occurred, if it says that: an author's own envelope may have a time without a zone."""
        at = None if self.envelope is None else self.envelope.time
        return None if at is None or at.tzinfo is None else at

    @property
    def suspect(self) -> bool:
        """Whether a process may have died over it: it came before, and what became of that nobody said."""
        return self.redelivered and self.row is None and self.message_key is not None

    @property
    def event_type(self) -> str:
        """Its type where this consumer knows it: bounded, so that it may be a label."""
        return UNKNOWN_TYPE if self.subscription is None else self.subscription.type

    @property
    def replay(self) -> UUID | None:
        """The replay that it belongs to, where it is delivered for one: a row of `work` is on its way already."""
        given = None if self.row is not None or self.message_key is None else self.wire.headers.get(REPLAY_HEADER)
        try:
            return UUID(given) if isinstance(given, str) else None
        except ValueError:
            return None

    @property
    def lane(self) -> object:
        """Messages of one lane never run at the same time in a process: those of one key, and copies of one message."""
        if self.envelope is not None and self.envelope.key is not None:
            return self.envelope.key
        return self.message_key


# --- from bytes to an event ---------------------------------------------------------------------------------------


def received(incoming: Incoming, *, whole: bool = False) -> Arrival:
    """A delivery of the broker; a `whole` one keeps the properties for which a `Wire` has no place."""
    wire = Wire(
        body=incoming.body, content_type=incoming.content_type, headers=incoming.headers,
        exchange=incoming.exchange, routing_key=incoming.routing_key, event_type=_plain(incoming.type),
    )  # fmt: skip
    wire = legacy.with_properties(wire, incoming) if whole else wire
    return Arrival(wire=wire, tag=incoming.tag, redelivered=incoming.redelivered)


def resumed(row: ClaimedRow) -> Arrival:
    """A row of `work`: the same message, on its next attempt."""
    return Arrival(wire=row.wire, row=row)


def identified(consumer: Consumer[Any], arrival: Arrival) -> Arrival:
    """Decode the envelope, check who sent it, what it is and in which version, and read its payload, once.

    It fills in the record that it is given, as far as it comes; a refusal stays there.
    """
    wire, envelope = arrival.wire, None
    try:
        delivered(consumer, arrival)
        if consumer.queue is None:
            envelope = arrival.envelope = opened(wire)
            arrival.message_key = vouched(wire, envelope)
        else:
            envelope, arrival.message_key, arrival.event = legacy.opened(consumer, wire)
            arrival.envelope = envelope
        subscription = arrival.subscription = recognised(consumer, envelope)
        remaining(wire)
        admitted(consumer, envelope, subscription)
        if arrival.event is None:
            arrival.event = validated(envelope, subscription)
    except (ContractError, Drop) as error:
        arrival.refusal = error
    if envelope is not None and wire.event_type != envelope.type:
        arrival.wire = replace(wire, event_type=_plain(envelope.type))
    return arrival


def delivered(consumer: Consumer[Any], arrival: Arrival) -> None:
    """Check that a row of the consumer's queue is a message, and no job that was enqueued there.

    Raises:
        ContractError: it is a job.
    """
    if arrival.row is not None and arrival.row.kind == "job":
        raise ContractError("PR513", f"a job waits in the queue of consumer {consumer.name!r}, which runs none")


def opened(wire: Wire) -> Envelope:
    """Read the envelope.

    Raises:
        ContractError: it is not valid.
    """
    return decode(wire.body, content_type=wire.content_type, headers=wire.headers)


def vouched(wire: Wire, envelope: Envelope) -> UUID:
    """Check that the event came by an exchange of its type's owner, where the owner alone may write; its message key.

    A source that is no Postroad producer's is its own business, as long as the exchange is the owner's.

    Raises:
        ContractError: it came by another way, or in the name of another producer.
    """
    owner = envelope.owner
    if wire.exchange != events_exchange(owner) and wire.exchange != replay_exchange(owner):
        expected = _shown(events_exchange(owner))
        raise ContractError(
            "PR504", f"{_shown(envelope.type)} did not come by {expected}, where its owner alone writes"
        )
    if envelope.source.startswith(_SOURCE) and not envelope.is_own:
        raise ContractError("PR504", f"{_shown(envelope.type)} names a source that is not its owner")
    return message_key(envelope)


def remaining(wire: Wire) -> None:
    """Check that something is left of the event.

    Raises:
        Drop: it was erased; what came in its place has its id and nothing else.
    """
    if is_redacted(wire.body):
        raise Drop("redacted")


def recognised(consumer: Consumer[Any], envelope: Envelope) -> Subscription[Any]:
    """Find the subscription for the event's type.

    Raises:
        ContractError: the consumer has none.
    """
    subscription = consumer.types.get(envelope.type)
    if subscription is None:
        raise ContractError("PR502", f"consumer {consumer.name!r} does not subscribe to {_shown(envelope.type)}")
    return subscription


def admitted(consumer: Consumer[Any], envelope: Envelope, subscription: Subscription[Any]) -> None:
    """Check the version, and that the event says what the consumer's order needs.

    Raises:
        ContractError: the version is not read here, or key or sequence are missing.
    """
    if not subscription.accepts(envelope.version):
        message = (
            f"consumer {consumer.name!r} reads version {subscription.version} of {subscription.type}, "
            f"this is version {envelope.version}; it can be released once the consumer is upgraded"
        )
        raise ContractError("PR503", message)
    if consumer.order is not None and (envelope.key is None or envelope.sequence is None):
        raise ContractError("PR501", f"consumer {consumer.name!r} asks for order: the event needs a key and a sequence")


def validated(envelope: Envelope, subscription: Subscription[Any]) -> Any:
    """Read the payload into the subscription's model.

    Raises:
        ContractError: it does not fit.
    """
    try:
        return subscription.decode(envelope.data, version=envelope.version)
    except ContractError:
        raise
    except Exception as error:  # noqa: BLE001 - a validator of the author's, on a payload that nobody vouches for
        raise ContractError("PR505", f"a validator of {subscription.type} raised {type(error).__name__}") from None


def dated(arrival: Arrival, *, now: datetime) -> Arrival:
    """Notice one that is so old that its mark may have expired; any other passes as it is."""
    recorded = arrival.recorded
    old = recorded is not None and now - recorded > inbox.FRESH_FOR
    return replace(arrival, aged=True) if old else arrival


def _shown(text: str) -> str:
    """A name as it may be printed: what could be anything is not repeated."""
    return repr(text) if _TYPE.fullmatch(text) else "a name that is not one"


def _plain(text: str | None) -> str | None:
    return text if text is not None and _TYPE.fullmatch(text) else None
