"""Headers that strangers send: none of them ends a connection, and what can be read is read as it was meant."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pika.data
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from postroad.signals.catalog import ConnectionDown
from postroad.transport.amqp.tables import MOST_FIELDS, Headers, read_header

MILLISECONDS = 1_764_470_000_000


class Raw(bytes):
    """A field as it goes over the wire, kind included."""


def nested(kind: bytes, depth: int) -> Raw:
    piece = b"V"
    for _ in range(depth):
        inner = piece if kind == b"A" else b"\x01n" + piece
        piece = kind + struct.pack(">I", len(inner)) + inner
    return Raw(piece)


@pytest.fixture
def raw_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pika write fields that it has no value for."""
    encode = pika.data.encode_value

    def encode_value(pieces: list[bytes], value: Any) -> int:
        if isinstance(value, Raw):
            pieces.append(value)
            return len(value)
        return encode(pieces, value)

    monkeypatch.setattr(pika.data, "encode_value", encode_value)


STRANGE = {
    "milliseconds": (Raw(struct.pack(">cQ", b"T", MILLISECONDS)), MILLISECONDS),
    "last-moment": (Raw(struct.pack(">cQ", b"T", 2**64 - 1)), 2**64 - 1),
    "half": (Raw(struct.pack(">cd", b"d", 0.5)), 0.5),
    "float": (Raw(struct.pack(">cf", b"f", 0.25)), 0.25),
    "deep-list": (nested(b"A", 5000), ...),
    "deep-table": (nested(b"F", 5000), ...),
    "plain": ("text", "text"),
}


@pytest.mark.timeout(60)
async def test_headers_that_pika_cannot_read_cost_no_connection(
    raw_fields: None, taking: Any, drain: Any, vhost: str
) -> None:
    line, intake = taking
    with pika.BlockingConnection(pika.URLParameters(vhost)) as stranger:
        properties = pika.BasicProperties(headers={name: sent for name, (sent, _) in STRANGE.items()})
        stranger.channel().basic_publish("", "billing", b"strange", properties)
    await line.outcomes(line.message(body=b"ours"))
    strange, ours = await drain(intake, 2)
    assert (strange.body, ours.body) == (b"strange", b"ours")
    expected = {name: value for name, (_, value) in STRANGE.items() if value is not ...}
    assert {name: strange.headers[name] for name in expected} == expected
    assert strange.headers.keys() == STRANGE.keys()
    assert line.heard.all(ConnectionDown) == []
    intake.ack([strange.tag, ours.tag])


HEADERS = st.recursive(
    st.one_of(
        st.text(max_size=20), st.binary(max_size=20), st.booleans(), st.none(), st.integers(-(2**63), 2**63 - 1),
        st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(microsecond=0)),  # noqa: DTZ001
        st.integers(-9999, 9999).map(lambda number: Decimal(number).scaleb(-2)),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=9), HEADERS, max_size=5))
def test_what_pika_can_read_is_read_alike(headers: dict[str, Any]) -> None:
    properties = pika.BasicProperties(content_type="a/b", headers=headers, message_id="m", timestamp=7, type="t")
    encoded = frame.Header(3, 12, properties).marshal()
    theirs_length, theirs = frame.decode_frame(encoded)
    length, ours = read_header(encoded + b"next") or (0, None)
    assert ours is not None
    assert length == theirs_length
    assert (ours.channel_number, ours.body_size) == (3, 12)
    assert vars(ours.properties) == vars(theirs.properties)


@given(st.binary(max_size=80), st.integers(0, 2**16 - 1))
def test_no_bytes_raise(garbage: bytes, flags: int) -> None:
    content = struct.pack(">HHQH", 60, 0, 1, flags) + garbage
    encoded = struct.pack(">BHL", spec.FRAME_HEADER, 1, len(content)) + content + b"\xce"
    length, read = read_header(encoded) or (0, None)
    assert length == len(encoded)
    assert isinstance(read, frame.Header)


def test_a_field_of_an_unknown_kind_keeps_its_bytes_and_what_came_before_it() -> None:
    fields = b"\x01aV" + b"\x01bQ\x00\x01"
    content = struct.pack(">HHQHI", 60, 0, 1, spec.BasicProperties.FLAG_HEADERS, len(fields)) + fields
    encoded = struct.pack(">BHL", spec.FRAME_HEADER, 1, len(content)) + content + b"\xce"
    _, read = read_header(encoded) or (0, None)
    assert read is not None
    assert read.properties.headers == {"a": None, "b": b"\x01bQ\x00\x01"}


def test_part_of_a_frame_and_other_frames_are_left_to_pika() -> None:
    encoded = frame.Header(1, 0, pika.BasicProperties(headers={"at": datetime(2026, 1, 1, tzinfo=UTC)})).marshal()
    assert all(read_header(encoded[:length]) is None for length in range(len(encoded)))
    assert read_header(frame.Heartbeat().marshal() + encoded) is None


def headers_of(fields: bytes) -> dict[Any, Any]:
    content = struct.pack(">HHQHI", 60, 0, 1, spec.BasicProperties.FLAG_HEADERS, len(fields)) + fields
    encoded = struct.pack(">BHL", spec.FRAME_HEADER, 1, len(content)) + content + b"\xce"
    _, read = read_header(encoded) or (0, None)
    assert read is not None
    return dict(read.properties.headers)


WIDE = 120_000


def test_of_a_frame_full_of_values_so_many_are_read_and_the_rest_stays_bytes() -> None:
    wide: bytes = b"V" * WIDE
    for _ in range(30):
        wide = b"A" + struct.pack(">I", len(wide)) + wide
    headers = headers_of(b"\x01a" + wide + b"\x01bV")
    found: Any = headers["a"]
    while len(found) == 1:
        found = found[0]
    assert len(found) == MOST_FIELDS - 30 + 1
    assert len(found[-1]) == WIDE - (MOST_FIELDS - 30)
    assert headers["b"] == b"\x01bV"
    many = headers_of(b"".join(b"\x04%04xV" % number for number in range(MOST_FIELDS + 5)))
    assert len(many) == MOST_FIELDS + 1


@pytest.mark.sabotage
def test_without_that_limit_all_of_them_are_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.transport.amqp.tables.MOST_FIELDS", 10**9)
    with pytest.raises(AssertionError):
        test_of_a_frame_full_of_values_so_many_are_read_and_the_rest_stays_bytes()


def test_a_name_that_is_not_there_is_not_looked_for_in_the_table() -> None:
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, {"postroad-publish": "1:2"})
    headers = Headers(b"".join(pieces)[4:])
    assert headers.get("postroad-replay") is None
    assert headers._table is None
    assert (headers.get("postroad-publish"), headers.get("publish"), headers.get(7, "x")) == ("1:2", None, "x")
