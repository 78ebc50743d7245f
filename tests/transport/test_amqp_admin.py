from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pika import exceptions, frame, spec

from postroad.clock import seconds
from postroad.errors import AccessRefused, SettingsError, TopologyError, Unavailable
from postroad.signals.catalog import TopologyMismatch
from postroad.testing.servers import Rabbit, TcpProxy, free_port
from postroad.transport.amqp.admin import Session, verify
from postroad.transport.amqp.connection import Address
from postroad.transport.amqp.faults import unequal
from postroad.transport.topology import Exchange, Queue, Topology

if TYPE_CHECKING:
    from postroad.transport.amqp import AmqpTransport


@pytest.fixture
def transport_to(line_of: Callable[..., Any]) -> Callable[..., AmqpTransport]:
    """A transport that only declares and looks; nothing runs."""
    return lambda url, **settings: line_of(url, **settings).transport


async def test_applying_twice_changes_nothing_and_verifies(vhost: str, topology: Topology, transport_to: Any) -> None:
    transport = transport_to(vhost)
    await transport.apply(topology)
    await transport.apply(topology)
    assert await transport.verify(topology) == []


async def test_verify_names_everything_that_is_missing(vhost: str, topology: Topology, line_of: Any) -> None:
    line = line_of(vhost)
    await line.transport.apply(Topology.of(publishes=["shop"]))
    found = await line.transport.verify(topology)
    assert [(difference.kind, difference.name) for difference in found] == [
        ("exchange", "postroad.dlx"),
        ("queue", "billing"),
        ("queue", "billing.dlq"),
    ]
    assert found[1].line == "queue 'billing' does not exist; run: postroad topology apply MODULE:APP"
    assert line.heard.all(TopologyMismatch) == [TopologyMismatch("exchange", 1), TopologyMismatch("queue", 2)]


async def test_a_queue_declared_otherwise_is_named_with_the_difference(
    vhost: str, topology: Topology, transport_to: Any
) -> None:
    transport = transport_to(vhost)
    other = Queue("billing", {**topology.queues[0].arguments, "x-overflow": "drop-head"})
    await transport.apply(Topology(topology.exchanges, (other,)))
    with pytest.raises(TopologyError) as caught:
        await transport.apply(topology)
    assert str(caught.value) == (
        "queue 'billing' has x-overflow 'drop-head', declared 'reject-publish'; arguments cannot be changed:"
        " empty and delete the queue, then run: postroad topology apply MODULE:APP [PR205]"
    )


async def test_a_missing_argument_and_an_exchange_of_another_type_are_named(
    vhost: str, topology: Topology, transport_to: Any
) -> None:
    transport = transport_to(vhost)
    await transport.apply(Topology(queues=(Queue("billing", {"x-queue-type": "quorum"}),)))
    with pytest.raises(TopologyError, match=r"queue 'billing' has x-dead-letter-\S+ unset, declared 'billing|postroad"):
        await transport.apply(topology)
    await transport.apply(Topology(exchanges=(Exchange("cafe.events", "direct"),)))
    with pytest.raises(TopologyError, match=r"exchange 'cafe.events' has type 'direct', declared 'topic'"):
        await transport.apply(Topology.of(publishes=["cafe"]))


def test_the_text_of_a_406_that_speaks_of_something_else_is_not_misread() -> None:
    assert unequal("PRECONDITION_FAILED - unknown delivery tag 7") is None


async def test_a_wrong_password_is_told_in_one_line_that_names_the_setting(
    vhost: str, rabbit: Rabbit, transport_to: Any
) -> None:
    url = rabbit.url(vhost.rpartition("/")[2], "guest", "wrong-secret")
    with pytest.raises(AccessRefused) as caught:
        await transport_to(url).connect()
    text = str(caught.value)
    assert "POSTROAD_BROKER_URL" in text
    assert "[PR303]" in text
    assert "wrong-secret" not in text
    assert "\n" not in text


async def test_a_missing_virtual_host_is_named(rabbit: Rabbit, transport_to: Any) -> None:
    with pytest.raises(AccessRefused, match=r"'nowhere'.*POSTROAD_BROKER_URL"):
        await transport_to(rabbit.url("nowhere")).connect()


async def test_nobody_there_is_unavailable_and_not_refused(transport_to: Any) -> None:
    with pytest.raises(Unavailable, match=r"nothing listens there.*PR302") as caught:
        await transport_to(f"amqp://guest:guest@127.0.0.1:{free_port()}/").connect()
    assert not isinstance(caught.value, AccessRefused)


