"""Peers that know nothing of us, over a real broker: CloudEvents both ways, plain producers, consumers and queues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
import pika
import pytest
from cloudevents.core.bindings import amqp, rabbitmq
from cloudevents.core.v1.event import CloudEvent
from pydantic import BaseModel, Field

from postroad import App, Delivery, Producer, Properties, Subscription, consumer
from postroad.asyncpg import within
from postroad.clock import seconds
from postroad.errors import SettingsError, TopologyError, UsageError
from postroad.events.envelope import Envelope, message_key
from postroad.runtime.settings import ALL_ROLES, Settings, TopologyMode
from postroad.signals.catalog import DeliveryResult, DeliverySettled
from postroad.transport.topology import Queue, Topology

if TYPE_CHECKING:
    from postroad.signals import Signal


class Booking(BaseModel):
    seat: str


Made = Subscription("bookings.booking.made", version=1, model=Booking)
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def settings(database: str, vhost: str, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "database_url": database, "direct_url": database, "broker_url": vhost, "topology": TopologyMode.APPLY,
        "grace": seconds(5), "shard_lease": seconds(2), "worker_lease": seconds(2), **changes,
    }  # fmt: skip
    return Settings(**given)


async def on_channel(url: str, work: Callable[[Any], Any]) -> Any:
    """Do something on a plain channel of pika's, which is not ours."""

    def there() -> Any:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            return work(channel)
        finally:
            with suppress(pika.exceptions.AMQPError):
                connection.close()

    return await asyncio.to_thread(there)


def send(exchange: str, key: str, body: bytes, **properties: Any) -> Callable[[Any], None]:
    given = pika.BasicProperties(delivery_mode=2, **properties)
    return lambda channel: channel.basic_publish(exchange, key, body, given, mandatory=True)


class Settled:
    """How deliveries ended, to wait for."""

    def __init__(self) -> None:
        self.results: list[DeliveryResult] = []
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def __call__(self, signal: Signal) -> None:
        if isinstance(signal, DeliverySettled):
            self.results += [signal.result] * signal.count
            self._loop.call_soon_threadsafe(self._news.set)

    async def until(self, count: int) -> list[DeliveryResult]:
        async with asyncio.timeout(30):
            while len(self.results) < count:
                self._news.clear()
                await self._news.wait()
        return self.results


def reader(handled: list[tuple[Booking, Delivery[Any]]], **options: Any) -> Any:
    @consumer(Made, name="board.bookings", **options)
    async def note(event: Booking, delivery: Delivery[Any]) -> None:
        handled.append((event, delivery))

    return note


def made(**changes: Any) -> CloudEvent:
    attributes = {
        "id": "b-1", "source": "https://example.org/shop", "type": "bookings.booking.made", "time": AT,
        "datacontenttype": "application/json", "subject": "seat/1A", "partitionkey": "1A", **changes,
    }  # fmt: skip
    return CloudEvent({name: value for name, value in attributes.items() if value is not None}, {"seat": "1A"})


# --- CloudEvents from others ------------------------------------------------------------------------------------------

BINDINGS: dict[str, Callable[[CloudEvent], tuple[bytes, str | None, dict[str, Any]]]] = {}


def _binding(name: str) -> Callable[[Any], Any]:
    return lambda function: BINDINGS.setdefault(name, function)


@_binding("binary, RabbitMQ's binding")
def _(event: CloudEvent) -> tuple[bytes, str | None, dict[str, Any]]:
    message = rabbitmq.to_binary_event(event)
    return message.body, message.content_type, dict(message.headers)


@_binding("structured, RabbitMQ's binding")
def _(event: CloudEvent) -> tuple[bytes, str | None, dict[str, Any]]:
    message = rabbitmq.to_structured_event(event)
    return message.body, message.content_type, dict(message.headers)


