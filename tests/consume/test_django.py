"""Handlers and jobs in Django's atomic blocks: inbox row and ORM writes in one commit, and nothing of one given up."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from django import VERSION
from django.db import DatabaseError, connection, connections, transaction

from consume.bench import AT_ONCE, Order, OrderPlaced, body
from django_site import Effect, database, databases
from postroad.clock import seconds
from postroad.consume import consumer
from postroad.django import Atomic, Within, blocks, within
from postroad.errors import UsageError
from postroad.events import Subscription
from postroad.retry import Backoff
from postroad.signals.catalog import DeliveryDelayed, DeliveryResult, ThreadsStuck
from postroad.sql import threads
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
pytestmark = pytest.mark.parametrize("kind", ["def"], indirect=True)


AGES = [0, None, "pool"] if VERSION >= (5, 1) else [0, None]


@pytest.fixture(params=AGES, ids="CONN_MAX_AGE {}".format)
def age(request):
    return request.param


@pytest.fixture
async def django(here, runtime_url, age, monkeypatch):
    monkeypatch.setattr(threads, "LET_GO", seconds(0.2))
    pool = {"OPTIONS": {"pool": {"min_size": 0, "max_size": 1}}}  # What is not given back is missed.
    given = pool if age == "pool" else {"CONN_MAX_AGE": age}
    with databases(default=database(runtime_url, **given)):
        yield
        await here.owner.cancel()
        await here.owner.join(within=seconds(10))


KEPT = pytest.mark.parametrize("age", [None], indirect=True)


def add(event, delivery):
    Effect(name=event.order, amount=1, attempt=delivery.attempt).save(force_insert=True)


def consuming(here, queue, url, function, *, size=3):
    own = Atomic().transactions(url, here.owner, size=size, name="billing.orders")
    return here.consuming(function, queue.intake(), transactions=own, retries=True)


async def written(sql):
    rows = await sql.fetch("SELECT name, attempt FROM public.effect ORDER BY name")
    return [(row["name"], row["attempt"]) for row in rows]


async def test_what_the_orm_writes_commits_with_the_inbox_row(here, queue, sql, runtime_url, django):
    seen, after = [], []

    @consumer(Placed, name="billing.orders")
    def bill(event, delivery):
        add(event, delivery)
        delivery.tx.publish(OrderPlaced(order="B1", amount=1))
        within().publish(OrderPlaced(order="B2", amount=1))
        transaction.on_commit(lambda: after.append(Effect.objects.count()))
        seen.append((isinstance(delivery.tx, Within), delivery.tx.connection is connections["default"]))

    async with consuming(here, queue, runtime_url, bill):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    assert seen == [(True, True)]
    assert after == [1]
    assert await written(sql) == [("A1", 1)]
    same = "SELECT count(DISTINCT xmin::text) FROM (SELECT xmin FROM public.effect UNION ALL SELECT xmin FROM inbox) x"
    assert await sql.fetchval(same) == 1
    assert await sql.fetchval("SELECT count(*) FROM event") == 2


def refuses(delivery):
    raise ZeroDivisionError


def caught(delivery):
    with suppress(DatabaseError):
        Effect(name="A1", amount=None, attempt=1).save(force_insert=True)


def closes(delivery):
    connection.close()


def commits_in_raw_text(delivery):
    with connection.cursor() as cursor:
        cursor.execute("/* */ COMMIT")


def rolls_back(delivery):
    transaction.rollback()


def commits_below(delivery):
    connection.connection.commit()


def leaves_a_block_open(delivery):
    transaction.atomic().__enter__()


def marks(delivery):
    transaction.set_rollback(True)


TROUBLE = [refuses, caught, closes, commits_in_raw_text, rolls_back, leaves_a_block_open, marks]


@pytest.mark.parametrize("age", AGES[1:], indirect=True)
@pytest.mark.parametrize("trouble", TROUBLE)
async def test_a_rollback_leaves_neither_inbox_row_nor_write(here, queue, sql, runtime_url, django, trouble):
    await sql.execute("ALTER TABLE public.effect ALTER amount SET NOT NULL")
    before = []

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    def bill(event, delivery):
        before.append(within().connection)
        add(event, delivery)
        within().publish(OrderPlaced(order="B1", amount=1))
        if delivery.attempt == 1:
            trouble(delivery)

    async with consuming(here, queue, runtime_url, bill, size=1):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
        await here.settled(1, result=DeliveryResult.OK)
    assert await written(sql) == [("A1", 2)]
    assert await sql.fetchval("SELECT count(*) FROM event") == 1
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'handled'") == 1


@pytest.mark.sabotage
@KEPT
@pytest.mark.parametrize("trouble", [caught, marks])
async def test_without_the_refusals_what_was_rolled_back_would_be_acked(
    here, queue, sql, runtime_url, django, trouble, monkeypatch
):
    await sql.execute("ALTER TABLE public.effect ALTER amount SET NOT NULL")

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    def bill(event, delivery):
        add(event, delivery)
        trouble(delivery)

    monkeypatch.setattr(blocks._BlockSeat, "commit", lambda seat: seat._leave(None))
    async with consuming(here, queue, runtime_url, bill, size=1):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    assert await written(sql) == []


@KEPT
async def test_a_commit_in_raw_text_is_refused_and_a_savepoint_is_not(here, queue, sql, runtime_url, django):
    codes = []

    @consumer(Placed, name="billing.orders")
    def bill(event, delivery):
        add(event, delivery)
        try:
            commits_in_raw_text(delivery)
        except UsageError as error:
            codes.append(error.code)
        with suppress(ZeroDivisionError), transaction.atomic():
            Effect(name="inner", amount=1, attempt=1).save(force_insert=True)
            raise ZeroDivisionError
        with connection.cursor() as cursor:
            cursor.execute("SELECT 'COMMIT'")

    async with consuming(here, queue, runtime_url, bill):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    assert codes == ["PR111"]
    assert await written(sql) == [("A1", 1)]


@KEPT
async def test_a_hook_that_fails_after_the_commit_changes_nothing(here, queue, sql, runtime_url, django, caplog):
    @consumer(Placed, name="billing.orders", retry=Backoff(attempts=1))
    def bill(event, delivery):
        add(event, delivery)
        transaction.on_commit(lambda: 1 // 0)

    async with consuming(here, queue, runtime_url, bill):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    assert "on_commit" in caplog.text
    assert here.heard.all(DeliveryDelayed) == []
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'handled'") == 1


@pytest.mark.parametrize(("age", "each"), [(0, 3), (None, 1)], indirect=["age"])
async def test_connections_live_as_long_as_djangos_setting_says(here, queue, sql, runtime_url, django, age, each):
    seen = []

    @consumer(Placed, name="billing.orders")
    def bill(event, delivery):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            seen.append(cursor.fetchone()[0])

    async with consuming(here, queue, runtime_url, bill, size=1):
        for number in range(3):
            queue.put(body(f"{number}"))
            await here.settled(number + 1, result=DeliveryResult.OK)
        if each == 3:
            gone = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1::int[])"
            assert await sql.fetchval(gone, seen[:2]) == 0
    assert len(set(seen)) == each


@KEPT
async def test_a_connection_that_broke_between_two_deliveries_costs_at_most_one_attempt(
    here, queue, sql, runtime_url, django
):
    pids = []

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    def bill(event, delivery):
        pids.append(connection.connection.info.backend_pid)
        add(event, delivery)

    async with consuming(here, queue, runtime_url, bill, size=1):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
        await sql.execute("SELECT pg_terminate_backend($1)", pids[0])
        queue.put(body("A2"))
        await here.settled(2, result=DeliveryResult.OK)
    assert [name for name, _ in await written(sql)] == ["A1", "A2"]


class Endless:
    """A handler that writes, does not come back until it is let, and then goes on."""

    def __init__(self):
        self.go = threading.Event()
        self.late = []

        @consumer(
            Placed, name="billing.orders", max_runtime=seconds(1), retry=Backoff(first=seconds(60), most=seconds(60))
        )
        def endless(event, delivery):
            add(event, delivery)
            if event.order == "A1":
                self.go.wait()
                with suppress(DatabaseError):
                    Effect(name="late", amount=1, attempt=1).save(force_insert=True)
            self.late.append(event.order)

        self.handler = endless


async def overdue(here, queue, sql, url):
    endless = Endless()
    async with consuming(here, queue, url, endless.handler, size=1):
        queue.put(body("A1"))
        await here.heard.wait(ThreadsStuck, lambda stuck: stuck.count == 1)
        await here.settled(1, result=DeliveryResult.RETRY)
        endless.go.set()
        await here.heard.wait(ThreadsStuck, lambda stuck: stuck.count == 0)
        queue.put(body("B1"))  # The same thread, with another connection.
        await here.settled(1, result=DeliveryResult.OK)
    assert endless.late[-1] == "B1"


@pytest.mark.parametrize("age", AGES[1:], indirect=True)
async def test_at_the_time_limit_the_connection_is_cut_and_the_thread_goes_on_with_another(
    here, queue, sql, runtime_url, django
):
    await overdue(here, queue, sql, runtime_url)
    assert await written(sql) == [("B1", 1)]


@pytest.mark.sabotage
@KEPT
async def test_without_the_cut_a_late_write_would_be_committed(here, queue, sql, runtime_url, django, monkeypatch):
    plain = threads.drive_sync

    def drive_and_commit(pipeline, hand):
        value = plain(pipeline, hand)
        hand.connection.commit()
        return value

    monkeypatch.setattr(threads, "drive_sync", drive_and_commit)
    monkeypatch.setattr(blocks._BlockSeat, "cut", lambda _: None)
    endless = Endless()
    async with consuming(here, queue, runtime_url, endless.handler, size=1):
        queue.put(body("A1"))
        await here.heard.wait(ThreadsStuck, lambda stuck: stuck.count == 1)
        endless.go.set()
        await here.heard.wait(ThreadsStuck, lambda stuck: stuck.count == 0)
        await until(lambda: "A1" in endless.late)
    assert ("late", 1) in await written(sql)


@KEPT
async def test_a_lease_that_is_lost_cuts_the_connection(here, queue, sql, runtime_url, django):
    attempts, inside = [], threading.Event()

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    def bill(event, delivery):
        attempts.append(delivery.attempt)
        with delivery.lease_sync("invoices", ttl=seconds(3), wait=seconds(20)):
            add(event, delivery)
            if len(attempts) == 1:
                inside.set()
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_sleep(60)")

    async with here.leasing(), consuming(here, queue, runtime_url, bill, size=1):
        queue.put(body("A1"))
        await until(inside.is_set)
        await sql.execute("UPDATE lease SET token = token + 1, holder = NULL, expires_at = clock_timestamp()")
        await here.settled(1, result=DeliveryResult.OK)
    assert attempts == [1, 1]
    assert await written(sql) == [("A1", 1)]


async def test_forms_that_do_not_fit_are_one_line(here, runtime_url):
    with pytest.raises(UsageError, match=r"`async def` function cannot have transactions of threads.*PR101"):

        @consumer(Placed, name="billing.orders", on=Atomic())
        async def bill(event, delivery): ...

    with databases(default=database(runtime_url)), pytest.raises(UsageError, match="PR107"):
        Atomic(using="nowhere").transactions(runtime_url, here.owner, size=1, name="x")
