"""A queue of another owner: the author's function reads it, and what it cannot read is kept, once."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from consume.bench import AT_ONCE, Order, body
from consume.kinds import BOTH
from postroad import Envelope, cloud_event
from postroad.consume import consumer, legacy
from postroad.consume.arrival import received
from postroad.errors import UsageError
from postroad.events import Subscription
from postroad.events.envelope import CONTENT_TYPE
from postroad.runtime.operations import database_settings, retry
from postroad.signals.catalog import DeliveryResult, HandlerStarted

Placed = Subscription("orders.order.placed", version=1, model=Order)
MARKER = "PAYLOAD-MARKER-7f3a"


def from_csv(message, properties):
    """The event alone: the message's own id identifies it."""
    order, amount = message.decode().split(",")
    return Order(order=order, amount=int(amount))


def numbered(message, properties):
    """An envelope: the id lies in the body."""
    order, amount, number = message.decode().split(",")
    return Envelope(
        id=number, source="urn:mainframe", type="orders.order.placed", version=1,
        data={"order": order, "amount": int(amount)}, key=order, time=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def on_legacy(decode, **given):
    @consumer(Placed, name="billing.legacy", queue="ORDERS.OUT", bind=False, decode=decode, retry=AT_ONCE, **given)
    async def bill(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, $2, $3)", event.order, event.amount, 1)

    return bill


def put(queue, message, **given):
    plain = {"content_type": "text/csv", "exchange": "", "routing_key": "ORDERS.OUT", "message_id": None}
    queue.put(message, **{**plain, **given})


def endless(*given):
    return endless(*given)


async def effects(sql):
    return [tuple(row) for row in await sql.fetch("SELECT name, amount FROM public.effect ORDER BY name, amount")]


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_an_event_made_by_the_author_takes_effect_once_per_message_id(here, queue, sql):
    async with here.consuming(on_legacy(from_csv), queue.intake()):
        for number, order in (("1", b"A1,5"), ("1", b"A1,5"), ("2", b"A1,5")):
            put(queue, order, message_id=number)
        await here.settled(3)
    assert await effects(sql) == [("A1", 5), ("A1", 5)]
    assert await sql.fetchval("SELECT count(*) FROM inbox") == 2


async def test_two_senders_may_use_the_same_message_id(here, queue, sql):
    async with here.consuming(on_legacy(from_csv), queue.intake()):
        put(queue, b"A1,5", message_id="1", app_id="north")
        put(queue, b"A2,5", message_id="1", app_id="south")
        await here.settled(2, result=DeliveryResult.OK)
    assert await effects(sql) == [("A1", 5), ("A2", 5)]


async def test_an_envelope_made_by_the_author_names_the_message_itself(here, queue, sql):
    async with here.consuming(on_legacy(numbered), queue.intake()):
        put(queue, b"A1,5,17")
        put(queue, b"A1,5,17")
        await here.settled(2)
    assert await effects(sql) == [("A1", 5)]


async def test_without_a_function_cloud_events_are_read_whatever_exchange_they_came_by(here, queue, sql):
    binary = {"ce-specversion": "1.0", "ce-id": "9", "ce-source": "/shop", "ce-type": "orders.order.placed"}
    async with here.consuming(on_legacy(None), queue.intake()):
        put(queue, body("A1"), content_type=CONTENT_TYPE, exchange="somebody")
        put(queue, b'{"order": "A2", "amount": 2}', content_type="application/json", headers=binary)
        await here.settled(2, result=DeliveryResult.OK)
    assert [order for order, _ in await effects(sql)] == ["A1", "A2"]


async def test_a_foreign_type_is_renamed_by_the_authors_function(here, queue, sql):
    def renamed(message, properties):
        from dataclasses import replace

        return replace(cloud_event(message, properties), type="orders.order.placed")

    foreign = {"ce-specversion": "1.0", "ce-id": "9", "ce-source": "/shop", "ce-type": "com.example.OrderPlaced.v2"}
    async with here.consuming(on_legacy(renamed), queue.intake()):
        put(queue, b'{"order": "A2", "amount": 2}', content_type="application/json", headers=foreign)
        await here.settled(1, result=DeliveryResult.OK)


BAD = {
    "it raises": (lambda *_: json.loads(MARKER), "PR501"),
    "it recurses for ever": (endless, "PR501"),
    "it gives None": (lambda *_: None, "PR502"),
    "it gives a dict": (lambda *_: {"order": MARKER, "amount": 1}, "PR502"),
    "it gives a coroutine's like": (lambda *_: object(), "PR502"),
    "an envelope of another type": (
        lambda *_: Envelope(id="1", source="s", type="orders.order.lost", version=1, data={}), "PR502"),
    "an envelope of another version": (
        lambda *_: Envelope(id="1", source="s", type="orders.order.placed", version=7, data={}), "PR503"),
    "an envelope that does not fit": (
        lambda *_: Envelope(id="1", source="s", type="orders.order.placed", version=1, data={MARKER: 1}), "PR505"),
    "an envelope without an id": (
        lambda *_: Envelope(id="", source="s", type="orders.order.placed", version=1, data={}), "PR501"),
    "an envelope of wrong types": (
        lambda *_: Envelope(id=7, source="s", type=b"x", version="one", data=[]), "PR501"),  # type: ignore[arg-type]
    "an envelope with a naive time": (
        lambda *_: Envelope(id="1", source="s", type="orders.order.placed", version=1, data={}, time=datetime(2026, 1, 1)),  # noqa: DTZ001, E501
        "PR501"),
    "an envelope with NUL in its key": (
        lambda *_: Envelope(id="1", source="s", type="orders.order.placed", version=1, data={}, key="\0"), "PR501"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_what_it_cannot_read_is_quarantined_once_and_the_rest_goes_on(here, queue, sql, name):
    wrong, code = BAD[name]

    def decode(message, properties):
        return from_csv(message, properties) if message == b"A1,5" else wrong(message, properties)

    async with here.consuming(on_legacy(decode), queue.intake()):
        put(queue, MARKER.encode(), message_id="1", type=MARKER)
        put(queue, b"A1,5", message_id="2")
        await here.settled(2)
    rows = await sql.fetch("SELECT class, code, reason, body FROM quarantine")
    assert [(row["class"], row["code"], row["body"]) for row in rows] == [("quarantine", code, MARKER.encode())]
    assert MARKER not in rows[0]["reason"]
    assert await effects(sql) == [("A1", 5)]
    assert len(queue.acked) == 2


async def test_an_event_of_a_message_without_a_name_is_kept_and_says_what_to_do(here, queue, sql):
    async with here.consuming(on_legacy(from_csv), queue.intake()):
        put(queue, b"A1,5")
        put(queue, b"A2,5")
        await here.settled(2)
    texts = {row["reason"] for row in await sql.fetch("SELECT reason FROM quarantine")}
    assert len(texts) == 1
    assert "return an Envelope with an id from the body" in texts.pop()
    assert here.heard.all(HandlerStarted) == []


async def test_two_messages_without_a_name_are_two_rows_of_quarantine_by_their_message_ids(here, queue, sql):
    async with here.consuming(on_legacy(lambda *_: None), queue.intake()):
        for number in ("1", "2", "2"):
            put(queue, b"A1,5", message_id=number)
        await here.settled(3)
    assert await sql.fetchval("SELECT count(*) FROM quarantine") == 2


async def test_a_release_from_quarantine_reads_the_same_message_again(here, queue, sql, runtime_url):
    known = []

    def decode(message, properties):
        assert known
        assert (properties.message_id, properties.app_id, properties.type) == ("1", "north", "ORDER")
        assert dict(properties.headers) == {"h": 1}
        return from_csv(message, properties)

    async with here.consuming(on_legacy(decode), queue.intake(), retries=True):
        put(queue, b"A1,5", message_id="1", app_id="north", type="ORDER", headers={"h": 1, legacy.PROPERTIES: "a lie"})
        await here.settled(1, result=DeliveryResult.QUARANTINE)
        known.append(1)
        number = await sql.fetchval("SELECT id FROM quarantine")
        await retry(database_settings({"POSTROAD_DATABASE_URL": runtime_url}), number, by="me")
        await here.settled(1, result=DeliveryResult.OK)
    assert await effects(sql) == [("A1", 5)]


@pytest.mark.sabotage
async def test_without_the_kept_properties_a_next_attempt_has_no_name(here, queue, sql, monkeypatch):
    monkeypatch.setattr(legacy, "with_properties", lambda wire, incoming: wire)
    with pytest.raises(AssertionError):
        await test_two_messages_without_a_name_are_two_rows_of_quarantine_by_their_message_ids(here, queue, sql)


def test_a_header_that_a_stranger_calls_like_ours_gives_no_properties():
    from postroad.transport.base import Incoming, Tag

    forged = {legacy.PROPERTIES: {"message_id": "forged"}}
    incoming = Incoming(Tag(1, 1), b"", "", forged, "", "", redelivered=False)
    assert received(incoming, whole=True).wire.headers[legacy.PROPERTIES] == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "q"}, "say bind=False"), ({"queue": "", "bind": False}, "1 to 255 bytes"),
        ({"queue": "q" * 256, "bind": False}, "1 to 255 bytes"), ({"bind": False}, "for a consumer with `queue`"),
        ({"decode": from_csv}, "for a consumer with `queue`"), ({"queue": 7, "bind": False}, "name of a queue"),
        ({"queue": "q", "bind": False, "decode": "x"}, "plain function"),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_be_meant_is_refused(options, said):
    with pytest.raises(UsageError, match=said):

        @consumer(Placed, name="a", **options)
        async def handle(event, delivery): ...


def test_a_coroutine_function_does_not_decode():
    async def decode(message, properties): ...

    with pytest.raises(UsageError, match="plain function"):
        on_legacy(decode)
