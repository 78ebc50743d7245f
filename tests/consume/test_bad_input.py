"""What can never be handled is quarantined, once, with a safe reason; the rest goes on."""

from __future__ import annotations

import json
import logging

import pytest

from consume.bench import Order, body
from consume.kinds import BOTH
from postroad.consume import consumer
from postroad.events import Subscription
from postroad.events.envelope import CONTENT_TYPE
from postroad.signals.catalog import DeliveryQuarantined, DeliveryResult, HandlerStarted

Placed = Subscription("orders.order.placed", version=1, model=Order)
pytestmark = pytest.mark.parametrize("kind", BOTH, indirect=True)
MARKER = "PAYLOAD-MARKER-7f3a"


@consumer(Placed, name="billing.orders")
async def bill(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, 1)", event.order)


def changed(**attributes):
    return json.dumps({**json.loads(body(MARKER, identity=None)), **attributes}).encode()


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
BAD = {
    "not JSON": ({"body": b"{" + MARKER.encode()}, "PR501"),
    "not UTF-8": ({"body": b'{"id": "\xff\xfe' + MARKER.encode() + b'"}'}, "PR501"),
    "empty": ({"body": b""}, "PR501"),
    "a bomb": ({"body": DEEP}, "PR501"),
    "a deep payload": ({"body": changed(data=MARKER).replace(b'"' + MARKER.encode() + b'"', DEEP)}, "PR501"),
    "not an object": ({"body": f'["{MARKER}"]'.encode()}, "PR501"),
    "no id": ({"body": changed(id=None)}, "PR501"),
    "NUL in the key": ({"body": changed(partitionkey=f"\0{MARKER}")}, "PR501"),
    "half a character": ({"body": changed(partitionkey=f"\ud800{MARKER}")}, "PR501"),
    "a huge sequence": ({"body": changed(sequence="9" * 30)}, "PR501"),
    "a wrong content type": ({"body": body(MARKER), "content_type": "text/plain"}, "PR501"),
    "headers of the wrong type": (
        {"body": b"{}", "content_type": "application/json", "headers": {"ce-id": [MARKER], "ce-type": {"a": b"\xff"}}},
        "PR501",
    ),
    "an unknown type": ({"body": changed(type="orders.order.lost")}, "PR502"),
    "a newer version": ({"body": changed(schemaversion=2)}, "PR503"),
    "another's exchange": ({"body": body(MARKER), "exchange": "payments.events"}, "PR504"),
    "no exchange": ({"body": body(MARKER), "exchange": ""}, "PR504"),
    "another's type": ({"body": changed(type="payments.payment.taken"), "exchange": "orders.events"}, "PR504"),
    "another's source": ({"body": changed(source="urn:postroad:payments")}, "PR504"),
    "a payload that does not fit": ({"body": changed(data={"order": [MARKER], "amount": MARKER})}, "PR505"),
    "a payload that lacks a field": ({"body": changed(data={MARKER: 1})}, "PR505"),
}


@pytest.mark.parametrize("name", BAD)
async def test_it_is_quarantined_once_and_the_rest_goes_on(here, queue, sql, name):
    message, code = BAD[name]
    async with here.consuming(bill, queue.intake()):
        queue.put(**message)
        queue.put(body("A1"))
        queue.put(**message)
        await here.settled(3)
    rows = await sql.fetch("SELECT class, code, body, content_type, exchange, routing_key, attempt FROM quarantine")
    assert [(row["class"], row["code"], row["attempt"]) for row in rows] == [("quarantine", code, 1)]
    assert rows[0]["body"] == message["body"]
    assert rows[0]["content_type"] == message.get("content_type", CONTENT_TYPE)
    assert rows[0]["exchange"] == message.get("exchange", "orders.events")
    assert await sql.fetchval("SELECT string_agg(name, ',') FROM public.effect") == "A1"
    assert len(here.heard.all(HandlerStarted)) == 1
    assert len(queue.acked) == 3


async def test_no_payload_is_in_any_signal_log_record_or_reason(here, queue, sql, caplog):
    caplog.set_level(logging.DEBUG)
    heard = []
    here.signals.subscribe(heard.append)
    async with here.consuming(bill, queue.intake()):
        for message, _ in BAD.values():
            queue.put(**message)
        queue.put(body(MARKER))
        await here.settled(1, result=DeliveryResult.OK)
        await here.settled(len(BAD) + 1)
    assert len(heard) > len(BAD)
    assert [signal for signal in heard if MARKER in repr(signal)] == []
    assert MARKER not in caplog.text
    rows = await sql.fetch(
        "SELECT class, code, fingerprint, error_type, reason, history, event_type, key FROM quarantine"
    )
    assert MARKER not in str([tuple(row) for row in rows])
    assert MARKER not in str([tuple(row) for row in await sql.fetch("SELECT * FROM inbox")])


async def test_a_v2_event_at_a_v1_consumer_says_how_it_comes_back(here, queue, sql):
    async with here.consuming(bill, queue.intake()):
        queue.put(changed(schemaversion=2))
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    (signal,) = here.heard.all(DeliveryQuarantined)
    assert (signal.code, signal.event_type) == ("PR503", "orders.order.placed")
    assert "reads version 1 of orders.order.placed" in signal.reason
    assert await sql.fetchval("SELECT outcome FROM inbox") == "quarantined"


async def test_a_forged_event_does_not_suppress_the_real_one(here, queue, sql):
    real = body("A1")
    async with here.consuming(bill, queue.intake()):
        queue.put(real, exchange="payments.events")
        await here.settled(1, result=DeliveryResult.QUARANTINE)
        queue.put(real)
        await here.settled(1, result=DeliveryResult.OK)
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 1


@pytest.mark.parametrize("prefix", ["ce-", "cloudEvents_", "cloudEvents:"])
async def test_a_producer_that_is_not_postroads_is_read_in_binary_mode(here, queue, sql, prefix):
    headers = {
        f"{prefix}{name}": value
        for name, value in {
            "id": "7", "source": "https://legacy.example/orders", "type": "orders.order.placed", "specversion": "1.0",
        }.items()
    }  # fmt: skip
    async with here.consuming(bill, queue.intake()):
        for _ in range(2):
            queue.put(b'{"order": "L7", "amount": 3}', content_type="application/json", headers=headers)
        await here.settled(1, result=DeliveryResult.OK)
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert await sql.fetchval("SELECT string_agg(name, ',') FROM public.effect") == "L7"
