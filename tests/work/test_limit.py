"""The time limit of handlers: one timer for all of them, and each is told of its own end alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from postroad.work.limit import TimeLimit


class Told:
    limited = False


async def for_ever():
    await asyncio.Event().wait()


async def at_once():
    pass


async def test_what_ends_in_time_is_left_alone():
    told = Told()
    await TimeLimit(0.05).within(at_once(), told=told)
    await asyncio.sleep(0.1)
    assert told.limited is False


async def test_what_does_not_is_cancelled_and_the_task_goes_on():
    told = Told()
    with pytest.raises(TimeoutError):
        await TimeLimit(0.05).within(for_ever(), told=told)
    assert told.limited is True
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_each_has_its_whole_limit_whoever_began_before():
    limit, loop = TimeLimit(0.2), asyncio.get_running_loop()

    async def one(after):
        await asyncio.sleep(after)
        began, told = loop.time(), Told()
        with pytest.raises(TimeoutError):
            await limit.within(for_ever(), told=told)
        return loop.time() - began

    took = await asyncio.gather(*(one(0.05 * number) for number in range(4)))
    assert all(0.2 <= each < 0.3 for each in took)


async def test_whoever_goes_on_all_the_same_is_told_of_once():
    late, told, other = [], Told(), Told()

    async def stubborn():
        while not late:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)

    limit = TimeLimit(0.05, late=late.append, spared=0.1)
    for work, who in ((for_ever(), other), (stubborn(), told)):
        with pytest.raises(TimeoutError):
            await limit.within(work, told=who)
    assert late == [told]


async def test_whoever_swallows_it_is_over_all_the_same():
    async def stubborn():
        with suppress(asyncio.CancelledError):
            await for_ever()

    told = Told()
    with pytest.raises(TimeoutError):
        await TimeLimit(0.05).within(stubborn(), told=told)
    assert told.limited


async def test_another_error_on_the_way_out_comes_out_as_it_is():
    async def clumsy():
        try:
            await for_ever()
        finally:
            raise LookupError

    told, task = Told(), asyncio.current_task()
    assert task is not None
    with pytest.raises(LookupError):
        await TimeLimit(0.05).within(clumsy(), told=told)
    assert told.limited
    assert task.cancelling() == 0


async def test_a_time_out_of_its_own_is_not_ours():
    async def impatient():
        async with asyncio.timeout(0.01):
            await for_ever()

    told = Told()
    with pytest.raises(TimeoutError):
        await TimeLimit(5).within(impatient(), told=told)
    assert told.limited is False


async def test_cancellation_from_outside_comes_out():
    told = Told()
    task = asyncio.ensure_future(TimeLimit(5).within(for_ever(), told=told))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told.limited is False
