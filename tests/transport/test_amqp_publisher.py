from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from postroad.clock import seconds
from postroad.signals.catalog import ChannelClosed, ConnectionBlocked, ConnectionDown, ConnectionUp
from postroad.testing.servers import TcpProxy
from postroad.transport.amqp.lane import Lane
from postroad.transport.base import Settlement
from postroad.transport.topology import Queue, Topology
from support import until

if TYPE_CHECKING:
    from postroad.testing.servers import Rabbit, RabbitNode

CONFIRMED, RETURNED, NACKED = Settlement.CONFIRMED, Settlement.RETURNED, Settlement.NACKED
UNKNOWN, REFUSED = Settlement.UNKNOWN, Settlement.REFUSED


def kinds(settled: list[Any]) -> list[Settlement]:
    return [one.settlement for one in settled]


async def test_a_routed_publish_is_confirmed_and_lies_in_the_queue(line: Any) -> None:
    assert kinds(await line.outcomes(line.message(), line.message())) == [CONFIRMED, CONFIRMED]
    await line.holds(2)


async def test_many_publishes_are_each_settled_once_and_told_in_batches(line: Any) -> None:
    messages = [line.message() for _ in range(2000)]
    assert set(kinds(await line.outcomes(*messages))) == {CONFIRMED}
    assert line.settlements == 2000
    assert line.batches < 1000


async def test_a_publish_that_no_queue_wants_is_returned_though_the_broker_acks_it(line: Any) -> None:
    good, stray = line.message(), line.message(routing_key="shop.order.lost.v1")
    settled = await line.outcomes(good, stray)
    assert kinds(settled) == [CONFIRMED, RETURNED]
    assert settled[1].code == 312
    assert "shop.order.lost.v1" in settled[1].reason


@pytest.mark.sabotage
async def test_without_returns_an_unroutable_publish_would_pass_for_confirmed(
    line_to: Any, vhost: str, topology: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lane, "_returns", lambda *_: None)
    line = await line_to(vhost, topology)
    assert kinds(await line.outcomes(line.message(routing_key="shop.order.lost.v1"))) == [CONFIRMED]


async def test_a_full_queue_nacks(line_to: Any, vhost: str) -> None:
    full = Queue("full", {"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-max-length": 1})
    base = Topology.of(publishes=["shop"])
    bound = Topology.of(publishes=["shop"], consumers=[("full", ["shop.order.placed"])]).bindings[:1]
    line = await line_to(vhost, Topology(base.exchanges, (full,), bound))
    settled = await line.outcomes(line.message())
    assert kinds(settled) == [CONFIRMED]
    later = [settled[0] for settled in [await line.outcomes(line.message()) for _ in range(10)]]
    assert later[-1].settlement is NACKED
    assert "full" in later[-1].reason


async def test_returns_are_matched_when_one_message_id_is_in_flight_twice(line: Any) -> None:
    pairs = [
        (line.message(message_id="same"), line.message(message_id="same", routing_key="shop.order.lost.v1"))
        for _ in range(50)
    ]
    messages = [message for pair in pairs for message in pair]
    assert kinds(await line.outcomes(*messages)) == [CONFIRMED, RETURNED] * 50


async def test_the_culprit_that_closes_the_channel_is_refused_and_the_innocent_go_out(line: Any) -> None:
    culprit = line.message(exchange="nowhere")
    innocent = [line.message() for _ in range(20)]
    batch = [*innocent[:10], culprit, *innocent[10:]]
    first = await line.outcomes(*batch)
    assert line.settled[culprit.ticket].settlement is UNKNOWN
    assert line.settled[culprit.ticket].code == 404
    assert line.publisher.cautious
    again = [message for message, settled in zip(batch, first, strict=True) if settled.settlement is UNKNOWN]
    await line.outcomes(*again)
    assert line.settled[culprit.ticket].settlement is REFUSED
    assert line.settled[culprit.ticket].code == 404
    assert {line.settled[m.ticket].settlement for m in again if m is not culprit} == {CONFIRMED}
    await until(lambda: not line.publisher.cautious)
    assert len(line.heard.all(ChannelClosed)) == 2


async def test_a_lone_publish_to_a_missing_exchange_is_refused_at_once(line: Any) -> None:
    assert kinds(await line.outcomes(line.message(exchange="nowhere"))) == [REFUSED]
    assert kinds(await line.outcomes(line.message())) == [CONFIRMED]


@pytest.mark.sabotage
async def test_without_caution_the_culprit_is_never_found(line: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lane, "_cautious", property(lambda _: 0, lambda _self, _value: None), raising=False)
    batch = [line.message(exchange="nowhere"), line.message(), line.message()]
    for _ in range(3):
        assert kinds(await line.outcomes(*batch)) == [UNKNOWN, UNKNOWN, UNKNOWN]


@pytest.mark.heavy
async def test_a_message_over_the_brokers_limit_is_refused_with_its_code(
    line_to: Any, node: RabbitNode, topology: Any
) -> None:
    line = await line_to(node.add_vhost("large"), topology)
    (settled,) = await line.outcomes(line.message(body=b"x" * 200_000))
    assert (settled.settlement, settled.code) == (REFUSED, 406)
    assert "xxx" not in settled.reason
    assert kinds(await line.outcomes(line.message())) == [CONFIRMED]


