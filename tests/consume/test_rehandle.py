"""What a consumer has handled it ignores when it is replayed; what its owner lets run again runs once more, once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from consume.bench import AT_ONCE, Order, OrderPlaced
from postroad.clock import SYSTEM_CLOCK
from postroad.consume import consumer, rehandle
from postroad.errors import UsageError
from postroad.events import Subscription
from postroad.events.envelope import encode
from postroad.events.event_type import event_type_of
from postroad.runtime import replay_acts
from postroad.runtime.operations import database_settings
from postroad.runtime.upkeep import Upkeep
from postroad.signals.catalog import DeliveryQuarantined, DeliveryRehandled, DeliveryResult

Placed = Subscription("orders.order.placed", version=1, model=Order)
NOW = datetime.now(UTC)


@consumer(Placed, name="billing.orders", retry=AT_ONCE)
async def bill(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)


@consumer(Placed, name="billing.latest", order="latest", retry=AT_ONCE)
async def latest(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, $2, 1)", event.order, delivery.sequence)


def an_order(order="A1", *, days_ago=0.0, **given) -> bytes:
    at = NOW - timedelta(days=days_ago)
    return encode(
        event_type_of(OrderPlaced), OrderPlaced(order=order, amount=1), id=SYSTEM_CLOCK.new_id(), occurred=at,
        recorded=at, correlation="story", **given,
    )  # fmt: skip


def of(replay: UUID) -> dict[str, object]:
    """How a replay's delivery comes."""
    return {
        "headers": {"postroad-replay": str(replay)}, "exchange": "orders.replay", "routing_key": "billing.orders"
    }  # fmt: skip


@pytest.fixture
def replay() -> UUID:
    return SYSTEM_CLOCK.new_id()


@pytest.fixture
def allow(runtime_url):
    """The owner's act."""

    async def allowed(replay, name="billing.orders"):
        settings = database_settings({"POSTROAD_DATABASE_URL": runtime_url})
        return await replay_acts.rehandle(settings, str(replay), consumer=name, by="ada", reason="rebuilt")

    return allowed


async def names(sql):
    return [row["name"] for row in await sql.fetch("SELECT name FROM public.effect")]


async def test_a_replay_of_what_was_handled_is_ignored(here, queue, sql, replay):
    event = an_order()
    async with here.consuming(bill, queue.intake()):
        queue.put(event)
        await here.settled(1, result=DeliveryResult.OK)
        queue.put(event, **of(replay))
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert await names(sql) == ["A1"]


async def rehandled_twice(here, queue, allow, replay):
    """Handled, let run again, and delivered twice for that."""
    event = an_order()
    async with here.consuming(bill, queue.intake()):
        queue.put(event)
        await here.settled(1, result=DeliveryResult.OK)
        await allow(replay)
        queue.put(event, **of(replay))
        await here.settled(2, result=DeliveryResult.OK)
        queue.put(event, **of(replay), redelivered=True)
        queue.put(event)
        await here.settled(4)


async def test_what_its_owner_lets_run_again_runs_once_more_and_once(here, queue, sql, allow, replay):
    await rehandled_twice(here, queue, allow, replay)
    assert await names(sql) == ["A1", "A1"]
    assert len(here.heard.all(DeliveryRehandled)) == 1
    (act,) = await sql.fetch("SELECT by, act, subject, reason, after FROM audit")
    assert tuple(act)[:4] == ("ada", "replay.rehandle", "billing.orders", "rebuilt")
    assert str(replay) in act["after"]


@pytest.mark.sabotage
async def test_without_the_time_at_which_it_was_said_each_copy_runs(here, queue, sql, allow, replay, monkeypatch):
    text = rehandle.QUERIES.text("begin", "postroad")
    timeless = text.replace("inbox.at < locked.at", "true")
    assert timeless != text
    monkeypatch.setitem(rehandle.QUERIES._rendered, ("begin", "postroad"), timeless)
    await rehandled_twice(here, queue, allow, replay)
    assert len(await names(sql)) > 2


async def test_only_the_replay_that_was_named_runs_again(here, queue, sql, allow, replay):
    event = an_order()
    async with here.consuming(bill, queue.intake()):
        queue.put(event)
        await here.settled(1)
        await allow(replay)
        queue.put(event, **of(SYSTEM_CLOCK.new_id()))
        queue.put(event, headers={"postroad-replay": "no id"})
        await here.settled(2, result=DeliveryResult.DUPLICATE)
    assert await names(sql) == ["A1"]


