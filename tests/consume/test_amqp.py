"""The same promises over RabbitMQ."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from consume.bench import AT_ONCE, Order, body
from consume.broker import NAME, road
from postroad.consume import consumer
from postroad.consume.gears import ABREAST, MOST
from postroad.events import Subscription
from postroad.signals.catalog import (
    ConnectionUp,
    ConsumerSubscribed,
    DeliveryDelayed,
    DeliveryResult,
    DeliverySettled,
    StaleAcks,
)
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)


@consumer(Placed, name=NAME, retry=AT_ONCE)
async def bill(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)


async def test_two_processes_share_a_queue_and_duplicates_take_effect_once(here, there, vhost, sql):
    async with AsyncExitStack() as stack:
        producing, one = await stack.enter_async_context(road(here, vhost))
        _, two = await stack.enter_async_context(road(there, vhost))
        await stack.enter_async_context(here.consuming(bill, one))
        await stack.enter_async_context(there.consuming(bill, two))
        for number in range(300):
            twin = body(f"{number}")
            producing.publish(twin)
            producing.publish(twin)
        await until(lambda: _settled(here, "ok") + _settled(there, "ok") == 300)
        await until(lambda: _settled(here, "duplicate") + _settled(there, "duplicate") == 300)
        await until_empty(producing)
        assert _settled(here, "ok") > 0
        assert _settled(there, "ok") > 0
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 300


async def test_a_stopped_service_gives_back_and_another_goes_on(here, there, vhost, sql):
    async with road(here, vhost) as (producing, intake):
        for number in range(200):
            producing.publish(body(f"{number}"))
        await until(lambda: producing.confirmed == 200)
        async with here.consuming(bill, intake):
            await here.settled(20, result=DeliveryResult.OK)
        async with road(there, vhost) as (_, other), there.consuming(bill, other):
            await until(lambda: _settled(here, "ok") + _settled(there, "ok") == 200)
            # Of acks just before its channel closes the broker may lose the last; the inbox knows those events.
            assert _settled(there, "duplicate") <= ABREAST * MOST
            await until_empty(producing)
        assert here.heard.all(StaleAcks) == []
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 200


@pytest.mark.heavy
async def test_a_broker_restarted_in_mid_item_loses_doubles_and_charges_nothing(here, sql, own_rabbit):
    go, started = asyncio.Event(), []

    @consumer(Placed, name=NAME, retry=AT_ONCE)
    async def hold(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)
        started.append(event.order)
        if len(started) > 50:
            await go.wait()

    async with road(here, own_rabbit.url()) as (producing, intake), here.consuming(hold, intake):
        for number in range(400):
            producing.publish(body(f"{number}"))
        await until(lambda: len(started) > 50)
        await asyncio.to_thread(own_rabbit.kill)
        await asyncio.to_thread(own_rabbit.start)
        await here.heard.wait(ConsumerSubscribed, count=2, within=60)
        go.set()
        await until(lambda: producing.confirmed == 400 and _settled(here, "ok") == 400, within=60)
        await until_empty(producing)
        assert _settled(here, "duplicate") > 0
    assert await sql.fetchval("SELECT count(DISTINCT name) FROM public.effect") == 400
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 400
    assert here.heard.all(DeliveryDelayed) == []
    assert len(here.heard.all(ConnectionUp)) >= 4


def _settled(standing, result):
    return len([signal for signal in standing.heard.all(DeliverySettled) if signal.result == result])


async def until_empty(producing):
    """Nothing waits in the queue, and nothing went to where the broker puts what it gives up."""
    dead = f"{NAME}.dlq"
    async with asyncio.timeout(20):
        while (depths := await producing.transport.depths([NAME, dead]))[NAME]:  # noqa: ASYNC110 - the broker's
            await asyncio.sleep(0.1)
    assert depths[dead] == 0
