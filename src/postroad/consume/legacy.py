"""How a consumer reads a queue that is another's: messages that need not be CloudEvents, in nobody's exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from postroad.errors import ContractError
from postroad.events.envelope import MAX_BODY_BYTES, Envelope, checked, message_key
from postroad.events.envelope import decode as read_envelope

if TYPE_CHECKING:
    from uuid import UUID

    from postroad.consume.consumer import Consumer
    from postroad.transport.base import Incoming
    from postroad.work.wire import Wire

E = TypeVar("E")

PROPERTIES: Final = "amqp-properties"
"""The header under which the properties of such a message are kept, so that its next attempt reads the same."""
_KEPT: Final = ("message_id", "type", "app_id", "user_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What came with a message beside its body. Nothing of it is vouched for but by who may write to the queue.

    Texts that the sender left out are None, `content_type` is empty then. `headers` have the values that AMQP gives
    them: texts, numbers, bytes, times, tables.
    """

    content_type: str
    headers: Mapping[str, Any] = field(repr=False)
    exchange: str
    routing_key: str
    message_id: str | None = None
    type: str | None = None
    app_id: str | None = None
    user_id: str | None = None


Decode: TypeAlias = Callable[[bytes, Properties], E | Envelope]
"""Turns a message into the event that its consumer reads, or into an `Envelope`: pure, quick, the same each time."""


def cloud_event(body: bytes, properties: Properties) -> Envelope:
    """Read a CloudEvent, in structured JSON or binary mode, whatever exchange it came by.

    What a consumer with ``queue`` does without a ``decode`` of its own; and what such a function can begin with.

    Raises:
        ContractError: PR501, it is none.
    """
    return read_envelope(body, content_type=properties.content_type, headers=properties.headers)


def with_properties(wire: Wire, incoming: Incoming) -> Wire:
    """Keep among the headers what else came with the message; a header of that name goes."""
    found = {name: value for name in _KEPT if (value := getattr(incoming, name)) is not None}
    return replace(wire, headers={**wire.headers, PROPERTIES: found})


def opened(consumer: Consumer[Any], wire: Wire) -> tuple[Envelope, UUID, Any]:
    """The envelope of a message of another's queue, its message key, and the event where the author has made it.

    Raises:
        ContractError: PR501, it is too large, `decode` failed or gave what is neither event nor envelope, or nothing
            tells the message from another; PR502, `decode` gave an event that the consumer does not read.
    """
    if len(wire.body) > MAX_BODY_BYTES:
        raise ContractError("PR501", f"the body has {len(wire.body)} bytes, the limit is {MAX_BODY_BYTES}")
    properties = _properties(wire)
    made = _decoded(consumer, wire.body, properties)
    if isinstance(made, Envelope):
        envelope = checked(made)
        return envelope, message_key(envelope), None
    envelope = _enveloped(consumer, made, properties)
    return envelope, message_key(envelope), made


def _properties(wire: Wire) -> Properties:
    headers = dict(wire.headers)
    kept = headers.pop(PROPERTIES, None)
    texts = {name: kept[name] for name in _KEPT if isinstance(kept, Mapping) and isinstance(kept.get(name), str)}
    return Properties(
        content_type=wire.content_type, headers=headers, exchange=wire.exchange or "",
        routing_key=wire.routing_key or "", **texts,
    )  # fmt: skip


def _decoded(consumer: Consumer[Any], body: bytes, properties: Properties) -> Any:
    try:
        return (consumer.decode or cloud_event)(body, properties)
    except ContractError:
        raise
    except Exception as error:  # noqa: BLE001 - the author's function met a message that it does not know
        message = f"the decode function of consumer {consumer.name!r} raised {type(error).__name__}"
        raise ContractError("PR501", message) from None  # Without its cause, whose text may quote the body.


def _enveloped(consumer: Consumer[Any], event: Any, properties: Properties) -> Envelope:
    """An event under the message's own name: without one a copy could not be told from another message."""
    reads = [each for each in consumer.subscriptions if type(event) is each.model]
    if len(reads) != 1:
        kind = type(event).__name__
        message = f"the decode function of consumer {consumer.name!r} gave {kind}, which is no event that it reads"
        raise ContractError("PR502" if not reads else "PR501", f"{message}; return one, or an Envelope")
    if not properties.message_id:
        message = "nothing tells this message from another: it has no message_id"
        raise ContractError("PR501", f"{message}; return an Envelope with an id from the body")
    sender = f":{properties.app_id}" if properties.app_id else ""
    envelope = Envelope(
        id=properties.message_id, source=f"urn:queue:{consumer.queue}{sender}", type=reads[0].type,
        version=reads[0].version, data={},
    )  # fmt: skip
    return checked(envelope)