async def test_killed_before_the_handler_it_runs_when_it_is_delivered_again(here, queue, sql, allow, replay):
    event = an_order()
    key = UUID(event.partition(b'"id":"')[2][:36].decode())
    async with here.consuming(bill, queue.intake()):
        queue.put(event)
        await here.settled(1, result=DeliveryResult.OK)
        await allow(replay)
        await here.manager.run(rehandle.begin("postroad", "billing.orders", key, replay=replay, key=None))
        queue.put(event, **of(replay), redelivered=True)  # by whoever has died since
        await here.settled(2, result=DeliveryResult.OK)
    assert await names(sql) == ["A1", "A1"]


async def test_the_guard_of_a_key_is_set_back_once_so_that_what_is_newer_keeps_its_place(
    here, queue, sql, allow, replay
):
    first, second = (an_order("k", key="k", sequence=number) for number in (1, 2))
    async with here.consuming(latest, queue.intake()):
        queue.put(first)
        queue.put(second)
        await here.settled(2)
        await allow(replay, "billing.latest")
        queue.put(first, **of(replay))
        await here.settled(3)
        queue.put(an_order("k", key="k", sequence=3))  # live, between the two
        await here.settled(4)
        queue.put(second, **of(replay))
        await here.settled(5)
    rows = await sql.fetch("SELECT amount FROM public.effect ORDER BY ctid")
    assert [row["amount"] for row in rows] == [1, 2, 1, 3]
    assert await sql.fetchval("SELECT sequence FROM order_guard") == 3


async def test_what_is_handled_after_the_word_counts_whichever_way_it_comes(here, queue, sql, allow, replay):
    """The live copy that waited while a projection was emptied runs; its replay is a duplicate."""
    event = an_order()
    await sql.execute("INSERT INTO inbox VALUES ('billing.orders', gen_random_uuid(), 'handled')")
    await allow(replay)
    async with here.consuming(bill, queue.intake()):
        queue.put(event)
        await here.settled(1, result=DeliveryResult.OK)
        queue.put(event, **of(replay))
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert await names(sql) == ["A1"]


async def test_what_an_open_row_owns_is_left_to_it(here, queue, sql, allow, replay):
    event = an_order()
    async with here.consuming(bill, queue.intake()):
        queue.put(event)
        await here.settled(1, result=DeliveryResult.OK)
        await sql.execute("UPDATE inbox SET outcome = 'quarantined'")
        await allow(replay)
        queue.put(event, **of(replay))
        await here.settled(1, result=DeliveryResult.DUPLICATE)


# --- past the window ----------------------------------------------------------------------------------------------


async def old_event(here, queue, sql, replay, *, allowed=None):
    """A replay of an event of 40 days ago, at a consumer that remembers 35; whether it ran."""
    await sql.execute("INSERT INTO inbox_mark VALUES ('billing.orders', now() - interval '30 days')")
    if allowed is not None:
        await allowed(replay)
    async with here.consuming(bill, queue.intake()):
        queue.put(an_order(days_ago=40), **of(replay))
        await here.settled(1)
    return await names(sql)


async def test_what_is_past_the_window_is_quarantined_as_any_delivery_is(here, queue, sql, replay):
    assert await old_event(here, queue, sql, replay) == []
    assert [told.code for told in here.heard.all(DeliveryQuarantined)] == ["PR510"]


async def test_what_its_owner_lets_run_again_runs_whatever_its_age(here, queue, sql, allow, replay):
    assert await old_event(here, queue, sql, replay, allowed=allow) == ["A1"]


async def test_once_marks_of_that_time_expire_the_word_counts_no_more(here, queue, sql, allow, replay):
    async def long_ago(replay):
        await allow(replay)
        await sql.execute("UPDATE rehandle SET at = now() - interval '31 days'")

    assert await old_event(here, queue, sql, replay, allowed=long_ago) == []


async def test_what_was_let_run_again_is_forgotten_with_the_marks(here, queue, sql, allow, replay, runtime_url):
    await rehandled_twice(here, queue, allow, replay)
    await sql.execute("UPDATE rehandle SET at = now() - interval '36 days'")
    async with here.manager.connection() as connection:
        await Upkeep(connection, "postroad", now=NOW, remember=timedelta(days=35)).round(marks=False)
    assert await sql.fetchval("SELECT count(*) FROM rehandle") == 0


async def test_a_database_that_does_not_know_the_consumer_is_the_wrong_one(allow, replay, sql):
    with pytest.raises(UsageError, match=r"no mark of consumer 'billing.orders'.*PR115"):
        await allow(replay)