@_binding("binary, AMQP 1.0's binding")
def _(event: CloudEvent) -> tuple[bytes, str | None, dict[str, Any]]:
    message = amqp.to_binary_event(event)
    return message.application_data, message.properties.get("content-type"), dict(message.application_properties)


@_binding("binary, AMQP 1.0's binding with colons")
def _(event: CloudEvent) -> tuple[bytes, str | None, dict[str, Any]]:
    body, kind, headers = BINDINGS["binary, AMQP 1.0's binding"](event)
    return body, kind, {name.replace("cloudEvents_", "cloudEvents:"): value for name, value in headers.items()}


@_binding("structured, AMQP 1.0's binding")
def _(event: CloudEvent) -> tuple[bytes, str | None, dict[str, Any]]:
    message = amqp.to_structured_event(event)
    return message.application_data, message.properties.get("content-type"), dict(message.application_properties)


async def test_the_sdks_events_are_read_in_every_binding_once_each(runtime_url: str, vhost: str) -> None:
    handled: list[tuple[Booking, Delivery[Any]]] = []
    settled = Settled()
    app = App("board", consumers=[reader(handled)], settings=settings(runtime_url, vhost), sinks=[settled])
    async with app:
        for number, binding in enumerate([*BINDINGS.values(), *BINDINGS.values()]):
            body, kind, headers = binding(made(id=f"b-{number % len(BINDINGS)}"))
            publish = send(
                "bookings.events", "bookings.booking.made.v1", body, content_type=kind, headers=headers
            )  # fmt: skip
            await on_channel(vhost, publish)
        results = await settled.until(2 * len(BINDINGS))
    assert sorted(results) == sorted([DeliveryResult.OK, DeliveryResult.DUPLICATE] * len(BINDINGS))
    assert {event.seat for event, _ in handled} == {"1A"}
    for _, delivery in handled:
        assert (delivery.source, delivery.version, delivery.key) == ("https://example.org/shop", 1, "1A")
        assert (delivery.occurred_at, delivery.recorded_at) == (AT, None)
    keys = {delivery.id: delivery.message_key for _, delivery in handled}
    assert keys == {
        name: message_key(Envelope(id=name, source="https://example.org/shop", type="bookings.booking.made",
                                   version=1, data={}))
        for name in (f"b-{number}" for number in range(len(BINDINGS)))
    }  # fmt: skip
    assert {key.version for key in keys.values()} == {5}


NOT_READ: dict[str, tuple[bytes, str | None, dict[str, Any], str]] = {
    "no CloudEvent": (b'{"seat": "1A"}', "application/json", {}, "PR501"),
    "a batch": (b"[]", "application/cloudevents-batch+json", {}, "PR501"),
    "data that are no JSON": (
        b"<seat/>", "application/xml",
        {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "bookings.booking.made"}, "PR501"),
    "no id": (
        b"{}", "application/json", {"ce-specversion": "1.0", "ce-source": "/s", "ce-type": "bookings.booking.made"},
        "PR501"),
    "a later specversion": (
        b"{}", "application/json",
        {"ce-specversion": "2.0", "ce-id": "1", "ce-source": "/s", "ce-type": "bookings.booking.made"}, "PR501"),
    "a number for a time": (
        b"{}", "application/json",
        {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "bookings.booking.made", "ce-time": 5},
        "PR501"),
    "an unknown type": (
        b"{}", "application/json",
        {"cloudEvents_specversion": "1.0", "cloudEvents_id": "1", "cloudEvents_source": "/s",
         "cloudEvents_type": "bookings.booking.lost"}, "PR502"),
    "a payload that does not fit": (
        b'{"chair": 1}', None,
        {"ce-specversion": "1.0", "ce-id": "2", "ce-source": "/s", "ce-type": "bookings.booking.made"}, "PR505"),
}  # fmt: skip


