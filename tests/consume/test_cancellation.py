"""What cancellation means to an ``async def`` handler; a thread knows none."""

from __future__ import annotations

import asyncio
import json

import pytest

from consume.bench import Order, body
from postroad.clock import seconds
from postroad.consume import consumer
from postroad.events import Subscription
from postroad.retry import Backoff
from postroad.signals.catalog import DeliveryResult, HandlerStarted, TaskFailed

Placed = Subscription("orders.order.placed", version=1, model=Order)


@pytest.mark.parametrize("returns", [True, False])
async def test_a_handler_that_swallows_its_cancellation_cannot_commit(here, queue, sql, returns, monkeypatch):
    monkeypatch.setattr("postroad.consume.handler.LET_GO", seconds(0.3))
    monkeypatch.setattr("postroad.consume.service._WATCH_SECONDS", 0.05)

    @consumer(Placed, name="billing.orders", max_runtime=seconds(0.1), retry=Backoff(first=seconds(60)))
    async def stubborn(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ('x', 1, 1)")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if not returns:
                await here.heard.wait(TaskFailed)

    async with here.consuming(stubborn, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
        queue.put(body("A2"))  # the consumer goes on
        await here.settled(2, result=DeliveryResult.RETRY)
    assert await sql.fetch("SELECT * FROM public.effect") == []
    assert await sql.fetch("SELECT outcome FROM inbox") == [("delayed",), ("delayed",)]
    assert {json.loads(row["history"])[0]["code"] for row in await sql.fetch("SELECT history FROM work")} == {"PR506"}
    assert bool(here.heard.all(TaskFailed)) is not returns


async def test_a_cancelled_inner_task_is_a_failure_like_any_other(here, queue, sql):
    @consumer(Placed, name="billing.orders", retry=Backoff(first=seconds(60)))
    async def inner(event, delivery):
        sleeping = asyncio.ensure_future(asyncio.sleep(30))
        asyncio.get_running_loop().call_soon(sleeping.cancel)
        await sleeping

    async with here.consuming(inner, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
    assert len(here.heard.all(HandlerStarted)) == 1
