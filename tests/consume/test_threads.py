"""What is peculiar to `def` handlers: threads that cannot be stopped, and the connection that they are handed."""

from __future__ import annotations

import json
import threading
import time

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from consume.bench import AT_ONCE, Order, OrderPlaced, body
from postroad.clock import seconds
from postroad.consume import consumer
from postroad.errors import UsageError
from postroad.events import Subscription
from postroad.events.cause import current_cause
from postroad.psycopg import within
from postroad.retry import Backoff
from postroad.signals.catalog import DeliveryResult, HandlerStarted, IntakePaused, TaskFailed, ThreadsStuck
from postroad.sql import threaded, threads
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
EFFECT = "INSERT INTO public.effect VALUES (%s, %s, %s)"
pytestmark = pytest.mark.parametrize("kind", ["def"], indirect=True)


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(threads, "LET_GO", seconds(0.2))


async def effects(sql):
    return await sql.fetchval("SELECT count(*) FROM public.effect")


async def test_a_plain_function_runs_on_a_thread_with_a_psycopg_connection(here, queue, sql):
    seen = []

    @consumer(Placed, name="billing.orders")
    def bill(event, delivery):
        seen.append((threading.current_thread().name, isinstance(delivery.tx, psycopg.Connection), current_cause()))
        delivery.tx.execute(EFFECT, (event.order, 1, delivery.attempt))
        within(delivery.tx).publish(OrderPlaced(order="B1", amount=1))

    async with here.consuming(bill, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    ((thread, is_psycopg, origin),) = seen
    assert thread.startswith("postroad:threads:billing.orders-")
    assert is_psycopg
    assert await effects(sql) == 1
    assert await sql.fetch("SELECT correlation, causation FROM event") == [(origin.correlation, origin.causation)]


async def test_slots_are_threads_and_not_more(here, queue, sql):
    running, most, lock, full = [0], [0], threading.Lock(), threading.Event()

    @consumer(Placed, name="billing.orders", concurrency=3)
    def count(event, delivery):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] == 3:
                full.set()
        assert full.wait(10)
        with lock:
            running[0] -= 1

    async with here.consuming(count, queue.intake()):
        for number in range(12):
            queue.put(body(f"{number}"))
        await here.settled(12, result=DeliveryResult.OK)
    assert most == [3]


class Endless:
    """A handler that writes, does not come back until it is let, and then goes on to its commit."""

    def __init__(self, **options):
        self.go = threading.Event()
        self.late = []
        options = {"max_runtime": seconds(0.3), "retry": Backoff(first=seconds(60), most=seconds(60)), **options}

        @consumer(Placed, name="billing.orders", **options)
        def endless(event, delivery):
            delivery.tx.execute(EFFECT, (event.order, 1, delivery.attempt))
            if event.order == "A1":
                self.go.wait()
            self.late.append(event.order)

        self.handler = endless


async def overdue(here, queue, sql):
    endless = Endless()
    async with here.consuming(endless.handler, queue.intake()):
        queue.put(body("A1"))
        await here.heard.wait(ThreadsStuck, lambda stuck: stuck.count == 1)
        (stuck,) = here.heard.all(TaskFailed)
        assert (stuck.task, stuck.error_type) == ("threads:billing.orders-0", "Stuck")
        await here.settled(1, result=DeliveryResult.RETRY)
        for number in range(20):  # the others go on
            queue.put(body(f"B{number}"))
        await here.settled(20, result=DeliveryResult.OK)
        endless.go.set()
        await here.heard.wait(ThreadsStuck, lambda stuck: stuck.count == 0)
    assert "A1" in endless.late
    assert len(here.heard.all(HandlerStarted)) == 21
    return [row["name"] for row in await sql.fetch("SELECT name FROM public.effect WHERE name = 'A1'")]


async def test_a_thread_that_does_not_return_is_reported_and_its_late_commit_is_fenced(here, queue, sql):
    assert await overdue(here, queue, sql) == []
    history = json.loads(await sql.fetchval("SELECT history FROM work"))
    assert [entry["code"] for entry in history] == ["PR506"]
    assert await sql.fetchval("SELECT outcome FROM inbox ORDER BY at DESC LIMIT 1") is not None
    assert here.heard.all(IntakePaused) == []


