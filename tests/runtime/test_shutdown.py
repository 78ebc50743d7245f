"""The way down: words, times and the receipt."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from postroad.clock import SYSTEM_CLOCK, ManualClock, seconds
from postroad.runtime.executor import Tasks
from postroad.runtime.shutdown import FINISH, GIVE_UP, Tally, Told, close_ground, receipt, wind_down
from postroad.runtime.supervisor import Supervisor, Tier
from postroad.signals import Signal, Signals
from postroad.signals.catalog import DeliveryResult, DeliverySettled, ExecutorSettled, WorkSettled

if TYPE_CHECKING:
    from postroad.owner import Readiness


def test_the_first_word_begins_the_grace_and_the_second_ends_it_early() -> None:
    clock = ManualClock()
    told = Told(seconds(24), clock=clock)
    assert (told.begun, told.elapsed) == (False, 0)
    told.tell("SIGTERM")
    clock.advance(seconds(10))
    assert (told.left(FINISH), told.left(GIVE_UP), told.left(1), told.late) == (6, 11, 14, 0)
    told.tell("SIGTERM")
    assert (told.left(FINISH), told.left(GIVE_UP), told.left(1)) == (0, 0, 3)
    clock.advance(seconds(4))
    assert (told.left(1), told.late) == (0, 1)
    assert told.cause == "SIGTERM"


def test_a_listener_hears_every_word_also_one_that_came_before_it() -> None:
    told = Told(seconds(1), clock=ManualClock())
    words: list[int] = []
    told.tell("first")
    told.on_word(lambda: words.append(1))
    threading.Thread(target=told.tell, args=("second",)).start()
    told.tell("third")
    assert len(words) >= 2


def test_the_tally_counts_from_the_first_word_and_a_retry_once() -> None:
    told = Told(seconds(1), clock=ManualClock())
    tally = Tally(told)

    def settled(result: DeliveryResult, count: int = 1) -> DeliverySettled:
        return DeliverySettled("c", "t", result, count)

    tally(settled(DeliveryResult.OK))
    told.tell("stop")
    for signal in (
        settled(DeliveryResult.OK, 3), settled(DeliveryResult.RETRY), settled(DeliveryResult.GIVEN_BACK, 2),
        WorkSettled("q", "retry", "ok", 1), WorkSettled("q", "job", "ok", 1),
        WorkSettled("q", "job", "interrupted", 1), ExecutorSettled("e", "mail", "failed", 0.0, 0.0),
        ExecutorSettled("e", "mail", "cancelled", 0.0, 0.0),
    ):  # fmt: skip
        tally(signal)
    last = receipt(tally, (5, 7, 2), told=told, unfinished=Counter({"mail": 3, "bill": 1}))
    assert (last.finished, last.given_back, last.abandoned) == (6 + 5, 3 + 7, 2 + 4)
    assert last.unfinished == ("bill", "mail (3)")


class Stubborn:
    """A service that hears nothing but cancellation, or not even that."""

    def __init__(self, name: str, *, swallows: bool = False) -> None:
        self.name = name
        self.cancelled_at = 0.0
        self._swallows = swallows
        self.release = asyncio.Event()

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        ready.up()
        while True:
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled_at = SYSTEM_CLOCK.monotonic()
                if not self._swallows:
                    raise
            else:
                return


@pytest.fixture
def heard() -> list[Signal]:
    return []


@pytest.fixture
async def supervisor(heard: list[Signal]) -> Supervisor:
    signals = Signals(heard.append)
    return Supervisor(Tasks(signals), signals=signals, clock=SYSTEM_CLOCK, chance=lambda: 0.0)


async def test_what_does_not_stop_is_cancelled_at_two_thirds(supervisor: Supervisor) -> None:
    service = Stubborn("x")
    supervisor.start(service)
    await supervisor.wait_ready()
    told = Told(seconds(1.2), clock=SYSTEM_CLOCK)
    told.tell("SIGTERM")
    began = SYSTEM_CLOCK.monotonic()
    assert await wind_down(supervisor, told=told) == []
    assert 0.75 <= service.cancelled_at - began < 1.05


async def test_what_is_not_even_cancelled_is_left_at_seven_eighths(supervisor: Supervisor) -> None:
    service = Stubborn("x", swallows=True)
    supervisor.start(service)
    await supervisor.wait_ready()
    told = Told(seconds(0.8), clock=SYSTEM_CLOCK)
    told.tell("SIGTERM")
    assert await wind_down(supervisor, told=told) == ["x"]
    assert 0.7 <= told.elapsed < 0.8
    service.release.set()


async def test_a_second_word_cancels_at_once(supervisor: Supervisor) -> None:
    service = Stubborn("x")
    supervisor.start(service)
    await supervisor.wait_ready()
    told = Told(seconds(60), clock=SYSTEM_CLOCK)
    told.tell("SIGTERM")
    asyncio.get_running_loop().call_later(0.1, told.tell, "SIGTERM")
    async with asyncio.timeout(5):
        assert await wind_down(supervisor, told=told) == []


async def test_the_ground_is_closed_within_what_is_left(supervisor: Supervisor) -> None:
    service = Stubborn("transport")
    supervisor.start(service, tier=Tier.GROUND)
    await supervisor.wait_ready()
    told = Told(seconds(2), clock=SYSTEM_CLOCK)
    told.tell("SIGTERM")
    assert await close_ground(supervisor, told=told) == []
    assert told.elapsed < 2.2
