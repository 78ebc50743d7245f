"""An event as a transport would bring it to one consumer: built from its class, or taken as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import UsageError
from postroad.events import Compatibility, EventType, Keep, Subscribers, event_type_of
from postroad.events.envelope import CONTENT_TYPE, MAX_PAYLOAD_BYTES, Envelope, decode, encode
from postroad.transport.base import Outgoing
from postroad.transport.topology import owner_of, replay_exchange

if TYPE_CHECKING:
    from uuid import UUID

    from postroad.consume.consumer import Consumer
    from postroad.events import Subscription

_TICKET: Final = 1


@dataclass(frozen=True, slots=True)
class Owner:
    """Stands for the producer of a foreign event."""

    name: str
    schema: str | None = None

    @property
    def source(self) -> str:
        """See `Producer.source`."""
        return f"urn:postroad:{self.name}"

    @property
    def exchange(self) -> str:
        """See `Producer.exchange`."""
        return f"{self.name}.events"


def letter(
    event: object, consumer: Consumer[Any], *, identity: UUID, now: datetime, key: str | None = None,
    sequence: int | None = None, occurred_at: datetime | None = None,
) -> Outgoing:  # fmt: skip
    """The publish of `event` to `consumer` alone.

    Raises:
        UsageError: PR107, the consumer does not read it, an option is not valid, or the options are the envelope's.
        ContractError: PR501, bytes that are no envelope.
    """
    if isinstance(event, bytes):
        if key is not None or sequence is not None or occurred_at is not None:
            raise UsageError("PR107", "deliver: key, sequence and occurred_at stand in the envelope that was given")
        return _outgoing(decode(event, content_type=CONTENT_TYPE, headers={}), event, consumer)
    declared = letter_type(event, consumer)
    body = encode(
        declared, event, id=identity, occurred=occurred_at or now, recorded=now, correlation=str(identity),
        key=key, sequence=sequence,
    )  # fmt: skip
    return _outgoing(decode(body, content_type=CONTENT_TYPE, headers={}), body, consumer)


def letter_type(event: object, consumer: Consumer[Any] | None) -> EventType:
    """The event type that `event` is for `consumer`, which may know it by a model of its own.

    Raises:
        UsageError: PR107, the consumer does not read its class; PR109, without one, the class is not declared.
    """
    return event_type_of(event) if consumer is None else _foreign_type(_subscription_of(event, consumer))


def _subscription_of(event: object, consumer: Consumer[Any]) -> Subscription[Any]:
    found = [item for item in consumer.subscriptions if item.model is type(event)]
    if not found:
        reads = ", ".join(item.model.__qualname__ for item in consumer.subscriptions)
        kind = event.__qualname__ if isinstance(event, type) else type(event).__qualname__
        shown = f"{kind} (the class itself)" if isinstance(event, type) else kind
        raise UsageError("PR107", f"consumer {consumer.name!r} does not read {shown}; it reads {reads}")
    return found[0]


def _foreign_type(subscription: Subscription[Any]) -> EventType:
    """The event type of a subscription, as its producer may have declared it."""
    return EventType(
        type=subscription.type, version=subscription.version, producer=Owner(owner_of(subscription.type)),
        model=subscription.model, adapter=subscription.adapter, retention=Keep.DAYS_7,
        compatibility=Compatibility.NONE, subscribers=Subscribers.OPTIONAL, upcasts={}, max_bytes=MAX_PAYLOAD_BYTES,
    )  # fmt: skip


def _outgoing(envelope: Envelope, body: bytes, consumer: Consumer[Any]) -> Outgoing:
    return Outgoing(
        ticket=_TICKET, exchange=replay_exchange(envelope.owner), routing_key=consumer.name, body=body,
        message_id=envelope.id, type=envelope.type, app_id=envelope.owner,
        correlation_id=envelope.correlation_id or envelope.id, content_type=CONTENT_TYPE,
    )  # fmt: skip