async def test_what_cannot_be_framed_is_refused_here_and_the_rest_goes_out(line: Any) -> None:
    settled = await line.outcomes(
        line.message(), line.message(routing_key="k" * 300), line.message(headers={"a": object()}), line.message()
    )
    assert kinds(settled) == [CONFIRMED, REFUSED, REFUSED, CONFIRMED]


async def test_a_vouched_publish_carries_the_user_that_the_broker_checked(
    line_to: Any, vhost: str, topology: Any, drain: Any
) -> None:
    line = await line_to(vhost, topology, {"billing": 10}, vouch=True)
    await line.outcomes(line.message(headers={"postroad-replay": "7"}))
    (delivery,) = await drain(line.intakes["billing"], 1)
    assert delivery.user_id == "guest"
    assert delivery.headers["postroad-replay"] == "7"


async def test_while_the_broker_is_away_publishes_are_settled_unknown_at_once(line: Any) -> None:
    await line.stop()
    assert not line.publisher.writable
    assert kinds(await line.outcomes(line.message(), within=2)) == [UNKNOWN]
    await line.start()
    assert kinds(await line.outcomes(line.message())) == [CONFIRMED]


@pytest.mark.heavy
async def test_a_blocked_connection_is_not_writable_until_the_alarm_is_over(
    line_to: Any, node: RabbitNode, topology: Any
) -> None:
    line = await line_to(node.add_vhost("blocked"), topology, confirm_within=seconds(0.3))
    changes: list[bool] = []
    line.publisher.on_writable(lambda: changes.append(line.publisher.writable))
    alarm = "{resource_limit, memory, node()}"
    node.evaluate(f"rabbit_alarm:set_alarm({{{alarm}, []}})")
    try:
        message = line.message()
        line.publisher.publish([message])  # The broker says so on the first publish only.
        await line.heard.wait(ConnectionBlocked, lambda signal: signal.blocked)
        await until(lambda: not line.publisher.writable and not line.ready)
        await asyncio.sleep(0.6)  # Longer than a confirm may take: time stands still while we are blocked.
        assert line.settled == {}
    finally:
        node.evaluate(f"rabbit_alarm:clear_alarm({alarm})")
    await line.heard.wait(ConnectionBlocked, lambda signal: not signal.blocked)
    await until(lambda: line.publisher.writable and line.ready)
    assert changes == [False, True]
    await until(lambda: message.ticket in line.settled)
    assert line.settled[message.ticket].settlement is CONFIRMED


async def a_line_leads_nowhere(line_to: Any, rabbit: Rabbit, vhost: str, topology: Any) -> Any:
    """Half-open: a publish is written, and not a byte comes back, no heartbeat either."""
    with TcpProxy(rabbit.port) as proxy:
        url = rabbit.url(vhost.rpartition("/")[2], port=proxy.port)
        line = await line_to(url, topology, heartbeat=seconds(1), confirm_within=seconds(2))
        assert kinds(await line.outcomes(line.message())) == [CONFIRMED]
        proxy.strand()
        message = line.message()
        (settled,) = await line.outcomes(message)
        await line.heard.wait(ConnectionUp, lambda signal: signal.role == "publish", count=2)
        await until(lambda: line.ready)
        assert kinds(await line.outcomes(message)) == [CONFIRMED]
        return settled.settlement


async def test_a_connection_that_leads_nowhere_is_not_held_against_the_publish(
    line_to: Any, rabbit: Rabbit, vhost: str, topology: Any
) -> None:
    assert await a_line_leads_nowhere(line_to, rabbit, vhost, topology) is UNKNOWN


@pytest.mark.sabotage
async def test_did_nobody_listen_for_heartbeats_it_would_be(
    line_to: Any, rabbit: Rabbit, vhost: str, topology: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lane, "_is_deaf", lambda *_: False)
    assert await a_line_leads_nowhere(line_to, rabbit, vhost, topology) is Settlement.OVERDUE


@pytest.mark.heavy
async def test_an_overdue_confirm_is_settled_so_and_the_road_is_made_anew(
    line_to: Any, node: RabbitNode, topology: Any
) -> None:
    line = await line_to(node.add_vhost("silent"), topology, confirm_within=seconds(0.4), connect_within=seconds(2))
    node.pause()
    try:
        (settled,) = await line.outcomes(line.message(), within=5)
        assert settled.settlement is Settlement.OVERDUE
        assert "0.4 s" in settled.reason
        assert not line.publisher.writable
    finally:
        node.resume()
    await until(lambda: line.ready)
    assert kinds(await line.outcomes(line.message())) == [CONFIRMED]


@pytest.mark.heavy
async def test_publishes_without_an_answer_when_the_broker_dies_are_unknown_and_go_out_later(
    line_to: Any, node: RabbitNode, topology: Any
) -> None:
    line = await line_to(node.add_vhost("dying"), topology)
    node.pause()
    messages = [line.message() for _ in range(100)]
    line.publisher.publish(messages)
    node.kill()
    await until(lambda: len(line.settled) == 100)
    assert set(kinds(list(line.settled.values()))) == {UNKNOWN}
    assert line.settlements == 100
    await line.heard.wait(ConnectionDown, lambda signal: signal.role == "publish")
    line.heard.forget()
    await asyncio.get_running_loop().run_in_executor(None, node.start)
    back = await line.heard.wait(ConnectionUp, within=30)
    assert back.after_seconds > 0
    await until(lambda: line.ready)
    assert set(kinds(await line.outcomes(*messages))) == {CONFIRMED}
