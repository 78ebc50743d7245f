"""Threads for blocking calls: a fixed number, each with one taker, and none of them held against a loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import AsyncExitStack

import pytest

from postroad.clock import seconds
from postroad.runtime.executor import Tasks
from postroad.signals import Signals
from postroad.signals.catalog import TaskFailed, ThreadsStuck
from support import Recorder

WHO = contextvars.ContextVar("who", default="nobody")


@pytest.fixture
async def signals():
    return Signals()


@pytest.fixture
async def heard(signals):
    return Recorder(signals)


@pytest.fixture
async def owner(signals, heard):
    owner = Tasks(signals)
    yield owner
    assert await owner.join(within=seconds(5)) == ()


async def test_a_call_runs_on_a_named_thread_in_the_callers_context(owner):
    WHO.set("caller")
    slots = owner.slots(1, name="pool")

    def look():
        seen = (threading.current_thread().name, WHO.get())
        WHO.set("thread")
        return seen

    async with slots.take() as slot:
        assert slot.idle
        assert await slot.call(look) == ("postroad:threads:pool-0", "caller")
        assert await slot.call(WHO.get) == "caller"


async def test_an_error_comes_out_and_the_thread_serves_the_next(owner):
    async with owner.slots(1, name="pool").take() as slot:
        with pytest.raises(KeyError, match="x"):
            await slot.call(lambda: {}["x"])
        first = await slot.call(threading.get_ident)
        assert first == await slot.call(threading.get_ident) != threading.get_ident()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration])
async def test_what_a_loop_cannot_carry_is_an_ordinary_error(owner, error):
    def leave():
        raise error

    async with owner.slots(1, name="pool").take() as slot:
        with pytest.raises(RuntimeError, match=error.__name__):
            await slot.call(leave)


async def test_who_comes_when_all_are_taken_waits(owner):
    slots, order = owner.slots(2, name="pool"), []

    async def third():
        async with slots.take():
            order.append("third")

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(slots.take())
        async with slots.take():
            waiting = asyncio.create_task(third())
            await asyncio.sleep(0)
            order.append("second")
        await waiting
    assert order == ["second", "third"]


async def test_a_call_that_was_given_up_is_reported_and_its_slot_kept_until_it_ends(owner, heard):
    slots, go = owner.slots(1, name="pool"), threading.Event()

    async def give_up():
        async with slots.take() as slot, asyncio.timeout(0.05):
            await slot.call(go.wait)

    with pytest.raises(TimeoutError):
        await give_up()
    assert slots.stuck == 1
    assert heard.all(ThreadsStuck) == [ThreadsStuck("pool", 1)]
    assert [(failed.task, failed.error_type) for failed in heard.all(TaskFailed)] == [("threads:pool-0", "Stuck")]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(slots.take().__aenter__(), 0.05)
    go.set()
    async with slots.take() as slot:
        assert await slot.call(lambda: "again") == "again"
    assert slots.stuck == 0
    assert heard.all(ThreadsStuck)[-1] == ThreadsStuck("pool", 0)


async def test_a_call_that_ends_in_time_after_all_is_not_stuck(owner, heard):
    slots, go = owner.slots(1, name="pool"), threading.Event()
    async with slots.take() as slot:
        calling = asyncio.create_task(slot.call(go.wait))
        await asyncio.sleep(0)
        calling.cancel()
        assert not await slot.quiet(0.01)
        go.set()
        assert await slot.quiet(5)
    assert heard.all(ThreadsStuck) == []


async def test_threads_start_when_needed_and_end_with_their_owner(signals):
    owner, ended = Tasks(signals), []
    slots = owner.slots(5, name="pool")
    async with slots.take() as slot:
        slot.at_end = lambda: ended.append(threading.current_thread().name)
        await slot.call(lambda: None)
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("postroad:threads:pool")]
    assert names == ["postroad:threads:pool-0"]
    assert await owner.join(within=seconds(5)) == ()
    assert ended == names


async def test_a_stuck_thread_is_named_at_the_end_and_not_waited_for_longer_than_told(signals):
    owner, go = Tasks(signals), threading.Event()
    slots = owner.slots(1, name="pool")
    with pytest.raises(TimeoutError):
        async with slots.take() as slot, asyncio.timeout(0.05):
            await slot.call(go.wait)
    assert await owner.join(within=seconds(0.1)) == ("postroad:threads:pool-0",)
    go.set()
    assert await owner.join(within=seconds(5)) == ()
