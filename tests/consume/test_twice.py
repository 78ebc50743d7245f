"""Once in effect: duplicates, one after the other and at once, in one process and in two."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from consume.bench import Order, body, process
from consume.kinds import BOTH, Gate
from postroad.clock import SYSTEM_CLOCK
from postroad.consume import consumer, inbox
from postroad.consume.inbox import Claim
from postroad.events import Subscription
from postroad.signals.catalog import DeliveryResult, DeliverySettled, HandlerStarted
from postroad.sql.statement import Statement
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
pytestmark = pytest.mark.parametrize("kind", BOTH, indirect=True)


@consumer(Placed, name="billing.orders")
async def bill(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, $2, $3)", event.order, 1, delivery.attempt)


async def effects(sql):
    return await sql.fetchval("SELECT count(*) FROM public.effect")


async def copies_one_after_the_other(here, queue, sql, *, copies=3):
    twin = body("A1")
    async with here.consuming(bill, queue.intake()):
        for number in range(copies):
            queue.put(twin)
            await here.settled(number + 1)
    return await effects(sql)


async def test_copies_that_come_later_are_duplicates(here, queue, sql):
    assert await copies_one_after_the_other(here, queue, sql) == 1
    assert len(here.heard.all(HandlerStarted)) == 1
    results = [signal.result for signal in here.heard.all(DeliverySettled)]
    assert results == [DeliveryResult.OK, DeliveryResult.DUPLICATE, DeliveryResult.DUPLICATE]


def forgetful(monkeypatch):
    def claim(*_, **__):
        return Claim.FRESH
        yield

    def claim_many(_schema, _consumer, keys, **__):
        return dict.fromkeys(keys, Claim.FRESH)
        yield

    monkeypatch.setattr(inbox, "claim", claim)
    monkeypatch.setattr(inbox, "claim_many", claim_many)


@pytest.mark.sabotage
async def test_without_the_inbox_an_event_takes_effect_twice(here, queue, sql, monkeypatch):
    forgetful(monkeypatch)
    assert await copies_one_after_the_other(here, queue, sql) == 3


async def test_a_copy_of_what_is_in_hand_waits_for_its_outcome(here, queue, sql):
    started, go, running = Gate(), Gate(), []

    @consumer(Placed, name="billing.orders")
    async def hold(event, delivery):
        running.append(delivery.id)
        started.set()
        await go.wait()
        await delivery.tx.execute("INSERT INTO public.effect VALUES ('x', 1, 1)")

    twin = body("A1")
    async with here.consuming(hold, queue.intake()):
        for _ in range(5):
            queue.put(twin)
        await started.wait()
        queue.put(body("B2"))  # an unrelated event is not held up
        await until(lambda: len(running) == 2)
        go.set()
        await here.settled(6)
    assert await effects(sql) == 2
    assert len(here.heard.all(HandlerStarted)) == 2


async def test_events_of_one_key_never_run_at_once_and_keep_their_order(here, queue, sql):
    seen, running = [], set()

    @consumer(Placed, name="billing.orders")
    async def one_by_one(event, delivery):
        assert delivery.key not in running
        running.add(delivery.key)
        await delivery.tx.execute("SELECT pg_sleep(0.005)")
        running.remove(delivery.key)
        seen.append((delivery.key, event.amount))

    async with here.consuming(one_by_one, queue.intake()):
        for number in range(30):
            queue.put(body(amount=number, key=f"key-{number % 3}"))
        await here.settled(30, result=DeliveryResult.OK)
    for key in range(3):
        mine = [amount for name, amount in seen if name == f"key-{key}"]
        assert mine == sorted(mine)


async def both_at_once(here, there, queue, sql):
    """The same deliveries in two processes at the same moment, in opposite order, as after a reconnect."""
    at_work = {"now": 0}

    @consumer(Placed, name="billing.orders")
    async def slow(event, delivery):
        at_work["now"] += 1
        await delivery.tx.execute("SELECT pg_sleep(0.02)")
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)

    twins = [body(f"{number}") for number in range(20)]
    other = type(queue)()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(here.consuming(slow, queue.intake()))
        await stack.enter_async_context(there.consuming(slow, other.intake()))
        for one, two in zip(twins, reversed(twins), strict=True):
            queue.put(one)
            other.put(two)
        await asyncio.gather(here.settled(20), there.settled(20))
    results = [signal.result for each in (here, there) for signal in each.heard.all(DeliverySettled)]
    return await effects(sql), results


async def test_two_processes_at_once_have_one_effect_and_charge_nothing(here, there, queue, sql):
    count, results = await both_at_once(here, there, queue, sql)
    assert count == 20
    assert sorted(results) == [DeliveryResult.DUPLICATE] * 20 + [DeliveryResult.OK] * 20
    assert await sql.fetchval("SELECT count(*) FROM work") == 0


@pytest.mark.sabotage
async def test_without_the_inbox_two_processes_have_two_effects(here, there, queue, sql, monkeypatch):
    forgetful(monkeypatch)
    count, _ = await both_at_once(here, there, queue, sql)
    assert count == 40


async def test_what_another_process_holds_open_costs_no_slot(here, queue, sql, database):
    twin, key = body("A1", identity=(held := SYSTEM_CLOCK.new_id())), held

    @consumer(Placed, name="billing.orders", concurrency=1)
    async def one(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)

    elsewhere = await asyncpg.connect(database)
    await elsewhere.execute("BEGIN")
    await elsewhere.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"billing.orders:{key}")
    async with here.consuming(one, queue.intake()):
        queue.put(twin)
        queue.put(body("B2"))
        await here.settled(1, result=DeliveryResult.OK)
        assert await sql.fetchval("SELECT string_agg(name, ',') FROM public.effect") == "B2"
        await elsewhere.close()  # It ends without having handled it: now it is ours.
        await here.settled(2, result=DeliveryResult.OK)
    assert await effects(sql) == 2
    assert queue.given_back == 0


async def test_a_commit_is_durable_whatever_the_role_says(queue, sql, runtime_url, kind):
    seen = []

    @consumer(Placed, name="billing.orders")
    async def look(event, delivery):
        seen.append(await delivery.tx.fetchval("SHOW synchronous_commit"))

    mark = "&" if "?" in runtime_url else "?"
    async with process(f"{runtime_url}{mark}options=-csynchronous_commit%3Doff", kind=kind) as careless:
        assert await _setting(careless) == "off"
        async with careless.consuming(look, queue.intake()):
            queue.put(body())
            await careless.settled()
    assert seen == ["on"]


async def _setting(careless):
    (row,) = await careless.manager.fetch(Statement("SHOW synchronous_commit"))
    return row["synchronous_commit"]
