from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from postroad.clock import seconds
from postroad.signals.catalog import (
    ChannelClosed,
    ConnectionDown,
    ConnectionUp,
    ConsumerGone,
    ConsumerSubscribed,
    StaleAcks,
)
from postroad.testing.servers import Rabbit, RabbitNode, TcpProxy
from postroad.transport.amqp.admin import Session
from postroad.transport.amqp.owed import Owed
from postroad.transport.base import Settlement, Tag
from support import until

if TYPE_CHECKING:
    from postroad.transport.amqp.intake import AmqpIntake


@pytest.fixture
def proxy(rabbit: Rabbit) -> Iterator[TcpProxy]:
    with TcpProxy(rabbit.port) as proxy:
        yield proxy


def through(proxy: TcpProxy, vhost: str, rabbit: Rabbit) -> str:
    return rabbit.url(urlsplit(vhost).path[1:], port=proxy.port)


def bodies(deliveries: list[Any]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


async def sent(line: Any, count: int) -> list[bytes]:
    texts = [str(number).encode() for number in range(count)]
    settled = await line.outcomes(*(line.message(body=text) for text in texts))
    assert {one.settlement for one in settled} == {Settlement.CONFIRMED}
    return texts


async def test_deliveries_come_in_order_with_their_wire_properties(taking: Any, drain: Any) -> None:
    line, intake = taking
    assert (line.ready, line.reason) == (True, "")
    message = line.message(headers={"postroad-attempt": 2})
    await line.outcomes(message)
    (delivery,) = await drain(intake, 1)
    assert delivery.body == message.body
    assert delivery.content_type == message.content_type
    assert (delivery.exchange, delivery.routing_key) == ("shop.events", "shop.order.placed.v1")
    assert (delivery.message_id, delivery.type, delivery.app_id) == (message.message_id, message.type, "shop")
    assert delivery.headers["postroad-attempt"] == 2
    assert not delivery.redelivered
    intake.ack([delivery.tag])
    assert bodies(await drain_after(line, intake, drain, 5)) == [b"0", b"1", b"2", b"3", b"4"]


async def drain_after(line: Any, intake: AmqpIntake, drain: Any, count: int) -> list[Any]:
    await sent(line, count)
    taken: list[Any] = await drain(intake, count)
    return taken


async def test_no_more_than_the_prefetch_is_owed_and_acks_bring_the_rest(taking: Any, drain: Any) -> None:
    line, intake = taking
    texts = await sent(line, 25)
    first = await drain(intake, 10)
    await line.holds(15)
    intake.ack([delivery.tag for delivery in first])
    rest: list[Any] = []
    while len(rest) < 15:
        got = await drain(intake, 1)
        intake.ack([got[0].tag])
        rest += got
    assert bodies([*first, *rest]) == texts
    await line.stop()
    await line.holds(0)


async def test_acks_in_any_order_never_ack_what_is_not_done(taking: Any, drain: Any) -> None:
    line, intake = taking
    await sent(line, 10)
    taken = await drain(intake, 10)
    tags = [delivery.tag for delivery in taken]
    intake.ack([tags[9], tags[0], tags[1], tags[2], tags[5]])
    intake.ack([tags[3], tags[7]])
    await line.stop()
    await line.holds(3)
    line.transport._intakes.clear()
    again = line.transport.intake("billing", prefetch=10)
    await line.start()
    assert bodies(await drain(again, 3)) == [b"4", b"6", b"8"]


@pytest.mark.sabotage
async def test_an_ack_up_to_the_last_done_one_would_ack_the_undone(
    taking: Any, drain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Owed, "settle", lambda _self, tags: (max(tags), ()))
    line, intake = taking
    await sent(line, 10)
    taken = await drain(intake, 10)
    intake.ack([taken[9].tag])
    intake.give_back([taken[0].tag])  # The broker no longer knows it.
    closed = await line.heard.wait(ChannelClosed)
    assert (closed.code, "unknown delivery tag" in closed.reason) == (406, True)


async def test_what_is_given_back_comes_again_flagged_and_first(taking: Any, drain: Any) -> None:
    line, intake = taking
    await sent(line, 3)
    taken = await drain(intake, 3)
    intake.give_back([taken[0].tag])
    (again,) = await drain(intake, 1)
    assert (again.body, again.redelivered) == (b"0", True)


async def test_an_ack_given_twice_or_after_a_give_back_is_dropped_and_counted(taking: Any, drain: Any) -> None:
    line, intake = taking
    await sent(line, 2)
    one, two = await drain(intake, 2)
    intake.ack([one.tag])
    intake.ack([one.tag])
    intake.give_back([two.tag])
    intake.ack([two.tag, Tag(one.tag.generation, 10_000)])
    await line.heard.wait(StaleAcks, lambda signal: signal.count == 2)
    (again,) = await drain(intake, 1)
    assert again.body == b"1"
    assert line.heard.all(ChannelClosed) == []


async def test_a_paused_intake_gives_back_what_was_not_taken_and_settles_what_was(taking: Any, drain: Any) -> None:
    line, intake = taking
    await sent(line, 8)
    taken = await drain(intake, 3)
    await intake.pause()
    await line.holds(5)
    assert line.ready
    assert line.heard.all(ConsumerGone)[-1].cause == "stopped"
    intake.ack([delivery.tag for delivery in taken[:2]])
    intake.give_back([taken[2].tag])
    await line.holds(6)
    assert line.heard.all(StaleAcks) == []
    await intake.resume()
    await line.heard.wait(ConsumerSubscribed, count=2)
    assert sorted(bodies(await drain(intake, 6))) == [b"2", b"3", b"4", b"5", b"6", b"7"]


async def test_a_stopped_intake_flushes_its_acks_and_ends_its_takers(taking: Any, drain: Any) -> None:
    line, intake = taking
    await sent(line, 9)
    taken = await drain(intake, 4)
    intake.ack([delivery.tag for delivery in taken])
    waiting = asyncio.ensure_future(drain_all(intake))
    await intake.stop()
    assert len(await waiting) <= 5
    assert await intake.take(10) == ()
    await line.stop()
    await line.holds(9 - 4)


async def drain_all(intake: AmqpIntake) -> list[Any]:
    taken: list[Any] = []
    while batch := await intake.take(2):
        taken += batch
    return taken


async def test_after_a_severed_line_the_consumer_is_confirmed_again_and_old_acks_do_nothing(
    line_to: Any, proxy: TcpProxy, vhost: str, rabbit: Rabbit, topology: Any, drain: Any
) -> None:
    line = await line_to(through(proxy, vhost, rabbit), topology, {"billing": 10})
    intake = line.intakes["billing"]
    await sent(line, 3)
    old = await drain(intake, 2)
    line.heard.forget()
    proxy.cut()
    await line.heard.wait(ConsumerGone, lambda signal: signal.cause == "connection")
    await line.heard.wait(ConnectionDown, lambda signal: signal.role == "consume")
    await until(lambda: not line.ready)
    proxy.heal()
    await line.heard.wait(ConsumerSubscribed)
    up = await line.heard.wait(ConnectionUp, lambda signal: signal.role == "consume")
    assert up.after_seconds > 0
    await until(lambda: line.ready)
    new = await drain(intake, 3)
    assert bodies(new) == [b"0", b"1", b"2"]
    assert {delivery.tag.generation for delivery in new} == {old[0].tag.generation + 1}
    intake.ack([delivery.tag for delivery in old])
    stale = await line.heard.wait(StaleAcks)
    assert stale.count == 2
    await line.stop()
    await line.holds(3)


@pytest.mark.sabotage
async def test_without_generations_an_old_ack_would_settle_a_new_delivery(
    line_to: Any,
    proxy: TcpProxy,
    vhost: str,
    rabbit: Rabbit,
    topology: Any,
    drain: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = await line_to(through(proxy, vhost, rabbit), topology, {"billing": 10})
    intake = line.intakes["billing"]
    monkeypatch.setattr(intake, "_current", lambda tags: [tag.number for tag in tags])
    await sent(line, 3)
    old = await drain(intake, 2)
    proxy.cut()
    proxy.heal()
    await line.heard.wait(ConsumerSubscribed, count=2)
    await drain(intake, 3)
    intake.ack([delivery.tag for delivery in old])
    await line.stop()
    await line.holds(1)


async def test_a_queue_deleted_under_the_consumer_is_reported_and_taken_up_again(
    line_to: Any, vhost: str, topology: Any, drain: Any
) -> None:
    line = await line_to(vhost, topology, {"billing": 10})
    other = await line_to(vhost, topology)
    line.heard.forget()
    async with session(other) as admin:
        await admin.call("queue_delete", "billing")
    gone = await line.heard.wait(ConsumerGone)
    assert gone.cause == "broker"
    await until(lambda: not line.ready)
    await line.heard.wait(ChannelClosed, lambda signal: signal.code == 404)
    await until(lambda: "billing" in line.reason)
    await other.transport.apply(topology)
    await line.heard.wait(ConsumerSubscribed)
    await until(lambda: line.ready)
    await sent(other, 1)
    assert bodies(await drain(line.intakes["billing"], 1)) == [b"0"]


def session(line: Any) -> Any:
    return Session(line.transport._address, line.transport._settings)


@pytest.mark.heavy
async def test_a_caller_that_blocks_its_loop_for_three_heartbeats_costs_no_connection(
    line_to: Any, vhost: str, topology: Any, drain: Any
) -> None:
    line = await line_to(vhost, topology, {"billing": 10}, heartbeat=seconds(1))
    await sent(line, 1)
    time.sleep(3.5)  # noqa: ASYNC251 - the fault itself
    (delivery,) = await drain(line.intakes["billing"], 1)
    line.intakes["billing"].ack([delivery.tag])
    await sent(line, 1)
    assert len(line.heard.all(ConnectionUp)) == 2
    assert line.heard.all(ConnectionDown) == []


@pytest.mark.heavy
async def test_a_silent_broker_is_given_up_after_missed_heartbeats_and_found_again(
    line_to: Any, node: RabbitNode, topology: Any
) -> None:
    line = await line_to(node.add_vhost("mute"), topology, {"billing": 10}, heartbeat=seconds(1))
    node.pause()
    try:
        down = await line.heard.wait(ConnectionDown, lambda signal: signal.role == "consume", within=12)
        assert "heartbeat" in down.reason
    finally:
        node.resume()
    await line.heard.wait(ConsumerSubscribed, count=2)
    await until(lambda: line.ready)


async def test_a_prefetch_without_limit_is_refused(line: Any) -> None:
    with pytest.raises(Exception, match="PR107"):
        line.transport.intake("billing", prefetch=0)
