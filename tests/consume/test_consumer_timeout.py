"""The broker's own time-out for acks: it closes the channel, and that decides nothing about a message."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from consume.bench import AT_ONCE, Order, body
from consume.broker import NAME, road
from postroad.consume import consumer, inbox
from postroad.events import Subscription
from postroad.signals.catalog import (
    ChannelClosed,
    ConsumerSubscribed,
    DeliveryDelayed,
    DeliveryQuarantined,
    DeliveryResult,
    DeliverySettled,
    HandlerStarted,
)
from postroad.transport.topology import dead_letter_queue
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
COUNT = 20
ONCE = Counter(f"{number}" for number in range(COUNT))
pytestmark = pytest.mark.heavy


async def timed_out(here, rabbit, sql) -> Counter[str]:
    """One handler outlasts the time-out while its neighbours lie unacked behind it; the effects by order."""
    # Looked at once a minute otherwise; a channel reads both when it is opened.
    rabbit.evaluate("application:set_env(rabbit, consumer_timeout, 1000)")
    rabbit.evaluate("application:set_env(rabbit, channel_tick_interval, 500)")
    go, runs = asyncio.Event(), []

    @consumer(Placed, name=NAME, retry=AT_ONCE, concurrency=1, group=False)
    async def hold(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)
        runs.append(event.order)
        if runs == ["0"]:
            await go.wait()

    async with road(here, rabbit.url()) as (made, intake), here.consuming(hold, intake):
        for number in range(COUNT):
            made.publish(body(f"{number}"))
        await here.heard.wait(ChannelClosed, lambda signal: signal.code == 406, within=30)
        await here.heard.wait(ConsumerSubscribed, count=2)
        go.set()
        await until(lambda: {*runs} == {*ONCE})
        await here.heard.wait(DeliverySettled, lambda signal: signal.result is DeliveryResult.DUPLICATE)
        await emptied(made)
        assert (await made.transport.depths([dead_letter_queue(NAME)])) == {dead_letter_queue(NAME): 0}
    return Counter({row["name"]: row["count"] for row in await sql.fetch(_EFFECTS)})


_EFFECTS = "SELECT name, count(*) FROM public.effect GROUP BY name"


async def emptied(made) -> None:
    async with asyncio.timeout(20):
        while (await made.transport.depths([NAME]))[NAME]:  # noqa: ASYNC110 - the broker's
            await asyncio.sleep(0.1)


async def test_a_consumer_time_out_loses_doubles_and_charges_nothing(here, own_rabbit, sql):
    assert await timed_out(here, own_rabbit, sql) == ONCE
    assert {signal.attempt for signal in here.heard.all(HandlerStarted)} == {1}
    assert here.heard.all(DeliveryDelayed) == here.heard.all(DeliveryQuarantined) == []
    for table in ("work", "quarantine", "starts"):
        assert await sql.fetchval(f"SELECT count(*) FROM {table}") == 0, table


@pytest.mark.sabotage
async def test_without_the_inbox_a_consumer_time_out_doubles(here, own_rabbit, sql, monkeypatch):
    def fresh(*_, **__):
        yield from ()
        return inbox.Claim.FRESH

    monkeypatch.setattr(inbox, "claim", fresh)
    with pytest.raises(TimeoutError):  # Nothing is ever a duplicate.
        await timed_out(here, own_rabbit, sql)
    assert await sql.fetchval("SELECT count(*) FROM public.effect WHERE name = '0'") == 2