async def test_what_cannot_be_read_of_others_is_quarantined_with_a_code_and_stops_nobody(
    runtime_url: str, database: str, vhost: str
) -> None:
    handled: list[tuple[Booking, Delivery[Any]]] = []
    settled = Settled()
    app = App("board", consumers=[reader(handled)], settings=settings(runtime_url, vhost), sinks=[settled])
    async with app:
        for body, kind, headers, _ in NOT_READ.values():
            publish = send("bookings.events", "bookings.booking.made.v1", body, content_type=kind, headers=headers)
            await on_channel(vhost, publish)
        message = rabbitmq.to_binary_event(made())
        publish = send(
            "bookings.events", "bookings.booking.made.v1", message.body, content_type=message.content_type,
            headers=dict(message.headers),
        )  # fmt: skip
        await on_channel(vhost, publish)
        await settled.until(len(NOT_READ) + 1)
    assert len(handled) == 1
    codes = await fetch(database, "SELECT code FROM postroad.quarantine ORDER BY id")
    assert sorted(codes) == sorted(code for *_, code in NOT_READ.values())


async def fetch(url: str, query: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return [row[0] for row in await connection.fetch(query)]
    finally:
        await connection.close()


# --- our events at others ---------------------------------------------------------------------------------------------


async def test_the_sdk_and_a_plain_consumer_read_what_we_publish(runtime_url: str, author_url: str, vhost: str) -> None:
    producer = Producer(f"p{uuid4().hex[:8]}")

    @producer.event("flight.departed", version=2)
    class Departed(BaseModel):
        """A flight left."""

        number: int = Field(description="Its number.")

    def bound(channel: Any) -> None:
        channel.queue_declare("plain", durable=True)
        channel.queue_bind("plain", producer.exchange, f"{producer.name}.flight.departed.*")

    def received(channel: Any) -> Any:
        return next(channel.consume("plain", auto_ack=True, inactivity_timeout=30))

    app = App("flights", publishes=[producer], settings=settings(runtime_url, vhost, roles=ALL_ROLES))
    async with app:
        await on_channel(vhost, bound)
        connection = await asyncpg.connect(author_url)
        async with connection.transaction():
            identity = await within(connection).publish(Departed(number=7), key="UA", sequence=3, occurred_at=AT)
        await connection.close()
        method, properties, body = await on_channel(vhost, received)
    # A plain consumer: JSON, and properties that every client shows.
    assert json.loads(body)["data"] == {"number": 7}
    assert (properties.message_id, properties.type) == (str(identity), f"{producer.name}.flight.departed")
    assert (properties.app_id, properties.delivery_mode) == (producer.name, 2)
    assert method.routing_key == f"{producer.name}.flight.departed.v2"
    # The SDK, by either binding.
    message = rabbitmq.RabbitMQMessage(dict(properties.headers), properties.content_type, body)
    event = rabbitmq.from_rabbitmq_event(message)
    assert (UUID(event.get_id()), event.get_source()) == (identity, f"urn:postroad:{producer.name}")
    assert (event.get_type(), event.get_time()) == (f"{producer.name}.flight.departed", AT)
    assert event.get_data() == {"number": 7}
    assert (event.get_extension("schemaversion"), event.get_extension("partitionkey")) == (2, "UA")
    same = amqp.from_amqp_event(amqp.AMQPMessage({"content-type": properties.content_type}, {}, body))
    assert same.get_attributes() == event.get_attributes()


# --- a queue that is another's ----------------------------------------------------------------------------------------


def from_text(body: bytes, properties: Properties) -> Booking:
    assert properties.headers["origin"] == "host"
    return Booking(seat=body.decode("ascii"))


def standing(channel: Any) -> None:
    """A queue as an old system has it: classic, of arguments that are none of ours, bound by its owner."""
    channel.exchange_declare("OLD", "fanout", durable=True)
    channel.queue_declare("OLD OUT", durable=True, arguments={"x-max-length": 1000})
    channel.queue_bind("OLD OUT", "OLD", "")


async def test_a_legacy_queue_is_read_as_it_stands_and_nothing_else_is_made(
    runtime_url: str, database: str, vhost: str
) -> None:
    handled: list[tuple[Booking, Delivery[Any]]] = []
    settled = Settled()
    note = reader(handled, queue="OLD OUT", bind=False, decode=from_text)
    app = App("board", consumers=[note], settings=settings(runtime_url, vhost), sinks=[settled])
    await on_channel(vhost, standing)
    headers = {"origin": "host"}
    async with app:
        for number, body in (("1", b"1A"), ("2", b"2B"), ("1", b"1A"), ("3", b"\xff"), ("4", b"4D")):
            await on_channel(vhost, send("OLD", "", body, message_id=number, app_id="host", headers=headers))
        results = await settled.until(5)
    assert sorted(results) == sorted([DeliveryResult.OK] * 3 + [DeliveryResult.DUPLICATE, DeliveryResult.QUARANTINE])
    assert sorted(event.seat for event, _ in handled) == ["1A", "2B", "4D"]
    assert {delivery.source for _, delivery in handled} == {"urn:queue:OLD OUT:host"}
    assert await fetch(database, "SELECT code FROM postroad.quarantine") == ["PR501"]
    assert await depth(vhost, "OLD OUT") == 0
    for name in ("board.bookings", "board.bookings.dlq"):
        assert await depth(vhost, name) is None
    for name in ("bookings.events", "bookings.replay", "postroad.dlx"):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            await on_channel(vhost, lambda channel, name=name: channel.exchange_declare(name, passive=True))


async def depth(vhost: str, name: str) -> int | None:
    try:
        answer = await on_channel(vhost, lambda channel: channel.queue_declare(name, passive=True))
    except pika.exceptions.ChannelClosedByBroker:
        return None
    return int(answer.method.message_count)


@pytest.mark.parametrize("mode", [TopologyMode.APPLY, TopologyMode.VERIFY])
async def test_a_legacy_queue_that_is_not_there_ends_the_start_with_its_name(
    runtime_url: str, vhost: str, mode: TopologyMode
) -> None:
    note = reader([], queue="OLD OUT", bind=False, decode=from_text)
    app = App("board", consumers=[note], settings=settings(runtime_url, vhost, topology=mode))
    with pytest.raises(TopologyError, match=r"'OLD OUT'.*its owner declares it.*PR205"):
        async with app:
            raise AssertionError
    assert await depth(vhost, "OLD OUT") is None


@pytest.mark.sabotage
async def test_a_queue_taken_for_our_own_would_be_declared_and_refused(
    runtime_url: str, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Topology.of

    def declared(**given: Any) -> Topology:
        queues = [Queue(name) for name in given.pop("standing")]
        topology = of(**given)
        return replace(topology, queues=(*topology.queues, *queues))

    monkeypatch.setattr(Topology, "of", declared)
    note = reader([], queue="OLD OUT", bind=False, decode=from_text)
    app = App("board", consumers=[note], settings=settings(runtime_url, vhost))
    await on_channel(vhost, standing)
    with pytest.raises(TopologyError, match="PR205"):
        async with app:
            raise AssertionError


def test_a_legacy_queue_has_one_consumer_and_needs_a_broker() -> None:
    note = reader([], queue="shared", bind=False)

    @consumer(Made, name="other", queue="shared", bind=False)
    async def other(event: Booking, delivery: Delivery[Any]) -> None: ...

    with pytest.raises(UsageError, match=r"'board.bookings', 'other' take from queue 'shared'"):
        App("board", consumers=[note, other])
    app = App("board", consumers=[note], settings=Settings(database_url="postgresql://h/d", broker_url="postgres:"))
    assert app.execute() == 3
    with pytest.raises(SettingsError, match=r"takes from queue 'shared' of RabbitMQ.*PR201"):
        app._make(app._settings, standalone=False)  # type: ignore[arg-type]