@pytest.mark.sabotage
async def test_without_the_cut_a_late_effect_would_be_committed(here, queue, sql, monkeypatch):
    """The thread ends its pipeline on a connection that still works: whoever commits it, commits the effect."""

    def drive_and_commit(pipeline, hand):
        value = drive_sync(pipeline, hand)
        hand.connection.end(commit=True)
        hand.connection.pgconn.exec_(b"BEGIN")
        return value

    drive_sync = threads.drive_sync
    monkeypatch.setattr(threads, "drive_sync", drive_and_commit)
    endless = Endless()
    async with here.consuming(endless.handler, queue.intake()):
        queue.put(body("A1"))
        await here.heard.wait(ThreadsStuck)
        endless.go.set()
        await here.settled(1, result=DeliveryResult.RETRY)
        await here.heard.wait(ThreadsStuck, lambda stuck: stuck.count == 0)
    assert await effects(sql) == 0  # cut: even a thread that commits by itself changes nothing

    monkeypatch.setattr(threaded.PsycopgSeat, "cut", lambda _: None)
    here.heard.forget()
    endless = Endless()
    async with here.consuming(endless.handler, queue.intake()):
        queue.put(body("A1"))
        await here.heard.wait(ThreadsStuck)
        endless.go.set()
        await here.settled(1, result=DeliveryResult.DUPLICATE)  # the late commit came first
    assert await effects(sql) == 1


