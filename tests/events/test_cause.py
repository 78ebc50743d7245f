"""What runs inside a handler knows what it was caused by."""

from __future__ import annotations

import asyncio

from postroad.events.cause import Cause, cause, current_cause

OUTER, INNER = Cause("story", "event-1"), Cause("story", "event-2")


async def test_a_cause_lasts_for_its_block_and_reaches_tasks_and_threads():
    assert current_cause() is None
    with cause(OUTER):
        assert await asyncio.create_task(_look()) == OUTER
        assert await asyncio.to_thread(current_cause) == OUTER
        with cause(INNER):
            assert current_cause() == INNER
        assert current_cause() == OUTER
    assert current_cause() is None


async def test_causes_of_concurrent_handlers_stay_apart():
    async def handle(what: Cause) -> Cause | None:
        with cause(what):
            await asyncio.sleep(0)
            return current_cause()

    assert await asyncio.gather(handle(OUTER), handle(INNER)) == [OUTER, INNER]


async def _look() -> Cause | None:
    return current_cause()
