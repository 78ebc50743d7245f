"""Deliveries read from the wire in one piece, where their method, header and body frames lie together.

pika builds three frames, a method and properties for each and asks its callbacks about every one, which is most of what
a delivery costs the transport's thread. What is not such a piece (a body in several frames, one that has not come
whole, a consumer that nobody hears) is left to pika. A test compares what both make of the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from postroad.transport.amqp.tables import Headers
from postroad.transport.base import Incoming, Tag

Hands = Mapping[tuple[int, bytes], tuple[int, Callable[[Incoming], None]]]
"""Who takes the deliveries of a channel's consumer (by number and tag), and the generation that their tags are of."""

_METHOD: Final = struct.Struct(">BHIIB")  # Type, channel and size of the frame; the method; the consumer tag's length.
_DELIVERY: Final = struct.Struct(">QB")  # Delivery tag, and bits: redelivered.
_HEADER: Final = struct.Struct(">BHIHHQH")  # Type, channel and size; class, weight and size of the body; flags.
_BODY: Final = struct.Struct(">BHI")
_SIZE: Final = struct.Struct(">I")
_METHOD_FRAME, _HEADER_FRAME, _BODY_FRAME, _END = 1, 2, 3, 0xCE
_BASIC, _DELIVER = 60, 60 << 16 | 60
_PREFIX: Final = 7  # Type, channel and size of any frame.
_TEXT: Final = 0
_CONTENT_TYPE, _HEADERS, _MESSAGE_ID, _TYPE, _USER_ID, _APP_ID = 1 << 15, 1 << 13, 1 << 7, 1 << 5, 1 << 4, 1 << 3
_WIDTHS: Final = (_TEXT, _TEXT, _SIZE.size, 1, 1, _TEXT, _TEXT, _TEXT, _TEXT, 8, _TEXT, _TEXT, _TEXT, _TEXT)
"""The properties in the order of their flags, highest first (AMQP 0-9-1, section 4.2.6.1): a short text, or so many
bytes; the headers' are those of their size, which follow."""
_UNKNOWN: Final = 0b11  # That there are more flags, and one without a meaning.
_KINDS: Final = {1 << (15 - place): width for place, width in enumerate(_WIDTHS)}


def hand_over(buffer: bytes, hands: Hands) -> int:
    """Give the deliveries that `buffer` begins with to those who take them; how many bytes that were."""
    at = 0
    try:
        while (end := _one(buffer, at, hands)) > at:
            at = end
    except (struct.error, IndexError):
        pass  # It has not come whole, or its lengths are wrong.
    return at


def _one(buffer: bytes, at: int, hands: Hands) -> int:
    """Give the delivery at `at` to whoever takes it; its end, or `at` where there is none that is read here.

    Raises:
        IndexError, struct.error: the buffer ends before the delivery does.
    """
    kind, channel, size, method, length = _METHOD.unpack_from(buffer, at)
    if kind != _METHOD_FRAME or method != _DELIVER:
        return at
    place = at + _METHOD.size + length
    hand = hands.get((channel, buffer[at + _METHOD.size : place]))
    if hand is None:
        return at
    number, bits = _DELIVERY.unpack_from(buffer, place)
    exchange, place = _short(buffer, place + _DELIVERY.size)
    routing_key, place = _short(buffer, place)
    content = _content(buffer, place + 1, channel)
    if content is None or place + 1 != at + _PREFIX + size + 1 or buffer[place] != _END:
        return at
    texts, headers, body, end = content
    generation, take = hand
    take(
        Incoming(
            tag=Tag(generation, number),
            body=body,
            content_type=texts.get(_CONTENT_TYPE, ""),
            headers=headers,
            exchange=exchange,
            routing_key=routing_key,
            redelivered=bits & 1 == 1,
            message_id=texts.get(_MESSAGE_ID),
            type=texts.get(_TYPE),
            app_id=texts.get(_APP_ID),
            user_id=texts.get(_USER_ID),
        )
    )
    return end


def _content(buffer: bytes, at: int, channel: int) -> tuple[dict[int, str], Mapping[str, Any], bytes, int] | None:
    """The texts and headers of the content at `at`, its body, and its end; None where it is not two plain frames."""
    kind, same, size, content, _, body_size, flags = _HEADER.unpack_from(buffer, at)
    if (kind, same, content, flags & _UNKNOWN) != (_HEADER_FRAME, channel, _BASIC, 0):
        return None
    texts, headers, place = _properties(buffer, at + _HEADER.size, flags)
    start = place + 1 + _BODY.size
    end = start + body_size + 1
    if (
        place != at + _PREFIX + size
        or _BODY.unpack_from(buffer, place + 1) != (_BODY_FRAME, channel, body_size)
        or not buffer[place] == buffer[end - 1] == _END
    ):
        return None
    return texts, headers, buffer[start : end - 1], end


def _properties(buffer: bytes, at: int, flags: int) -> tuple[dict[int, str], Mapping[str, Any], int]:
    """The texts by their flags, the headers, and where the properties end."""
    texts: dict[int, str] = {}
    headers: Mapping[str, Any] = {}
    for flag, width in _present(flags):
        if width == _TEXT:
            end = at + 1 + buffer[at]
            texts[flag] = buffer[at + 1 : end].decode("utf-8", "replace")
            at = end
            continue
        if flag == _HEADERS:
            (size,) = _SIZE.unpack_from(buffer, at)
            headers = Headers(buffer[at + width : at + width + size])
            at += size
        at += width
    return texts, headers, at


@lru_cache(maxsize=256)
def _present(flags: int) -> tuple[tuple[int, int], ...]:
    """The properties that `flags` say are there, and their widths."""
    return tuple((flag, width) for flag, width in _KINDS.items() if flags & flag)


def _short(buffer: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + buffer[at]
    return buffer[at + 1 : end].decode("utf-8", "replace"), end
