from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from postroad.consume.lanes import Lanes


@dataclass(frozen=True)
class Item:
    """All that lanes know of a message."""

    name: str
    lane: object = None


async def drawn(lanes, count):
    return [(await asyncio.wait_for(lanes.next(), 1)).name for _ in range(count)]


def nothing_is_ready(lanes):
    return lanes._ready.empty()


async def test_a_lane_runs_one_at_a_time_in_its_order_and_others_pass():
    lanes = Lanes()
    for item in [Item("a1", "a"), Item("a2", "a"), Item("b1", "b"), Item("x"), Item("a3", "a")]:
        lanes.add(item)
    assert await drawn(lanes, 3) == ["a1", "b1", "x"]
    assert nothing_is_ready(lanes)
    lanes.release("a")
    assert await drawn(lanes, 1) == ["a2"]
    assert nothing_is_ready(lanes)
    lanes.release("a")
    assert await drawn(lanes, 1) == ["a3"]


async def test_what_is_done_is_forgotten():
    lanes = Lanes()
    for number in range(100):
        lanes.add(Item("x", number))
        await lanes.next()
        lanes.release(number)
    assert lanes._lanes == {}


async def test_a_retry_waits_for_its_lane_and_then_keeps_it():
    lanes, order = Lanes(), []
    lanes.add(Item("a1", "a"))
    await lanes.next()

    async def retry():
        async with lanes.hold("a"):
            order.append("retry")

    task = asyncio.ensure_future(retry())
    await asyncio.sleep(0)
    lanes.add(Item("a2", "a"))
    assert order == []
    lanes.release("a")
    await task
    assert order == ["retry"]
    assert await drawn(lanes, 1) == ["a2"]


@pytest.mark.parametrize("granted", [False, True])
async def test_a_cancelled_retry_leaves_the_lane_to_the_next(granted):
    lanes = Lanes()
    lanes.add(Item("a1", "a"))
    await lanes.next()

    async def retry():
        async with lanes.hold("a"):
            raise AssertionError

    task = asyncio.ensure_future(retry())
    await asyncio.sleep(0)
    lanes.add(Item("a2", "a"))
    if granted:
        lanes.release("a")
        task.cancel()
    else:
        task.cancel()
        await asyncio.wait([task])
        lanes.release("a")
    await asyncio.wait([task])
    assert await drawn(lanes, 1) == ["a2"]
    lanes.release("a")
    assert lanes._lanes == {}


async def test_clearing_takes_what_does_not_run_and_leaves_what_does():
    lanes = Lanes()
    for item in [Item("a1", "a"), Item("b1", "b"), Item("a2", "a"), Item("b2", "b"), Item("x")]:
        lanes.add(item)
    await lanes.next()
    lanes.end(1)
    assert sorted(item.name for item in lanes.clear()) == ["a2", "b1", "b2", "x"]
    lanes.add(Item("a3", "a"))
    assert await lanes.next() is None
    assert nothing_is_ready(lanes)
    lanes.release("a")
    assert await drawn(lanes, 1) == ["a3"]
