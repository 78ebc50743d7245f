"""Deliveries read in one piece: the same as pika makes of them, and whatever is not one whole piece is left to pika."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pika import frame, spec

from postroad.transport.amqp.deliveries import hand_over
from postroad.transport.amqp.tables import read_header
from postroad.transport.amqp.wire import incoming
from postroad.transport.base import Incoming, Tag

CHANNEL, TAG, GENERATION = 3, "board.0192", 7
BODY = b'{"specversion":"1.0"}'
PROPERTIES: list[dict[str, Any]] = [
    {},
    {"content_type": "application/json"},
    {"headers": {}},
    {"headers": {"a": 1, "deep": {"b": [1, "two", None]}}, "delivery_mode": 2, "type": "t"},
    {
        "content_type": "application/cloudevents+json", "content_encoding": "identity", "headers": {"x": "y"},
        "delivery_mode": 2, "priority": 4, "correlation_id": "c", "reply_to": "r", "expiration": "60000",
        "message_id": "m", "timestamp": datetime(2026, 1, 1, tzinfo=UTC), "type": "flights.flight.departed",
        "user_id": "guest", "app_id": "flights", "cluster_id": "k",
    },
    {"type": "größe", "app_id": ""},
]  # fmt: skip


def method(number: int = 1, *, tag: str = TAG, redelivered: bool = False, channel: int = CHANNEL) -> bytes:
    deliver = spec.Basic.Deliver(tag, number, redelivered, "flights.events", "flights.flight.departed.v1")
    return bytes(frame.Method(channel, deliver).marshal())


def header(size: int = len(BODY), *, channel: int = CHANNEL, **properties: Any) -> bytes:
    if "timestamp" in properties:
        properties["timestamp"] = int(properties["timestamp"].timestamp())
    return bytes(frame.Header(channel, size, spec.BasicProperties(**properties)).marshal())


def body(text: bytes = BODY, *, channel: int = CHANNEL) -> bytes:
    return bytes(frame.Body(channel, text).marshal())


def delivery(number: int = 1, *, redelivered: bool = False, **properties: Any) -> bytes:
    return method(number, redelivered=redelivered) + header(**properties) + body()


def read(buffer: bytes) -> tuple[int, list[Incoming]]:
    heard: list[Incoming] = []
    return hand_over(buffer, {(CHANNEL, TAG.encode()): (GENERATION, heard.append)}), heard


def as_pika_reads(buffer: bytes) -> Incoming:
    end, first = frame.decode_frame(buffer)
    found = read_header(buffer[end:])
    assert found is not None
    _, last = frame.decode_frame(buffer[end + found[0] :])
    return incoming(
        Tag(GENERATION, first.method.delivery_tag), first.method, found[1].properties, last.fragment
    )  # fmt: skip


@pytest.mark.parametrize("redelivered", [False, True])
@pytest.mark.parametrize("properties", PROPERTIES)
def test_what_is_read_in_one_piece_is_what_pika_reads(properties: dict[str, Any], redelivered: bool) -> None:
    piece = delivery(2**40, redelivered=redelivered, **properties)

    assert read(piece) == (len(piece), [as_pika_reads(piece)])


def test_a_text_that_is_not_utf_8_is_what_pika_and_we_make_of_it() -> None:
    piece = delivery(type="abcd").replace(b"\x04abcd", b"\x04a\xffcd")

    assert read(piece)[1] == [as_pika_reads(piece)]
    assert read(piece)[1][0].type == "a\ufffdcd"


def test_deliveries_are_read_one_after_the_other_up_to_what_is_something_else() -> None:
    pieces = delivery(1) + delivery(2, type="t")
    rest = bytes(frame.Heartbeat().marshal()) + delivery(3)

    end, heard = read(pieces + rest)

    assert end == len(pieces)
    assert [each.tag for each in heard] == [Tag(GENERATION, 1), Tag(GENERATION, 2)]


@pytest.mark.parametrize("properties", [PROPERTIES[0], PROPERTIES[4]])
def test_what_has_not_come_whole_is_left_wherever_it_ends(properties: dict[str, Any]) -> None:
    first, second = delivery(1), delivery(2, **properties)

    for length in range(len(second)):
        end, heard = read(first + second[:length])
        assert (end, len(heard)) == (len(first), 1)


STRANGE = {
    "another consumer": method(tag="another") + header() + body(),
    "another channel": method(channel=4) + header(channel=4) + body(channel=4),
    "a header of another channel in between": method() + header(channel=4) + body(),
    "a body of another channel in between": method() + header() + body(channel=4),
    "a body in two frames": method() + header() + body(BODY[:5]) + body(BODY[5:]),
    "no body": method() + header(0) + delivery(2),
    "a return": bytes(frame.Method(CHANNEL, spec.Basic.Return(312, "NO_ROUTE", "e", "k")).marshal())
    + header()
    + body(),
    "a wrong end of the method's frame": method()[:-1] + b"\x00" + header() + body(),
    "a wrong end of the header's frame": method() + header()[:-1] + b"\x00" + body(),
    "a wrong end of the body's frame": method() + header() + body()[:-1] + b"\x00",
    "more flags than there are": delivery().replace(b"\x00\x00\xce" + body()[:1], b"\x00\x01\xce" + body()[:1]),
    "properties that end elsewhere": delivery(type="abcd").replace(b"\x04abcd", b"\x03abcd"),
    "a text longer than the frame": delivery(type="abcd").replace(b"\x04abcd", b"\xf0abcd"),
    "a table longer than the frame": delivery(headers={}).replace(b"\x00\x00\x00\x00\xce", b"\x00\x00\x40\x00\xce"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_whatever_is_not_one_piece_for_us_is_left_to_pika(what: str) -> None:
    assert STRANGE[what] != delivery()
    assert read(STRANGE[what] + b"\xce" * 300) == (0, [])
