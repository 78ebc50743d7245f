"""A group of quarantine is released at a rate while its consumer works on it: in order, once, and until told to stop.

The default is small enough for every run; POSTROAD_TEST_RELEASED=10000 is the size that is promised.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from uuid import UUID

import asyncpg
import pytest

from cli.test_quarantine import assert_paced
from consume.bench import AT_ONCE, Order, body
from postroad.clock import SYSTEM_CLOCK
from postroad.consume import arrival, consumer
from postroad.events import Subscription
from postroad.runtime import quarantine_acts
from postroad.runtime.operations import database_settings
from postroad.sql import Queries
from postroad.sql.statement import Statement
from postroad.work import kept, release
from postroad.work.kept import Chosen
from runtime.processes import environment
from support import until

ROWS = int(os.environ.get("POSTROAD_TEST_RELEASED", "1500"))
RATE = 500
KEYS = 50
GROUP = Chosen(fingerprint="poison")
RETRY = (sys.executable, "-m", "postroad", "quarantine", "retry", "--group", "poison", "--yes")
SLOW = 20 + ROWS / 100


@consumer(Subscription("orders.order.placed", version=1, model=Order), name="billing.orders", retry=AT_ONCE)
async def bill(event, delivery):
    await delivery.tx.execute(
        "INSERT INTO public.billed (key, sequence) VALUES ($1, $2)", delivery.key, delivery.sequence
    )


@pytest.fixture
def settings(runtime_url):
    return database_settings({"POSTROAD_DATABASE_URL": runtime_url})


@pytest.fixture
async def billed(sql):
    await sql.execute("CREATE TABLE public.billed (number bigint GENERATED ALWAYS AS IDENTITY, key text, sequence int)")
    await sql.execute("GRANT ALL ON public.billed TO pr_runtime")


@pytest.fixture
async def fill(sql, billed):
    """Puts so many deliveries of one fault into quarantine, of some keys by turns, each with its inbox mark."""

    async def filled(count=ROWS, *, keys=KEYS):
        rows = []
        for number in range(count):
            identity = SYSTEM_CLOCK.new_id()
            text = body(f"A{number}", identity=identity, key=f"k{number % keys}", sequence=number // keys)
            rows.append(("delivery", "billing.orders", str(identity), b"", "quarantine", "PR507", "poison", "KeyError",
                         "no fit", "orders.order.placed", text, "application/cloudevents+json", "orders.events",
                         "orders.order.placed.v1"))  # fmt: skip
        columns = ("kind", "queue", "key", "digest", "class", "code", "fingerprint", "error_type", "reason",
                   "event_type", "body", "content_type", "exchange", "routing_key")  # fmt: skip
        await sql.copy_records_to_table("quarantine", records=rows, columns=columns)
        await sql.copy_records_to_table(
            "inbox", records=[("billing.orders", UUID(row[2]), "quarantined") for row in rows],
            columns=("consumer", "message_key", "outcome"),
        )  # fmt: skip

    return filled


async def released(settings, **given):
    last = (await quarantine_acts.preview(settings, GROUP)).last
    return await quarantine_acts.retry(settings, GROUP, last=last, by="ada", **given)


def retrying(url, *, rate):
    """The command, in a process of its own."""
    return subprocess.Popen(
        [*RETRY, "--rate", f"{rate}/s"], env=environment(POSTROAD_DATABASE_URL=url), stdout=subprocess.PIPE, text=True
    )


async def seen(sql, question, holds, *, within):
    """Ask the database until its answer is right."""
    async with asyncio.timeout(within):
        while not holds(await sql.fetchval(question)):  # noqa: ASYNC110 - a database tells nothing by itself
            await asyncio.sleep(0.02)


async def at_the_rate(sql, url, *, rate=RATE, rows=ROWS):
    """Release all of it by the command, each row at its time; the first batch does not count, the clock starts with it.

    The command is a process of its own, as in life: here it would share its loop with the consumer.
    """
    with retrying(url, rate=rate) as command:
        await until(lambda: command.poll() is not None, within=SLOW * 2)
        assert f"released {rows} of {rows} rows" in command.communicate()[0]
    taken = await sql.fetchval("SELECT extract(epoch FROM max(resolved_at) - min(resolved_at))::float8 FROM quarantine")
    assert_paced(rows - rate / 5, seconds_taken=taken, rate=rate)


async def in_order(sql):
    """Whether what was handled was handled in the order of its keys."""
    return not await sql.fetchval(
        "SELECT count(*) FROM public.billed AS one JOIN public.billed AS other USING (key)"
        " WHERE one.number < other.number AND one.sequence >= other.sequence"
    )


async def handled(sql, count=ROWS):
    await seen(sql, "SELECT count(*) FROM work", lambda left: left == 0, within=SLOW)
    return await sql.fetchval("SELECT count(*) FROM public.billed") == count


@pytest.mark.timeout(60 + SLOW * 3)
async def test_a_group_is_released_at_the_rate_beside_its_consumer_in_order_and_twice_is_once(
    here, fill, sql, settings, runtime_url
):
    await fill()
    async with here._claimer(here.attempts(bill)):
        await at_the_rate(sql, runtime_url)
        assert await handled(sql)
        assert (await released(settings)).done == 0
        assert await handled(sql)
    assert await in_order(sql)
    assert await sql.fetchval("SELECT sum(items) FROM audit") == ROWS
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome <> 'handled'") == 0


async def unevenly(here, sql, settings):
    """Every other event of a key takes longer than the next."""

    @consumer(Subscription("orders.order.placed", version=1, model=Order), name="billing.orders", retry=AT_ONCE)
    async def slow(event, delivery):
        await asyncio.sleep(0.005 * (delivery.sequence % 2 == 0))
        await bill(event, delivery)

    async with here._claimer(here.attempts(slow)):
        await released(settings)
        assert await handled(sql, 3 * KEYS)


async def test_the_next_event_of_a_key_waits_for_the_one_before(here, fill, sql, settings):
    await fill(3 * KEYS, keys=1)
    await unevenly(here, sql, settings)
    assert await in_order(sql)


@pytest.mark.sabotage
async def test_sabotage_without_lanes_keys_lose_their_order(here, fill, sql, settings, monkeypatch):
    monkeypatch.setattr(arrival.Arrival, "lane", None)
    await fill(3 * KEYS, keys=1)
    await unevenly(here, sql, settings)
    assert not await in_order(sql)


async def twice(sql, settings, count):
    """Release and have all of it handled, and do it again: how many rows of work that made."""
    made = 0
    for _ in range(2):
        await released(settings)
        made += len(await sql.fetch("DELETE FROM work RETURNING id"))
    return made


async def test_released_twice_each_row_makes_one_row_of_work(fill, sql, settings):
    await fill(200)
    assert await twice(sql, settings, 200) == 200


@pytest.mark.sabotage
async def test_sabotage_where_what_is_resolved_counts_as_open_it_makes_two(fill, sql, settings, monkeypatch):
    real = Queries.statement

    def forgetful(self, name, schema, *args):
        found = real(self, name, schema, *args)
        return Statement(found.text.replace("resolved_at IS NULL", "TRUE"), found.args)

    for queries in (kept.QUERIES, release.QUERIES):
        monkeypatch.setattr(type(queries), "statement", forgetful)
    await fill(20)
    assert await twice(sql, settings, 20) == 40


async def stopped(settings, **given):
    """Told to stop in the middle, how many seconds it takes, and what it says."""
    stop, asked = asyncio.Event(), []

    def told(done):
        if not stop.is_set():
            stop.set()
            asked.append(time.monotonic())

    done = await released(settings, stop=stop, told=told, **given)
    return time.monotonic() - asked[0], done


async def test_a_stop_is_heard_within_a_second_and_the_same_act_goes_on_with_the_rest(fill, sql, settings):
    await fill(300)
    taken, done = await stopped(settings, rate=1)
    assert taken < 1
    assert (done.stopped, done.done) == (True, 1)
    assert (await released(settings)).done == 299


@pytest.fixture
async def other(database):
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def stopped_at_a_lock(sql, settings, other):
    """Somebody else holds a row. Told to stop meanwhile it has to be over within a second."""
    stop = asyncio.Event()
    async with other.transaction():
        await other.execute("SELECT FROM postroad.quarantine ORDER BY id DESC LIMIT 1 FOR UPDATE")
        running = asyncio.create_task(released(settings, stop=stop))
        await waits_for_a_lock(sql)
        stop.set()
        async with asyncio.timeout(1):
            return await running


async def test_a_stop_is_heard_while_somebody_else_holds_a_row(fill, sql, settings, other):
    await fill(20)
    done = await stopped_at_a_lock(sql, settings, other)
    assert (done.stopped, done.done) == (True, 0)


async def test_a_row_that_somebody_else_holds_is_waited_for(fill, sql, settings, other):
    await fill(20)
    async with other.transaction():
        await other.execute("SELECT FROM postroad.quarantine ORDER BY id DESC LIMIT 1 FOR UPDATE")
        running = asyncio.create_task(released(settings))
        await waits_for_a_lock(sql)
        await asyncio.sleep(0.6)  # longer than one wait for the lock: it tries again
        assert not running.done()
    assert (await running).done == 20


async def waits_for_a_lock(sql):
    question = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    await seen(sql, question, bool, within=10)


@pytest.mark.sabotage
async def test_sabotage_with_patience_for_locks_the_stop_is_not_heard(fill, sql, settings, other, monkeypatch):
    monkeypatch.setattr(quarantine_acts, "_LOCKED", "20s")
    await fill(20)
    with pytest.raises(TimeoutError):
        await stopped_at_a_lock(sql, settings, other)


@pytest.mark.heavy
async def test_killed_in_the_middle_it_goes_on_where_it_was(here, fill, sql, settings, runtime_url):
    await fill(400)
    with retrying(runtime_url, rate=100) as first:
        async with here._claimer(here.attempts(bill)):
            await seen(sql, "SELECT count(*) FROM public.billed", lambda done: done >= 40, within=60)
            first.send_signal(signal.SIGKILL)
            await until(lambda: first.poll() is not None)
            done = await sql.fetchval("SELECT count(*) FROM quarantine WHERE resolved_at IS NOT NULL")
            assert 40 <= done < 400
            assert (await released(settings)).done == 400 - done
            assert await handled(sql, 400)
    assert await in_order(sql)
    assert await sql.fetchval("SELECT sum(items) FROM audit") == 400


async def test_a_batch_reads_its_own_rows_and_not_all_that_are_left(fill, sql, monkeypatch):
    """On a table that nobody has analyzed: there the planner's first choice is to sort what is left."""
    await fill(600)
    plans = []

    async def explained(pipeline, hand):
        statement = next(pipeline)
        plans.extend(await sql.fetch(f"EXPLAIN {statement.text}", *statement.args))
        return [], 0

    monkeypatch.setattr(quarantine_acts, "drive", explained)
    pipeline = kept.following("postroad", GROUP, after=0, last=10**6, limit=100)
    await quarantine_acts._impatiently(sql, pipeline)
    told = "\n".join(row[0] for row in plans)
    assert "Index Scan using quarantine_pkey" in told
    assert "Sort" not in told
