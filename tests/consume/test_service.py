from __future__ import annotations

import asyncio

import pytest

from consume.bench import Order, body
from consume.kinds import BOTH
from postroad.consume import consumer
from postroad.events import Subscription
from postroad.signals.catalog import (
    DeliveriesAcked,
    DeliveriesCommitted,
    DeliveriesReceived,
    DeliveryResult,
    DeliverySettled,
    HandlerStarted,
)

Placed = Subscription("orders.order.placed", version=1, model=Order)
EFFECT = "INSERT INTO public.effect VALUES ($1, $2, $3)"


@consumer(Placed, name="billing.orders")
async def bill(event, delivery):
    await delivery.tx.execute(EFFECT, event.order, event.amount, delivery.attempt)


async def effects(sql):
    return [tuple(row) for row in await sql.fetch("SELECT name, amount, attempt FROM public.effect ORDER BY name")]


async def marks(sql):
    return [tuple(row) for row in await sql.fetch("SELECT outcome, reason FROM inbox ORDER BY at")]


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_an_event_takes_effect_and_is_acked_after_its_commit(here, queue, sql):
    order = []
    here.signals.subscribe(lambda signal: order.append(type(signal)))
    async with here.consuming(bill, queue.intake()):
        queue.put(body("A1", amount=5))
        await here.settled()
    assert await effects(sql) == [("A1", 5, 1)]
    assert await marks(sql) == [("handled", None)]
    assert len(queue.acked) == 1
    wanted = [DeliveriesReceived, HandlerStarted, DeliveriesCommitted, DeliveriesAcked, DeliverySettled]
    assert [kind for kind in order if kind in wanted] == wanted


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_a_redelivered_message_is_acked_without_running_the_handler(here, queue, sql):
    intake = queue.intake()
    async with here.consuming(bill, intake):
        intake.acks_are_lost = True  # as if it were killed between commit and ack
        queue.put(body("A1"))
        await here.settled()
        intake.acks_are_lost = False
        intake.drop()
        await here.settled(result=DeliveryResult.DUPLICATE)
    assert await effects(sql) == [("A1", 1, 1)]
    assert len(queue.acked) == 1


async def test_many_events_run_several_at_once(here, queue, sql):
    running, most = 0, 0

    @consumer(Placed, name="billing.orders", concurrency=4)
    async def wait(event, delivery):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if most < 4:
            await asyncio.sleep(0.05)
        await delivery.tx.execute(EFFECT, event.order, 1, 1)
        running -= 1

    async with here.consuming(wait, queue.intake()):
        for number in range(60):
            queue.put(body(f"{number:02}"))
        await here.settled(60)
    assert most == 4
    assert len(await effects(sql)) == 60
    assert len(queue.acked) == 60
