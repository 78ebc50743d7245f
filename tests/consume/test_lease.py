"""Leases in handlers: given up by the commit of the delivery, which nobody else can come before."""

from __future__ import annotations

import asyncio
import threading

import pytest

from consume.bench import Order, body
from postroad.clock import seconds
from postroad.consume import consumer
from postroad.errors import LeaseHeld, LeaseLost, UsageError
from postroad.events import Subscription
from postroad.retry import Backoff
from postroad.signals.catalog import DeliveryResult, DeliverySettled, LateWriteRefused, LeaseGone
from postroad.sql import threads
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
EFFECT = "INSERT INTO public.effect VALUES ('x', 1, 1)"
FENCE = "UPDATE lease SET token = token + 1, holder = NULL, expires_at = clock_timestamp()"
TTL = seconds(3)
SOON = Backoff(first=seconds(0.05), most=seconds(0.1), attempts=20)


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(threads, "LET_GO", seconds(0.2))


async def effects(sql):
    return await sql.fetchval("SELECT count(*) FROM public.effect")


async def test_the_name_is_given_up_by_the_commit_of_the_delivery(here, there, queue, sql):
    seen = []

    @consumer(Placed, name="billing.orders")
    async def bill(event, delivery):
        async with delivery.lease("invoices", ttl=TTL) as lease:
            await delivery.tx.execute(EFFECT)
            lease.check()
        async with there.leasing() as others:
            with pytest.raises(LeaseHeld):
                async with others.hold("invoices"):
                    pass
        seen.append(lease.token)

    async with here.leasing(), here.consuming(bill, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    assert seen == [1]
    assert await effects(sql) == 1
    assert await sql.fetchrow("SELECT name, holder, token FROM lease") == ("user:invoices", None, 1)


async def test_a_lost_lease_cancels_the_handler_and_gives_the_delivery_back_uncharged(here, queue, sql):
    attempts, errors, inside = [], [], asyncio.Event()

    @consumer(Placed, name="billing.orders", retry=SOON)
    async def bill(event, delivery):
        attempts.append(delivery.attempt)
        try:
            async with delivery.lease("invoices", ttl=TTL, wait=seconds(20)):
                await delivery.tx.execute(EFFECT)
                if len(attempts) == 1:
                    inside.set()
                    await asyncio.Event().wait()
        except LeaseLost as error:
            errors.append(error)
            raise

    async with here.leasing(), here.consuming(bill, queue.intake()):
        queue.put(body("A1"))
        await inside.wait()
        await sql.execute(FENCE)
        await here.settled(1, result=DeliveryResult.OK)
    assert attempts == [1, 1], "nothing was charged"
    assert [error.code for error in errors] == ["PR401"]
    assert here.heard.all(LeaseGone)
    assert await effects(sql) == 1


async def overtaken(here, queue, sql):
    """An operator fences the lease at the end of its block, long before a renewal."""
    attempts = []

    @consumer(Placed, name="billing.orders", retry=SOON)
    async def bill(event, delivery):
        attempts.append(delivery.attempt)
        async with delivery.lease("invoices", ttl=seconds(60)):
            await delivery.tx.execute(EFFECT)
            if len(attempts) == 1:
                await sql.execute(FENCE)

    async with here.leasing(), here.consuming(bill, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    return attempts


async def test_a_delivery_cannot_commit_what_it_wrote_under_a_lease_that_another_took(here, queue, sql):
    assert await overtaken(here, queue, sql) == [1, 1]
    assert await effects(sql) == 1
    assert here.heard.all(LateWriteRefused)


@pytest.mark.sabotage
async def test_without_the_fence_at_the_end_it_does(here, queue, sql, monkeypatch):
    def nothing(_lease):
        return
        yield

    monkeypatch.setattr("postroad.leases.held.HeldLease.settled", nothing)
    assert await overtaken(here, queue, sql) == [1], "what a lease that was taken away had protected is committed"


async def test_a_name_that_another_holds_is_tried_again_as_any_failure(here, there, queue, sql):
    @consumer(Placed, name="billing.orders", retry=SOON)
    async def bill(event, delivery):
        async with delivery.lease("invoices", ttl=TTL):
            await delivery.tx.execute(EFFECT)

    async with there.leasing() as others, here.leasing(), here.consuming(bill, queue.intake(), retries=True):
        async with others.hold("invoices", ttl=TTL):
            queue.put(body("A1"))
            await here.settled(1, result=DeliveryResult.RETRY)
        await here.settled(1, result=DeliveryResult.OK)
    assert await effects(sql) == 1


async def test_without_an_app_there_are_no_leases(here, queue, sql):
    said = []

    @consumer(Placed, name="billing.orders")
    async def bill(event, delivery):
        with pytest.raises(UsageError) as caught:
            delivery.lease("invoices")
        said.append(str(caught.value))

    async with here.consuming(bill, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1)
    assert said == ["consumer 'billing.orders' has no leases; run it in an App [PR107]"]


@pytest.mark.parametrize("kind", ["def"], indirect=True)
async def test_on_a_thread_too(here, queue, sql):
    tokens = []

    @consumer(Placed, name="billing.orders")
    def bill(event, delivery):
        with delivery.lease_sync("invoices", ttl=TTL) as lease:
            delivery.tx.execute(EFFECT)
            lease.check()
            tokens.append(lease.token)

    async with here.leasing(), here.consuming(bill, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    assert tokens == [1]
    assert await effects(sql) == 1
    assert await sql.fetchval("SELECT holder FROM lease") is None


@pytest.mark.parametrize("kind", ["def"], indirect=True)
async def test_at_the_loss_a_threads_delivery_is_cut_off_from_the_database(here, queue, sql):
    attempts, inside = [], threading.Event()

    @consumer(Placed, name="billing.orders", retry=SOON)
    def bill(event, delivery):
        attempts.append(delivery.attempt)
        with delivery.lease_sync("invoices", ttl=TTL, wait=seconds(20)):
            delivery.tx.execute(EFFECT)
            if len(attempts) == 1:
                inside.set()
                delivery.tx.execute("SELECT pg_sleep(60)")

    async with here.leasing(), here.consuming(bill, queue.intake(), retries=True):
        queue.put(body("A1"))
        await until(inside.is_set)
        await sql.execute(FENCE)
        await here.settled(1, result=DeliveryResult.OK)
    assert attempts == [1, 1]
    assert await effects(sql) == 1
    assert [signal.result for signal in here.heard.all(DeliverySettled)][-1] == DeliveryResult.OK
