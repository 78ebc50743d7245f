"""Told to stop: what runs ends, what has not started goes back, nothing is charged; and what breaks in between."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import pytest

from consume.bench import Order, body
from consume.kinds import BOTH, Gate
from postroad.consume import consumer
from postroad.events import Subscription
from postroad.signals.catalog import DeliveryResult, DeliverySettled, TaskFailed, Unacked
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
pytestmark = pytest.mark.parametrize("kind", BOTH, indirect=True)


def holding(*, concurrency=2):
    started, go = [], Gate()

    @consumer(Placed, name="billing.orders", concurrency=concurrency, group=False)
    async def hold(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)
        started.append(event.order)
        await go.wait()

    return hold, started, go


async def test_what_runs_ends_and_is_acked_and_the_rest_goes_back(here, queue, sql):
    hold, started, go = holding()
    intake = queue.intake()
    async with here.consuming(hold, intake):
        for number in range(10):
            queue.put(body(f"{number}"))
        await until(lambda: len(started) == 2)
        here.stop.set()
        await here.settled(8, result=DeliveryResult.GIVEN_BACK)
        assert not here.run.done()
        go.set()
        await asyncio.wait_for(here.run, 5)
    assert sorted(started) == ["0", "1"]
    assert len(queue.acked) == 2
    assert queue.given_back == 8
    assert queue.stale == 0
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 2
    assert await sql.fetchval("SELECT count(*) FROM inbox") == 2


async def test_once_the_grace_period_is_over_what_runs_is_rolled_back_and_goes_back_uncharged(here, queue, sql):
    hold, started, go = holding()
    async with here.consuming(hold, queue.intake()):
        for number in range(3):
            queue.put(body(f"{number}"))
        await until(lambda: len(started) == 2)
        here.stop.set()
        here.run.cancel()
        await asyncio.wait([here.run], timeout=5)
        assert here.run.cancelled()
        here.run = asyncio.create_task(asyncio.sleep(0))
        go.set()
    assert queue.acked == []
    assert queue.given_back == 3
    for table in ("public.effect", "inbox", "work", "quarantine"):
        assert await sql.fetchval(f"SELECT count(*) FROM {table}") == 0
    assert {signal.result for signal in here.heard.all(DeliverySettled)} == {DeliveryResult.GIVEN_BACK}


async def test_what_was_given_back_is_handled_by_the_next_process(here, there, queue, sql):
    hold, _, go = holding()
    go.set()
    async with here.consuming(hold, queue.intake()):
        for number in range(40):
            queue.put(body(f"{number}"))
        await here.settled(3, result=DeliveryResult.OK)
    async with there.consuming(hold, queue.intake()):
        await until(lambda: len(queue.acked) == 40)
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 40
    assert await sql.fetchval("SELECT max(attempt) FROM public.effect") == 1


async def test_a_right_that_is_missing_ends_the_service_and_loses_nothing(here, queue, sql):
    hold, _, go = holding()
    go.set()
    await sql.execute("REVOKE INSERT, UPDATE ON inbox, work, quarantine FROM pr_runtime")
    intake = queue.intake()
    queue.put(body("A1"))
    with pytest.raises((asyncpg.InsufficientPrivilegeError, psycopg.errors.InsufficientPrivilege)):
        async with here.consuming(hold, intake):
            await asyncio.wait([here.run], timeout=10)
    assert queue.acked == []
    assert queue.given_back >= 1
    await sql.execute("GRANT INSERT, UPDATE ON inbox, work, quarantine TO pr_runtime")
    async with here.consuming(hold, queue.intake()):
        await here.settled(1, result=DeliveryResult.OK)


async def test_a_service_can_be_started_again(here, queue, sql):
    hold, _, go = holding()
    go.set()
    async with here.consuming(hold, intake := queue.intake()):
        queue.put(body("A1"))
        await here.settled(1)
        here.run.cancel()
        await asyncio.wait([here.run], timeout=5)
        here.run = asyncio.create_task(here.service.run(here.stop, here.ready))
        queue.put(body("A2"))
        await here.settled(2, result=DeliveryResult.OK)
    assert intake.resumed == 1
    assert here.heard.all(TaskFailed) == []


async def test_acks_of_a_lost_channel_are_stale_and_the_inbox_decides(here, queue, sql):
    hold, started, go = holding()
    intake = queue.intake()
    async with here.consuming(hold, intake):
        queue.put(body("A1"))
        await until(lambda: started == ["A1"])
        intake.drop()  # the broker is gone in mid-item: it delivers again, behind the copy in hand
        go.set()
        await here.settled(1, result=DeliveryResult.OK)
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert queue.stale == 1
    assert len(queue.acked) == 1
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 1


async def test_unacked_deliveries_are_counted(here, queue, sql, monkeypatch):
    monkeypatch.setattr("postroad.consume.service._WATCH_SECONDS", 0.02)
    hold, started, go = holding()
    async with here.consuming(hold, queue.intake()):
        for number in range(5):
            queue.put(body(f"{number}"))
        await here.heard.wait(Unacked, lambda signal: signal.count == 5)
        go.set()
        await here.settled(5)
        here.heard.forget()
        await here.heard.wait(Unacked, lambda signal: signal.count == 0)
    assert sorted(started) == ["0", "1", "2", "3", "4"]
