from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec
from pika.exceptions import UnsupportedAMQPFieldException

from postroad.transport.amqp.owed import Owed
from postroad.transport.amqp.wire import PublishEncoder
from postroad.transport.base import Outgoing

TEXT = st.text(max_size=40)
HEADERS = st.dictionaries(
    st.text(min_size=1, max_size=20),
    st.one_of(TEXT, st.integers(-(2**31), 2**31 - 1), st.booleans(), st.none()),
    max_size=4,
)


def by_pika(channel: int, message: Outgoing, mark: str, *, fragment: int, user_id: str | None) -> bytes:
    properties = spec.BasicProperties(
        content_type=message.content_type,
        headers={**message.headers, "postroad-publish": mark},
        delivery_mode=2,
        correlation_id=message.correlation_id,
        message_id=message.message_id,
        type=message.type,
        user_id=user_id,
        app_id=message.app_id,
    )
    method = spec.Basic.Publish(exchange=message.exchange, routing_key=message.routing_key, mandatory=True)
    parts = [message.body[start : start + fragment] for start in range(0, len(message.body), fragment)]
    frames = [frame.Method(channel, method), frame.Header(channel, len(message.body), properties)]
    return b"".join(one.marshal() for one in [*frames, *(frame.Body(channel, part) for part in parts)])


@given(
    names=st.tuples(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT),
    body=st.binary(max_size=300),
    headers=HEADERS,
    channel=st.integers(1, 2047),
    user=st.none() | TEXT,
)
def test_every_byte_is_what_pika_would_send(names: Any, body: bytes, headers: Any, channel: int, user: Any) -> None:
    exchange, key, message_id, kind, app, correlation, content_type = names
    message = Outgoing(1, exchange, key, body, message_id, kind, app, correlation, content_type, headers)
    encoder = PublishEncoder(channel, frame_max=108, user_id=user)
    for mark in ("1-1", "12-345678"):
        assert encoder.encode(message, mark) == by_pika(channel, message, mark, fragment=100, user_id=user)


def test_what_amqp_cannot_carry_is_refused() -> None:
    encoder = PublishEncoder(1, frame_max=1000)
    for fields in ({"routing_key": "k" * 256}, {"message_id": "\ud800"}):
        given: dict[str, Any] = {
            "ticket": 1,
            "exchange": "x",
            "routing_key": "k",
            "body": b"",
            "message_id": "m",
            "type": "t",
            "app_id": "a",
            "correlation_id": "c",
            "content_type": "json",
        }
        with pytest.raises(ValueError, match=r"255|surrogates"):
            encoder.encode(Outgoing(**{**given, **fields}), "1-1")
    with pytest.raises(UnsupportedAMQPFieldException):
        encoder.encode(Outgoing(**{**given, "headers": {"a": object()}}), "1-1")


@given(st.integers(1, 40), st.data())
def test_acks_settle_exactly_what_is_done_however_it_is_split(count: int, data: st.DataObject) -> None:
    owed = Owed()
    for tag in range(1, count + 1):
        owed.add(tag)
    broker = set(range(1, count + 1))  # What the broker waits for.
    undone = set(broker)
    order = data.draw(st.permutations(sorted(broker)))
    while order:
        size = data.draw(st.integers(1, len(order)))
        batch, order = order[:size], order[size:]
        upto, single = owed.settle(batch)
        undone -= set(batch)
        covered = {tag for tag in broker if upto is not None and tag <= upto}
        assert set(single) <= broker, "an unknown tag would make the broker close the channel"
        assert upto is None or upto in broker
        broker -= covered | set(single)
        assert broker == undone
        assert {tag for tag in range(1, count + 1) if tag in owed} == undone


def test_a_full_batch_in_order_is_one_ack() -> None:
    owed = Owed()
    for tag in range(1, 101):
        owed.add(tag)
    assert owed.settle(range(1, 101)) == (100, [])
    assert owed.settle([1, 2]) == (None, ())
