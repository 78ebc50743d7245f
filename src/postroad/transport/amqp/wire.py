"""The bytes of a publish on AMQP 0-9-1 (method, header and body frames in one piece), and what a delivery's say.

pika builds the same frames from some twenty objects per message and sends each with a system call of its own, which
is most of what a publish costs. A test compares every byte with pika's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pika.data import encode_table

from postroad.transport.base import Incoming

if TYPE_CHECKING:
    from postroad.transport.base import Outgoing, Tag

MARK: Final = "postroad-publish"
"""The header that names a publish: channel generation and number. A return carries it back; nothing else would."""

_FRAME: Final = struct.Struct(">BHI")
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_FRAME_OVERHEAD: Final = 8
_PUBLISH: Final = struct.pack(">HHH", 60, 40, 0)  # basic.publish, then a reserved short.
_MANDATORY: Final = b"\x01"  # A bit field: mandatory, immediate.
_CONTENT: Final = struct.Struct(">HHQH")  # Class, weight, body size, property flags.
_BASIC: Final = 60
# Properties stand in the order of their flags (AMQP 0-9-1, section 4.2.6.1).
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _CORRELATION_ID = 1 << 15, 1 << 13, 1 << 12, 1 << 10
_MESSAGE_ID, _TYPE, _USER_ID, _APP_ID = 1 << 7, 1 << 5, 1 << 4, 1 << 3
_ALWAYS: Final = _CONTENT_TYPE | _HEADERS | _DELIVERY_MODE | _CORRELATION_ID | _MESSAGE_ID | _TYPE | _APP_ID
_PERSISTENT: Final = b"\x02"
_LONGEST: Final = 255
_MARK_KEY: Final = bytes([len(MARK)]) + MARK.encode() + b"S"
_SIZE: Final = struct.Struct(">I")
_CACHED: Final = 1024  # Exchanges, routing keys and types are bounded by design; this bounds them in fact.


class PublishEncoder:
    """Encodes publishes for one open channel: mandatory, persistent, marked."""

    __slots__ = ("_channel", "_fragment", "_methods", "_tails", "_user_id")

    def __init__(self, channel: int, *, frame_max: int, user_id: str | None = None) -> None:
        """`user_id` makes the broker vouch for the connection's user; any other name is refused by it (406)."""
        self._channel = channel
        self._fragment = frame_max - _FRAME_OVERHEAD
        self._user_id = user_id
        self._methods: dict[tuple[str, str], bytes] = {}
        self._tails: dict[tuple[str, str], bytes] = {}

    def encode(self, message: Outgoing, mark: str) -> bytes:
        """All frames of one publish, carrying `mark` in the header `MARK`.

        Raises:
            ValueError: a name is longer than 255 bytes, or is no valid text.
            pika.exceptions.UnsupportedAMQPFieldException: a header's value has a type that AMQP does not know.
        """
        route = (message.exchange, message.routing_key)
        method = self._methods.get(route) or self._method(route)
        origin = (message.type, message.app_id)
        tail = self._tails.get(origin) or self._tail(origin)
        body = message.body
        size = len(body)
        header = b"".join(
            (
                _CONTENT.pack(_BASIC, 0, size, _ALWAYS | (0 if self._user_id is None else _USER_ID)),
                _short(message.content_type),
                _table(message.headers, mark),
                _PERSISTENT,
                _short(message.correlation_id),
                _short(message.message_id),
                tail,
            )
        )
        channel = self._channel
        pieces = [method, _FRAME.pack(_HEADER, channel, len(header)), header, _END]
        if size <= self._fragment:
            if size:
                pieces += (_FRAME.pack(_BODY, channel, size), body, _END)
        else:
            for start in range(0, size, self._fragment):
                part = body[start : start + self._fragment]
                pieces += (_FRAME.pack(_BODY, channel, len(part)), part, _END)
        return b"".join(pieces)

    def _method(self, route: tuple[str, str]) -> bytes:
        payload = b"".join((_PUBLISH, _short(route[0]), _short(route[1]), _MANDATORY))
        frame = b"".join((_FRAME.pack(_METHOD, self._channel, len(payload)), payload, _END))
        return _remember(self._methods, route, frame)

    def _tail(self, origin: tuple[str, str]) -> bytes:
        user = b"" if self._user_id is None else _short(self._user_id)
        return _remember(self._tails, origin, b"".join((_short(origin[0]), user, _short(origin[1]))))


def _remember(cache: dict[tuple[str, str], bytes], key: tuple[str, str], value: bytes) -> bytes:
    if len(cache) >= _CACHED:
        cache.clear()
    cache[key] = value
    return value


def _short(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > _LONGEST:
        raise ValueError(f"{len(encoded)} bytes where AMQP allows {_LONGEST}")
    return bytes((len(encoded),)) + encoded


def _table(headers: Mapping[str, Any], mark: str) -> bytes:
    if headers:
        pieces: list[bytes] = []
        encode_table(pieces, {**headers, MARK: mark})
        return b"".join(pieces)
    value = mark.encode()
    return b"".join((_SIZE.pack(len(_MARK_KEY) + 4 + len(value)), _MARK_KEY, _SIZE.pack(len(value)), value))


def incoming(tag: Tag, method: Any, properties: Any, body: bytes) -> Incoming:
    """A delivery as pika hands it over, in the transport's terms. Nothing is raised, whatever the properties hold."""
    return Incoming(
        tag=tag,
        body=body,
        content_type=_text(properties.content_type) or "",
        headers=properties.headers or {},
        exchange=_text(method.exchange) or "",
        routing_key=_text(method.routing_key) or "",
        redelivered=bool(method.redelivered),
        message_id=_text(properties.message_id),
        type=_text(properties.type),
        app_id=_text(properties.app_id),
        user_id=_text(properties.user_id),
    )


def _text(value: Any) -> str | None:
    """A short string; pika leaves one that is not UTF-8 as bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)
