"""Turns: who may run handlers while several groups are open."""

from __future__ import annotations

import asyncio

import pytest

from consume.bench import Order, body
from postroad.clock import seconds
from postroad.consume import consumer, gears, group
from postroad.consume.turns import Turns
from postroad.events import Subscription
from postroad.signals.catalog import DeliveryResult, HandlerStarted

Placed = Subscription("orders.order.placed", version=1, model=Order)
COUNT = 4 * 32


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_abreast_wait_for_nobody():
    turns = Turns(60)
    for turn in [turns.join(single=False) for _ in range(3)]:
        await turn.wait()


async def test_a_single_one_waits_until_nobody_else_runs():
    turns = Turns(60)
    abreast = [turns.join(single=False) for _ in range(2)]
    singles = [turns.join(single=True) for _ in range(2)]
    waits = [asyncio.create_task(single.wait()) for single in singles]
    await settle()
    abreast[0].end()
    abreast[0].end()
    await settle()
    assert [wait.done() for wait in waits] == [False, False]
    abreast[1].end()
    await settle()
    assert [wait.done() for wait in waits] == [True, False]
    singles[0].end()
    await asyncio.wait_for(waits[1], 5)


async def test_a_turn_is_not_waited_for_beyond_patience():
    turns = Turns(0.01)
    first, second = turns.join(single=True), turns.join(single=True)
    await first.wait()
    await asyncio.wait_for(second.wait(), 5)
    second.end()
    first.end()
    third = turns.join(single=True)
    await asyncio.wait_for(third.wait(), 5)


async def test_who_is_cancelled_while_waiting_keeps_nobody_waiting():
    turns = Turns(60)
    beside, single, next_one = turns.join(single=False), turns.join(single=True), turns.join(single=True)
    waits = [asyncio.create_task(single.wait()), asyncio.create_task(next_one.wait())]
    await settle()
    waits[0].cancel()
    beside.end()
    await asyncio.wait_for(waits[1], 5)


async def test_a_turn_knows_whether_it_came_behind_a_commit():
    turns = Turns(60)
    first, second, third = (turns.join(single=True) for _ in range(3))
    await first.wait()
    first.end()
    await second.wait()
    first.over()
    second.over()
    await third.wait()
    assert [turn.behind for turn in (first, second, third)] == [False, True, False]


async def one_hot_row(here, queue, sql):
    await sql.execute("CREATE TABLE public.hot AS SELECT 0 AS n; GRANT SELECT, UPDATE ON public.hot TO PUBLIC")

    @consumer(Placed, name="billing.orders")
    async def count(event, delivery):
        await delivery.tx.execute("UPDATE public.hot SET n = n + 1")
        await delivery.tx.execute("SELECT pg_sleep(0.001)")

    for number in range(COUNT):
        queue.put(body(f"{number}"))
    async with here.consuming(count, queue.intake(prefetch=COUNT)):
        await here.settled(COUNT, result=DeliveryResult.OK)
    assert await sql.fetchval("SELECT n FROM public.hot") == COUNT
    assert len(here.heard.all(HandlerStarted)) == COUNT


@pytest.fixture
def in_turns(monkeypatch):
    """As after groups have collided, and on a machine that is never busy."""
    for room in (group, gears):
        monkeypatch.setattr(room, "AGE", seconds(60))
    monkeypatch.setattr(group, "STALLED", seconds(60))
    monkeypatch.setattr(gears, "SLOW_ABOVE", seconds(60))
    monkeypatch.setattr(gears, "ABREAST", 1)


async def test_groups_on_one_row_take_turns_and_none_is_rolled_back(here, queue, sql, in_turns):
    await one_hot_row(here, queue, sql)


@pytest.mark.sabotage
async def test_without_turns_they_would_run_into_each_other(here, queue, sql, in_turns, monkeypatch):
    async def at_once(_):
        return False

    monkeypatch.setattr(Turns, "take", at_once)
    with pytest.raises(AssertionError):
        await one_hot_row(here, queue, sql)


async def slow_commits(here, queue, sql):
    """A commit that takes five times as long as a statement may wait for a lock, after the handlers of a group."""
    await sql.execute("""
        CREATE TABLE public.hot AS SELECT 0 AS n;
        GRANT SELECT, UPDATE ON public.hot TO PUBLIC;
        CREATE FUNCTION public.linger() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(0.003); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER linger AFTER UPDATE ON public.hot DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.linger();
    """)

    @consumer(Placed, name="billing.orders")
    async def count(event, delivery):
        await delivery.tx.execute("UPDATE public.hot SET n = n + 1")

    for number in range(COUNT):
        queue.put(body(f"{number}"))
    async with here.consuming(count, queue.intake(prefetch=COUNT)) as attempts:
        await here.settled(COUNT, result=DeliveryResult.OK)
        assert attempts.gears.optimistic
        assert not attempts.gears.overlapping
    assert await sql.fetchval("SELECT n FROM public.hot") == COUNT


async def test_a_slow_commit_costs_the_overlap_and_nothing_else(here, queue, sql, in_turns):
    await slow_commits(here, queue, sql)


@pytest.mark.sabotage
async def test_taken_for_a_failure_it_would_cost_the_trust_in_groups(here, queue, sql, in_turns, monkeypatch):
    monkeypatch.setattr(gears.Gears, "overtook", gears.Gears.failed)
    with pytest.raises(AssertionError):
        await slow_commits(here, queue, sql)