async def test_a_statement_that_does_not_end_is_ended_on_the_server_too(here, queue, sql):
    @consumer(Placed, name="billing.orders", max_runtime=seconds(0.2), retry=Backoff(first=seconds(60)))
    def sleepy(event, delivery):
        delivery.tx.execute("SELECT pg_sleep(60)")

    async with here.consuming(sleepy, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
    assert await sql.fetchval(sleeping) == 0
    assert here.heard.all(ThreadsStuck) == []


async def test_when_every_thread_is_stuck_nothing_more_starts_and_nothing_is_lost(here, queue, sql):
    endless = Endless(concurrency=1)
    async with here.consuming(endless.handler, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)  # its custody needs no thread of the handlers
        queue.put(body("B1"))
        here.stop.set()
        here.run.cancel()
        await here.settled(1, result=DeliveryResult.GIVEN_BACK)
        endless.go.set()
    assert len(here.heard.all(HandlerStarted)) == 1
    assert await effects(sql) == 0


async def test_a_lost_lease_cuts_the_connection_at_once(here, queue, sql):
    """As the claimer does it: the task is cancelled while the thread runs."""
    started, go = threading.Event(), threading.Event()

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    def fail_once(event, delivery):
        if delivery.attempt == 1:
            raise ConnectionResetError
        delivery.tx.execute(EFFECT, (event.order, 1, delivery.attempt))
        started.set()
        go.wait()

    async with here.consuming(fail_once, queue.intake(), retries=True):
        queue.put(body("A1"))
        await until(started.is_set)
        await sql.execute("UPDATE lease SET token = token + 1, holder = gen_random_uuid() WHERE name LIKE 'worker:%'")
        await here.heard.wait(ThreadsStuck)
        go.set()
        await here.settled(1, result=DeliveryResult.OK)
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 1


def on_the_server(tx, text):
    with tx.cursor("named") as cursor:
        cursor.execute(text)


@pytest.mark.parametrize(
    "act",
    [
        lambda tx: tx.commit(),
        lambda tx: tx.rollback(),
        lambda tx: tx.close(),
        lambda tx: tx.__enter__(),
        lambda tx: tx.set_autocommit(True),
        lambda tx: setattr(tx, "autocommit", True),
        lambda tx: setattr(tx, "isolation_level", 4),
        lambda tx: tx.set_read_only(True),
        lambda tx: setattr(tx, "deferrable", True),
        lambda tx: tx.tpc_begin("x"),
        lambda tx: tx.execute("COMMIT"),
        lambda tx: tx.execute(b"/* now */ rollback"),
        lambda tx: tx.execute(SQL("SELECT 1; COMMIT")),
        lambda tx: tx.execute(SQL("SELECT {}; END").format(Identifier("a"))),
        lambda tx: tx.cursor().executemany("ABORT", [()]),
        lambda tx: list(tx.cursor().stream("COMMIT")),
        lambda tx: tx.cursor().copy("COMMIT"),
        lambda tx: on_the_server(tx, "SELECT 1; COMMIT"),
    ],
)
async def test_a_handler_cannot_end_the_transaction(here, queue, sql, act):
    refusals = []

    @consumer(Placed, name="billing.orders")
    def reach(event, delivery):
        try:
            act(delivery.tx)
        except UsageError as error:
            refusals.append(str(error))
        delivery.tx.execute(EFFECT, (event.order, 1, 1))

    async with here.consuming(reach, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    (refusal,) = refusals
    assert "is refused on the connection of a delivery" in refusal
    assert await effects(sql) == 1


async def test_a_nested_block_is_a_savepoint(here, queue, sql):
    @consumer(Placed, name="billing.orders")
    def nest(event, delivery):
        delivery.tx.execute(EFFECT, ("outer", 1, 1))
        with delivery.tx.transaction(), delivery.tx.cursor() as cursor:
            cursor.execute(EFFECT, ("inner", 1, 1))
            raise psycopg.Rollback
        delivery.tx.execute("SAVEPOINT mine")
        delivery.tx.execute(EFFECT, ("mine", 1, 1))
        delivery.tx.execute("ROLLBACK TO mine")

    async with here.consuming(nest, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    assert [row["name"] for row in await sql.fetch("SELECT name FROM public.effect")] == ["outer"]


async def test_a_transaction_that_was_ended_past_the_guard_is_no_success(here, queue, sql):
    @consumer(Placed, name="billing.orders", retry=Backoff(first=seconds(60)))
    def sly(event, delivery):
        delivery.tx.pgconn.exec_(b"ROLLBACK")

    async with here.consuming(sly, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
    assert queue.acked


async def test_what_a_handler_leaves_on_its_connection_is_gone_before_the_next(here, queue, sql):
    seen = []

    @consumer(Placed, name="billing.orders", concurrency=1)
    def leave(event, delivery):
        cursor = delivery.tx.execute("SELECT current_setting('lock_timeout'), pg_backend_pid()")
        seen.append(cursor.fetchone())
        delivery.tx.row_factory = psycopg.rows.dict_row
        delivery.tx.execute("SET lock_timeout = '7s'")
        delivery.tx.execute("SELECT pg_advisory_lock(7)")

    async with here.consuming(leave, queue.intake()):
        for _ in range(2):
            queue.put(body())
        await here.settled(2, result=DeliveryResult.OK)
    (first, one), (second, two) = seen
    assert (first, second, one) == ("0", "0", two)
    assert await sql.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7") == 0


async def work():
    """Nothing."""


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit])
async def test_what_would_end_a_loop_ends_a_delivery_alone(here, queue, sql, error):
    @consumer(Placed, name="billing.orders", retry=Backoff(first=seconds(60)))
    def leave(event, delivery):
        raise error

    async with here.consuming(leave, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
        queue.put(body("A2"))
        await here.settled(2, result=DeliveryResult.RETRY)


async def test_a_plain_function_that_returns_a_coroutine_has_done_nothing(here, queue, sql):
    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    def wrapped(event, delivery):
        return work()

    async with here.consuming(wrapped, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    assert await sql.fetchval("SELECT attempt FROM quarantine") == 3


async def test_a_handler_that_blocks_does_not_block_the_others(here, queue, sql):
    @consumer(Placed, name="billing.orders", concurrency=4)
    def block(event, delivery):
        time.sleep(0.2)  # blocks its thread: the test is about that

    began = time.monotonic()
    async with here.consuming(block, queue.intake()):
        for number in range(8):
            queue.put(body(f"{number}"))
        await here.settled(8, result=DeliveryResult.OK)
    assert time.monotonic() - began < 1.5
