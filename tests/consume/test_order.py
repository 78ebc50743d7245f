"""``order="latest"``: what is older than the last sequence of its key is dropped."""

from __future__ import annotations

import pytest

from consume.bench import AT_ONCE, Order, body
from consume.kinds import BOTH
from postroad.consume import consumer, inbox
from postroad.events import Subscription
from postroad.signals.catalog import DeliveryResult

Placed = Subscription("orders.order.placed", version=1, model=Order)
pytestmark = pytest.mark.parametrize("kind", BOTH, indirect=True)


@consumer(Placed, name="billing.orders", order="latest")
async def latest(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, $2, 1)", event.order, delivery.sequence)


async def out_of_order(here, queue, sql):
    async with here.consuming(latest, queue.intake()):
        for sequence in (1, 3, 2, 3, 5, 4):
            queue.put(body("A1", key="a", sequence=sequence))
        queue.put(body("B1", key="b", sequence=1))
        await here.settled(7)
    return [row["amount"] for row in await sql.fetch("SELECT amount FROM public.effect WHERE name = 'A1'")]


async def test_a_stale_sequence_is_dropped_with_its_reason(here, queue, sql):
    assert await out_of_order(here, queue, sql) == [1, 3, 5]
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'dropped' AND reason = 'stale sequence'") == 3
    assert await sql.fetchval("SELECT sequence FROM order_guard WHERE key = 'a'") == 5
    assert len(queue.acked) == 7


@pytest.mark.sabotage
async def test_without_the_guard_old_events_win(here, queue, sql, monkeypatch):
    def newest(*_):
        return True
        yield

    monkeypatch.setattr(inbox, "newest", newest)
    assert await out_of_order(here, queue, sql) == [1, 3, 2, 3, 5, 4]


async def test_the_guard_moves_only_with_a_commit(here, queue, sql):
    failed = []

    @consumer(Placed, name="billing.orders", order="latest", retry=AT_ONCE)
    async def once(event, delivery):
        if not failed:
            failed.append(delivery.sequence)
            raise ConnectionResetError
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, $2, $3)", event.order, 1, delivery.attempt)

    async with here.consuming(once, queue.intake(), retries=True):
        queue.put(body("A1", key="a", sequence=1))
        await here.settled(1, result=DeliveryResult.OK)
    assert await sql.fetchval("SELECT attempt FROM public.effect") == 2


async def test_an_event_that_is_retried_after_a_newer_one_is_dropped(here, queue, sql):
    @consumer(Placed, name="billing.orders", order="latest", retry=AT_ONCE)
    async def fail_old(event, delivery):
        if delivery.sequence == 1:
            raise ConnectionResetError
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, $2, 1)", event.order, delivery.sequence)

    async with here.consuming(fail_old, queue.intake()):
        queue.put(body("A1", key="a", sequence=1))
        queue.put(body("A1", key="a", sequence=2))
        await here.settled(1, result=DeliveryResult.OK)
    async with here.consuming(fail_old, queue.intake(), retries=True):
        await here.settled(1, result=DeliveryResult.DROP)
    assert await sql.fetch("SELECT outcome, reason FROM finished") == [("dropped", "stale sequence")]
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'dropped'") == 1


async def test_an_event_without_a_sequence_is_quarantined(here, queue, sql):
    async with here.consuming(latest, queue.intake()):
        queue.put(body("A1", key="a"))
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    assert await sql.fetchval("SELECT code FROM quarantine") == "PR501"
