"""What cancellation means to an ``async def`` handler; a thread knows none."""

from __future__ import annotations

import asyncio
import json

import pytest

from consume.bench import Order, body
from postroad.clock import seconds
from postroad.consume import consumer
from postroad.consume.handler import HandlerRun
from postroad.events import Subscription
from postroad.retry import Backoff
from postroad.signals.catalog import DeliveryResult, DeliverySettled, HandlerStarted, TaskFailed

QUICKLY = Backoff(first=seconds(0.01), most=seconds(0.05), attempts=5)
Placed = Subscription("orders.order.placed", version=1, model=Order)


@pytest.mark.parametrize("returns", [True, False])
async def test_a_handler_that_swallows_its_cancellation_cannot_commit(here, queue, sql, returns, monkeypatch):
    monkeypatch.setattr("postroad.consume.attempt.LET_GO", seconds(0.3))

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


async def stubborn_retry(here, queue, sql):
    """A retry swallows its cancellation in a process that takes no deliveries: what it was charged for."""
    let_go = asyncio.Event()

    @consumer(Placed, name="billing.orders", concurrency=1, max_runtime=seconds(0.2), retry=QUICKLY)
    async def stubborn(event, delivery):
        if delivery.attempt == 1:
            message = "not yet"
            raise ValueError(message)
        while delivery.attempt == 2 and not let_go.is_set():
            try:
                await delivery.tx.fetchval("SELECT 1")
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue

    async with here.consuming(stubborn, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
    async with here._claimer(here.attempts(stubborn)):
        try:
            await here.heard.wait(DeliverySettled, lambda one: one.result is DeliveryResult.OK, within=5)
        finally:
            let_go.set()
    return [json.loads(row["history"])[1]["code"] for row in await sql.fetch("SELECT history FROM finished")]


async def test_a_retry_that_swallows_its_cancellation_gives_its_slot_back_where_no_deliveries_are_taken(
    here, queue, sql, monkeypatch
):
    monkeypatch.setattr("postroad.consume.attempt.LET_GO", seconds(0.2))
    assert await stubborn_retry(here, queue, sql) == ["PR506"]
    assert len(here.heard.all(TaskFailed)) == 1


@pytest.mark.sabotage
async def test_sabotage_with_nobody_to_cut_its_connection_it_keeps_its_slot(here, queue, sql, monkeypatch):
    monkeypatch.setattr("postroad.consume.attempt.LET_GO", seconds(0.2))
    monkeypatch.setattr(HandlerRun, "cut", lambda _: None)
    with pytest.raises(TimeoutError):
        await stubborn_retry(here, queue, sql)


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