async def test_a_host_without_a_name_is_unavailable(transport_to: Any) -> None:
    with pytest.raises(Unavailable, match="PR302"):
        await transport_to("amqp://guest:guest@nowhere.invalid/").connect()


async def test_a_broker_that_accepts_and_says_nothing_is_unavailable_in_time(rabbit: Rabbit, transport_to: Any) -> None:
    with TcpProxy(rabbit.port) as proxy:
        proxy.stall()
        with pytest.raises(Unavailable, match="no answer in time"):
            await transport_to(rabbit.url(port=proxy.port)).connect(seconds(0.5))


async def test_a_line_that_breaks_during_login_is_not_taken_for_a_wrong_password(transport_to: Any) -> None:
    start = spec.Connection.Start(server_properties={"capabilities": {}}, mechanisms="PLAIN", locales="en_US")

    async def dying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(frame.Method(0, start).marshal())
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(dying, "127.0.0.1", 0)
    async with server:
        with pytest.raises(Unavailable) as caught:
            await transport_to(f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}/").connect()
    assert not isinstance(caught.value, AccessRefused)


async def test_missing_rights_are_told_by_name(
    vhost: str, rabbit: Rabbit, topology: Topology, transport_to: Any
) -> None:
    name = vhost.rpartition("/")[2]
    url = rabbit.add_user(f"reader-{name}", "reader", configure="^$", write="^$", vhost=name)
    with pytest.raises(AccessRefused, match=r"may not declare exchange 'shop.events'"):
        await transport_to(url).apply(topology)


async def test_a_consumer_needs_no_right_to_declare_its_owners_exchanges(
    vhost: str, rabbit: Rabbit, transport_to: Any
) -> None:
    await transport_to(vhost).apply(Topology.of(publishes=["shop"]))
    name = vhost.rpartition("/")[2]
    url = rabbit.add_user(
        f"billing-{name}", "billing", configure="^(billing|postroad).*", write="^(billing|postroad).*", vhost=name
    )
    await transport_to(url).apply(Topology.of(consumers=[("billing", ["shop.order.placed"])]))


@pytest.mark.parametrize("url", ["http://localhost/", "amqp://u:p@host:port/", "nonsense"])
def test_a_url_that_is_none_names_the_setting_and_not_the_url(url: str) -> None:
    with pytest.raises(SettingsError, match="POSTROAD_BROKER_URL") as caught:
        Address.of(url)
    assert "u:p" not in str(caught.value)


async def test_the_same_session_goes_on_after_a_refusal(vhost: str, transport_to: Any) -> None:
    transport = transport_to(vhost)
    async with Session(transport._address, transport._settings) as session:
        for _ in range(3):
            with pytest.raises(Exception, match="NOT_FOUND"):
                await session.call("queue_declare", "nowhere", passive=True)
        await session.call("queue_declare", "somewhere", durable=True)
    assert await transport.depths(["nowhere", "somewhere"]) == {"somewhere": 0}


async def test_a_broker_that_vouches_is_proved_by_a_publish_that_nobody_gets(
    vhost: str, topology: Topology, transport_to: Any
) -> None:
    transport = transport_to(vhost, vouch=True)
    await transport.apply(topology)
    await transport.prove_user("shop.replay")
    assert await transport.depths(["billing"]) == {"billing": 0}


async def test_a_user_that_the_broker_knows_by_another_name_is_refused_before_anything_is_sent(
    vhost: str, topology: Topology, transport_to: Any
) -> None:
    transport = transport_to(vhost, vouch=True)
    await transport.apply(topology)
    transport._address = replace(transport._address, user="somebody")
    with pytest.raises(SettingsError, match=r"POSTROAD_VOUCH is on.*another name than 'somebody'"):
        await transport.prove_user("shop.replay")


class Refusing:
    """A session with RabbitMQ 4.2 or newer, which lets nobody look at what it has no right on; 3.10 lets everybody."""

    async def call(self, *_: Any, **__: Any) -> Any:
        raise exceptions.ChannelClosedByBroker(403, "ACCESS_REFUSED - configure access refused")


async def test_what_the_user_may_not_look_at_is_no_difference(topology: Topology) -> None:
    session: Any = Refusing()
    assert await verify(session, topology) == []


NAMELESS = pika.BasicProperties()


@pytest.mark.sabotage
async def test_without_a_name_on_it_the_broker_would_not_object(
    vhost: str, topology: Topology, transport_to: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("postroad.transport.amqp.admin.spec.BasicProperties", lambda user_id: NAMELESS)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await test_a_user_that_the_broker_knows_by_another_name_is_refused_before_anything_is_sent(
            vhost, topology, transport_to
        )
