from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from postroad.clock import seconds
from postroad.errors import AccessRefused, Unavailable
from postroad.signals.catalog import ConnectionDown, ConnectionUp, ConsumerSubscribed, TaskFailed
from postroad.testing.servers import Rabbit, TcpProxy, free_port
from postroad.transport.base import Intake, Publisher, Settlement, Transport
from support import until

if TYPE_CHECKING:
    from postroad.owner import Owner, Service


async def test_it_keeps_the_promises_of_the_base_to_the_type_checker(line_of: Any, vhost: str) -> None:
    line = line_of(vhost)
    transport: Transport = line.transport
    publisher: Publisher = transport.publisher()
    intake: Intake = transport.intake("billing", prefetch=1)
    service: Service = line.transport.service()
    owner: Owner = line.owner
    assert service.name == "transport"
    assert publisher is transport.publisher()
    assert not publisher.writable
    assert (intake, owner) == (intake, owner)


async def test_ready_means_that_the_broker_has_confirmed_every_consumer(
    line_of: Any, vhost: str, topology: Any
) -> None:
    line = line_of(vhost)
    line.transport.intake("billing", prefetch=10)  # The queue does not exist yet.
    starting = line.owner.task(line.start(), name="start")
    await until(lambda: "billing" in line.reason and "404" in line.reason)
    assert not line.ready
    await line.transport.apply(topology)
    await starting
    assert line.ready
    assert line.heard.all(ConsumerSubscribed) == [ConsumerSubscribed("billing", 10)]
    await line.stop()


async def test_publisher_and_intake_may_come_after_the_start(line: Any, drain: Any) -> None:
    late = line.transport.intake("billing", prefetch=10)
    await line.outcomes(line.message())
    assert len(await drain(late, 1)) == 1
    await line.heard.wait(ConsumerSubscribed)


async def test_a_refused_login_ends_the_service_and_an_absent_broker_may_be_tried_again(
    line_of: Any, vhost: str, rabbit: Rabbit
) -> None:
    with pytest.raises(AccessRefused, match="POSTROAD_BROKER_URL"):
        await line_of(rabbit.url(vhost.rpartition("/")[2], "guest", "wrong")).start()
    with pytest.raises(Unavailable, match="PR302"):
        await line_of(f"amqp://guest:guest@127.0.0.1:{free_port()}/").start()


async def test_after_the_start_a_loss_is_recovered_and_not_raised(
    line_to: Any, vhost: str, rabbit: Rabbit, topology: Any
) -> None:
    with TcpProxy(rabbit.port) as proxy:
        line = await line_to(rabbit.url(vhost.rpartition("/")[2], port=proxy.port), topology)
        proxy.cut()
        message = line.message()
        await line.heard.wait(ConnectionDown, count=3)  # Lost once, refused twice.
        await until(lambda: not line.ready and "nothing listens there" in line.reason)
        assert (await line.outcomes(message))[0].settlement is Settlement.UNKNOWN
        proxy.heal()
        await line.heard.wait(ConnectionUp, count=2)
        await until(lambda: line.ready)
        assert (await line.outcomes(message))[0].settlement is Settlement.CONFIRMED
        assert line.heard.all(TaskFailed) == []
        await line.stop()


async def test_a_stop_while_the_broker_is_silent_is_bounded_and_settles_everything(
    line_to: Any, vhost: str, rabbit: Rabbit, topology: Any
) -> None:
    with TcpProxy(rabbit.port) as proxy:
        url = rabbit.url(vhost.rpartition("/")[2], port=proxy.port)
        line = await line_to(url, topology, {"billing": 5}, close_within=seconds(0.3))
        proxy.stall()
        messages = [line.message() for _ in range(10)]
        line.publisher.publish(messages)
        began = time.monotonic()
        await line.intakes["billing"].pause()
        await line.intakes["billing"].stop()
        await line.stop()
        assert time.monotonic() - began < 4
        assert {line.settled[message.ticket].settlement for message in messages} == {Settlement.UNKNOWN}
        assert line.settlements == 10


async def test_a_cancelled_service_lets_go_at_once_and_leaves_no_thread(
    line_to: Any, vhost: str, topology: Any
) -> None:
    line = await line_to(vhost, topology, {"billing": 5})
    line._running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await line._running
    line._running = None
    assert not line.publisher.writable
    assert await line.owner.join(within=seconds(2)) == ()


async def test_it_can_be_started_again(line_to: Any, vhost: str, topology: Any, drain: Any) -> None:
    line = await line_to(vhost, topology, {"billing": 5})
    await line.stop()
    await line.start()
    await line.outcomes(line.message())
    assert len(await drain(line.intakes["billing"], 1)) == 1
