"""An erased event that still comes: it is dropped by its id, and no handler sees it."""

from __future__ import annotations

import json

import pytest

from consume.bench import AT_ONCE, Order, body
from postroad.consume import arrival, consumer
from postroad.events import Subscription
from postroad.events.redacted import tombstone
from postroad.signals.catalog import DeliveryResult


@consumer(Subscription("orders.order.placed", version=1, model=Order), name="billing.orders", retry=AT_ONCE)
async def bill(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, 1)", event.order)


async def assert_dropped(here, queue, sql):
    async with here.consuming(bill, queue.intake()):
        queue.put(tombstone(json.loads(body("A1", key="ada"))))
        await here.settled(1, result=DeliveryResult.DROP)
    rows = await sql.fetch("SELECT outcome, reason FROM inbox")
    assert [tuple(row) for row in rows] == [("dropped", "redacted")]
    assert await sql.fetchval("SELECT count(*) FROM quarantine") == 0


async def test_a_tombstone_is_dropped_and_marked_by_the_id_of_its_event(here, queue, sql):
    await assert_dropped(here, queue, sql)


@pytest.mark.sabotage
async def test_sabotage_unrecognised_it_lies_in_quarantine(here, queue, sql, monkeypatch):
    monkeypatch.setattr(arrival, "is_redacted", lambda body: False)
    with pytest.raises((AssertionError, TimeoutError)):
        await assert_dropped(here, queue, sql)
