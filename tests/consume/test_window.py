"""What an inbox no longer remembers is never run again: marks expire behind a low-water mark."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from consume.bench import AT_ONCE, Order, OrderPlaced
from postroad.clock import SYSTEM_CLOCK
from postroad.consume import consumer, inbox
from postroad.errors import UsageError
from postroad.events import Subscription
from postroad.events.envelope import encode
from postroad.events.event_type import event_type_of
from postroad.failures import Quarantine, Retry
from postroad.runtime.operations import database_settings, retry
from postroad.runtime.upkeep import Upkeep
from postroad.signals.catalog import DeliveryQuarantined, DeliveryResult, DeliverySettled, HandlerStarted

Placed = Subscription("orders.order.placed", version=1, model=Order)
NOW = datetime.now(UTC)
WINDOW = timedelta(days=35)


@consumer(Placed, name="billing.orders", retry=AT_ONCE)
async def bill(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)


def recorded(days_ago: float, order: str = "A1") -> bytes:
    """An event that was staged so many days ago."""
    at = NOW - timedelta(days=days_ago)
    return encode(
        event_type_of(OrderPlaced), OrderPlaced(order=order, amount=1), id=SYSTEM_CLOCK.new_id(), occurred=at,
        recorded=at, correlation="story",
    )  # fmt: skip


async def aged(sql, days_ago: float) -> None:
    """As if all marks had been set so many days ago."""
    await sql.execute("UPDATE inbox SET at = $1", NOW - timedelta(days=days_ago))


async def expire(runtime_url, **given):
    connection = await asyncpg.connect(runtime_url)
    try:
        return await Upkeep(connection, "postroad", now=NOW, remember=WINDOW).round(**given)
    finally:
        await connection.close()


async def effects(sql):
    return await sql.fetchval("SELECT count(*) FROM public.effect")


async def handled_expired_and_delivered_again(here, queue, sql, runtime_url):
    twin = recorded(40)
    async with here.consuming(bill, queue.intake()):
        queue.put(twin)
        await here.settled(1, result=DeliveryResult.OK)
        await aged(sql, 40)
        done = await expire(runtime_url)
        queue.put(twin)
        await here.settled(2)
    assert done.marks == 1
    return await effects(sql)


async def test_a_redelivery_whose_mark_has_expired_is_quarantined_and_never_run(here, queue, sql, runtime_url):
    assert await handled_expired_and_delivered_again(here, queue, sql, runtime_url) == 1
    assert len(here.heard.all(HandlerStarted)) == 1
    (told,) = here.heard.all(DeliveryQuarantined)
    assert told.code == "PR510"
    assert "past window" in told.reason
    assert await sql.fetch("SELECT outcome FROM inbox") == [("quarantined",)]
    assert await sql.fetchval("SELECT code FROM quarantine WHERE resolved_at IS NULL") == "PR510"
    assert len(queue.acked) == 2


@pytest.mark.sabotage
async def test_without_the_low_water_mark_an_old_redelivery_runs_twice(here, queue, sql, runtime_url, monkeypatch):
    def forgetful(*_):
        return False
        yield

    monkeypatch.setattr(inbox, "is_past", forgetful)
    assert await handled_expired_and_delivered_again(here, queue, sql, runtime_url) == 2


async def test_what_is_old_and_was_never_seen_runs_where_no_mark_of_its_time_has_expired(here, queue, sql, runtime_url):
    async with here.consuming(bill, queue.intake()):
        queue.put(recorded(50))
        await here.settled(1, result=DeliveryResult.OK)
        await aged(sql, 50)
        await expire(runtime_url)
        queue.put(recorded(49, "B2"))  # it lay in the queue since: younger than all that was forgotten
        await here.settled(2, result=DeliveryResult.OK)
        queue.put(recorded(50 - 0.5 / 24, "C3"))  # within what clocks may differ
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    assert await effects(sql) == 2


async def test_another_consumers_low_water_mark_does_not_count(here, queue, sql, runtime_url):
    await sql.execute("INSERT INTO inbox_mark VALUES ('somebody.else', now())")
    async with here.consuming(bill, queue.intake()):
        queue.put(recorded(40))
        await here.settled(1, result=DeliveryResult.OK)


async def test_a_fresh_delivery_costs_no_look_at_the_low_water_mark(here, queue, sql, monkeypatch):
    def refused(*_):
        raise AssertionError
        yield

    monkeypatch.setattr(inbox, "is_past", refused)
    async with here.consuming(bill, queue.intake()):
        queue.put(recorded(0.9))
        await here.settled(1, result=DeliveryResult.OK)


async def test_marks_of_open_rows_never_expire_and_the_low_water_mark_only_rises(here, queue, sql, runtime_url):
    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def fail(event, _):
        raise (Quarantine("no") if event.order == "K" else Retry(after=timedelta(hours=1)))

    async with here.consuming(fail, queue.intake()):
        queue.put(recorded(40, "K"))
        queue.put(recorded(40, "D"))
        await here.settled(2)
    async with here.consuming(bill, queue.intake()):
        queue.put(recorded(40, "H"))
        await here.settled(1, result=DeliveryResult.OK)
    await aged(sql, 40)
    low = NOW - timedelta(days=1)
    await sql.execute("INSERT INTO inbox_mark VALUES ('billing.orders', $1)", low)
    assert (await expire(runtime_url)).marks == 1
    assert {row["outcome"] for row in await sql.fetch("SELECT outcome FROM inbox")} == {"quarantined", "delayed"}
    assert await sql.fetchval("SELECT low_water FROM inbox_mark") == low
    await sql.execute("UPDATE quarantine SET resolved_at = now(); DELETE FROM work")
    assert (await expire(runtime_url)).marks == 2


async def open_for_longer_than_marks_last(here, queue, sql, runtime_url, error) -> list[str]:
    """A row of `work` or `quarantine`, 40 days old, that is retried or released in the end; how its copies ended.

    Others' marks of its time have expired, so that the low-water mark is far above it.
    """

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def fail(event, delivery):
        raise error

    twin = recorded(40)
    async with here.consuming(fail, queue.intake()):
        queue.put(twin)
        await here.settled(1)
    await aged(sql, 40)
    await sql.execute("INSERT INTO inbox_mark VALUES ('billing.orders', $1)", NOW - timedelta(days=1))
    await expire(runtime_url)
    here.heard.forget()
    async with here.consuming(bill, queue.intake()):
        queue.put(twin)
        await here.settled(1)
    settings = database_settings({"POSTROAD_DATABASE_URL": runtime_url})
    for row in await sql.fetch("SELECT id FROM quarantine WHERE resolved_at IS NULL"):
        with suppress(UsageError):
            await retry(settings, row["id"], by="ada")
    await aged(sql, 40)
    await expire(runtime_url)  # Now its row of `work` alone says that its mark is needed.
    await sql.execute("UPDATE work SET state = 'ready', run_at = now()")
    async with here.consuming(bill, queue.intake(), retries=True):
        await here.settled(2)
        queue.put(twin)
        await here.settled(3)
    return [str(signal.result) for signal in here.heard.all(DeliverySettled)]


OPEN = pytest.mark.parametrize("error", [Retry(after=timedelta(hours=1)), Quarantine("no")], ids=["retry", "release"])


@OPEN
async def test_what_is_open_for_longer_than_marks_last_is_run_once_and_its_copies_never(
    here, queue, sql, runtime_url, error
):
    ends = await open_for_longer_than_marks_last(here, queue, sql, runtime_url, error)
    assert ends == ["duplicate", "ok", "duplicate"]
    assert await effects(sql) == 1
    assert await sql.fetchval("SELECT count(*) FROM quarantine WHERE resolved_at IS NULL") == 0


@pytest.mark.sabotage
@OPEN
async def test_did_marks_of_open_rows_expire_a_copy_would_be_taken_for_a_stranger(
    here, queue, sql, runtime_url, error, monkeypatch
):
    kept = inbox.QUERIES.text("expire", "postroad")
    start, end = kept.index("AND NOT EXISTS"), kept.index("LIMIT $4")
    monkeypatch.setitem(inbox.QUERIES._rendered, ("expire", "postroad"), kept[:start] + kept[end:])
    ends = await open_for_longer_than_marks_last(here, queue, sql, runtime_url, error)
    assert ends[0] == "quarantine"


async def test_marks_within_the_window_stay_and_many_leave_in_batches_over_many_pages(sql, runtime_url, monkeypatch):
    monkeypatch.setattr(inbox, "_BATCH", 700)
    monkeypatch.setattr("postroad.work.retention.BATCH", 700)
    monkeypatch.setattr("postroad.runtime.upkeep._PAGES", 10)
    await sql.execute(
        "INSERT INTO inbox (consumer, message_key, outcome, at) SELECT 'c' || n % 3, gen_random_uuid(), 'handled',"
        " $1::timestamptz - n % 50 * interval '1 day' FROM generate_series(0, 9999) n",
        NOW,
    )
    done = await expire(runtime_url)
    assert done.marks == 10_000 // 50 * 14, "those of 36 to 49 days; 35 days to the moment are within"
    assert await sql.fetchval("SELECT min(at) FROM inbox") == NOW - WINDOW
    lows = await sql.fetch("SELECT consumer, low_water FROM inbox_mark ORDER BY consumer")
    at = NOW - timedelta(days=36) + inbox.SKEW
    assert [tuple(row) for row in lows] == [(f"c{number}", at) for number in range(3)]
    assert (await expire(runtime_url, marks=False)).marks_before is None


async def test_an_expiry_between_the_look_and_the_mark_of_a_redelivery_is_seen(here, queue, sql, runtime_url, database):
    """The expiry's transaction is open while the redelivery claims: it waits, and then knows the low-water mark."""
    twin = recorded(40)
    expiring = await asyncpg.connect(database)
    async with here.consuming(bill, queue.intake()):
        queue.put(twin)
        await here.settled(1, result=DeliveryResult.OK)
        await aged(sql, 40)
        transaction = expiring.transaction()
        await transaction.start()
        await expiring.fetch(inbox.QUERIES.text("expire", "postroad"), 0, 10, NOW - WINDOW, 100, timedelta(hours=1))
        queue.put(twin)
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        async with asyncio.timeout(20):
            while not await sql.fetchval(waiting) and len(queue.acked) < 2:
                pass
        await transaction.commit()
        await here.settled(2)
    await expiring.close()
    assert await effects(sql) == 1
    assert await sql.fetchval("SELECT code FROM quarantine") == "PR510"
