"""The watchdog: a consumer that the broker does not know of is replaced, and the depth of its queue is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from postroad.clock import seconds
from postroad.signals.catalog import ConsumerGone, ConsumerSubscribed, QueueDepth
from postroad.transport.amqp.admin import Session
from postroad.transport.amqp.intake import AmqpIntake
from postroad.transport.amqp.watch import Watch
from support import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def a_cancel_that_nobody_hears(
    line_to: Callable[..., Awaitable[Any]], vhost: str, topology: Any, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The queue is deleted under the consumer and made again, and the broker's notice is lost on the way."""
    told: list[Any] = []
    monkeypatch.setattr(AmqpIntake, "_cancelled_by_broker", lambda _, frame: told.append(frame))
    line = await line_to(vhost, topology, {"billing": 10}, watch=seconds(0.5))
    other = await line_to(vhost, topology)
    line.heard.forget()
    async with Session(other.transport._address, other.transport._settings) as admin:
        await admin.call("queue_delete", "billing")
    await until(lambda: told)  # Made again sooner, the broker (3.10) takes the new queue for the old one.
    await other.transport.apply(topology)
    return other


@pytest.fixture
def lines(line_to: Any) -> tuple[list[Any], Any]:
    """Every line that a test starts, in order."""
    started: list[Any] = []

    async def start(*given: Any, **settings: Any) -> Any:
        started.append(await line_to(*given, **settings))
        return started[-1]

    return started, start


async def a_lost_cancel_is_mended(lines: Any, vhost: str, topology: Any, monkeypatch: Any, *, within: float) -> None:
    started, start = lines
    other = await a_cancel_that_nobody_hears(start, vhost, topology, monkeypatch)
    line = started[0]
    await other.outcomes(other.message())
    await until(lambda: line.heard.all(ConsumerSubscribed), within=within)
    assert [signal.cause for signal in line.heard.all(ConsumerGone)][-1] in {"watchdog", "channel_closed"}
    assert len(await line.intakes["billing"].take(1)) == 1


async def test_a_consumer_that_the_broker_does_not_know_of_is_replaced(
    lines: Any, vhost: str, topology: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_lost_cancel_is_mended(lines, vhost, topology, monkeypatch, within=10)


@pytest.mark.sabotage
async def test_without_the_watchdog_it_would_be_silent_for_ever(
    lines: Any, vhost: str, topology: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "begin", lambda *_: None)
    with pytest.raises((AssertionError, TimeoutError)):
        await a_lost_cancel_is_mended(lines, vhost, topology, monkeypatch, within=2)


async def test_the_depth_of_the_queue_is_told_and_a_known_consumer_left_alone(
    line_to: Any, vhost: str, topology: Any
) -> None:
    line = await line_to(vhost, topology, {"billing": 2}, watch=seconds(0.05))
    await line.outcomes(*(line.message() for _ in range(5)))
    await line.heard.wait(QueueDepth, lambda signal: signal.ready == 3)
    looks = len(line.heard.all(QueueDepth))
    await until(lambda: len(line.heard.all(QueueDepth)) >= looks + 3)
    assert {signal.queue for signal in line.heard.all(QueueDepth)} == {"billing"}
    assert len(line.heard.all(ConsumerSubscribed)) == 1
    assert line.heard.all(ConsumerGone) == []


async def test_a_paused_consumer_is_not_missed(line_to: Any, vhost: str, topology: Any) -> None:
    line = await line_to(vhost, topology, {"billing": 2}, watch=seconds(0.05))
    await line.heard.wait(QueueDepth)
    await line.intakes["billing"].pause()
    told = len(line.heard.all(QueueDepth))
    await line.outcomes(*(line.message() for _ in range(20)))
    assert len(line.heard.all(QueueDepth)) <= told + 1
    await line.intakes["billing"].resume()
    await line.heard.wait(QueueDepth, count=told + 3)
    assert [signal.cause for signal in line.heard.all(ConsumerGone)] == ["stopped"]
