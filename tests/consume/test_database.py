"""Our own database away: intake stops, nothing is charged, nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import asyncpg
import pytest

from consume.bench import AT_ONCE, SCHEMA, Order, body, process
from consume.kinds import BOTH, Gate
from postroad.clock import SYSTEM_CLOCK
from postroad.consume import consumer
from postroad.events import Subscription
from postroad.signals.catalog import (
    DeliveryDelayed,
    DeliveryQuarantined,
    DeliveryResult,
    DeliverySettled,
    IntakePaused,
    IntakeResumed,
    WorkSettled,
)
from postroad.sql.migrations import Roles, migrate
from postroad.sql.transactions import AsyncpgTransactions
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
pytestmark = pytest.mark.heavy


@consumer(Placed, name="billing.orders", retry=AT_ONCE)
async def bill(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)
    await delivery.tx.execute("SELECT pg_sleep(0.005)")


@asynccontextmanager
async def standing(server, kind):
    await migrate(server.url(), schema=SCHEMA, roles=Roles(runtime="pr_runtime", author="pr_author"), days_ahead=2)
    await looked_at(
        server,
        "CREATE TABLE public.effect (name text, amount int, attempt int); GRANT ALL ON public.effect TO pr_runtime",
    )
    async with process(server.url(user="pr_runtime"), kind=kind) as here:
        yield here


async def looked_at(server, query):
    connection = await asyncpg.connect(server.url())
    try:
        return (
            [tuple(row) for row in await connection.fetch(query)]
            if query.startswith("SELECT")
            else await connection.execute(query)
        )
    finally:
        await connection.close()


@pytest.mark.parametrize("how", ["restart", "kill"])
@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_a_database_restarted_under_load_charges_and_loses_nothing(own_postgres, queue, how, kind):
    async with standing(own_postgres, kind) as here:
        async with here.consuming(bill, queue.intake(), retries=True):
            for number in range(1500):
                queue.put(body(f"{number:04}"))
            for restart in range(2):
                await here.settled(300 * (restart + 1), result=DeliveryResult.OK)
                if how == "kill":
                    await asyncio.to_thread(own_postgres.kill)
                    await here.heard.wait(IntakePaused, count=restart + 1)
                    await asyncio.to_thread(own_postgres.start)
                else:
                    await asyncio.to_thread(own_postgres.restart)
                await here.heard.wait(IntakeResumed, count=restart + 1)
            await until(lambda: len(queue.acked) == 1500, within=60)
        seen = await looked_at(own_postgres, "SELECT name, count(*), max(attempt) FROM public.effect GROUP BY 1")
        assert len(seen) == 1500
        assert {(count, attempt) for _, count, attempt in seen} == {(1, 1)}
        assert await looked_at(own_postgres, "SELECT * FROM postroad.work") == []
        assert await looked_at(own_postgres, "SELECT * FROM postroad.quarantine") == []
        assert here.heard.all(DeliveryDelayed) == []
        assert here.heard.all(DeliveryQuarantined) == []
        assert queue.given_back > 0


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_a_retry_that_meets_a_restart_is_given_back_uncharged(own_postgres, queue, kind):
    started, go = Gate(), Gate()

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def fail_once(event, delivery):
        if delivery.attempt == 1:
            raise ConnectionResetError
        started.set()
        await go.wait()
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)

    async with standing(own_postgres, kind) as here:
        async with here.consuming(fail_once, queue.intake(), retries=True):
            queue.put(body("A1"))
            await started.wait()
            await asyncio.to_thread(own_postgres.restart)
            go.set()
            await here.settled(1, result=DeliveryResult.OK)
        assert await looked_at(own_postgres, "SELECT attempt FROM public.effect") == [(2,)]
        results = [signal.result for signal in here.heard.all(DeliverySettled)]
        assert DeliveryResult.GIVEN_BACK in results
        assert {signal.result for signal in here.heard.all(WorkSettled)} >= {"ok"}


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_while_the_database_is_away_nothing_starts_and_the_service_is_not_ready(own_postgres, queue, kind):
    async with standing(own_postgres, kind) as here:
        intake = queue.intake()
        async with here.consuming(bill, intake):
            queue.put(body("A1"))
            await here.settled(1, result=DeliveryResult.OK)
            await asyncio.to_thread(own_postgres.stop)
            queue.put(body("A2"))
            await here.heard.wait(IntakePaused)
            assert here.ready.reason == "database is away"
            queue.put(body("A3"))
            await asyncio.to_thread(own_postgres.start)
            await here.settled(3, result=DeliveryResult.OK)
            assert here.ready.reason == ""
            assert intake.resumed == 1
        (resumed,) = here.heard.all(IntakeResumed)
        assert resumed.after_seconds > 0


async def test_a_commit_that_is_lost_on_the_way_is_decided_by_the_inbox(here, queue, sql):
    """The connection dies after PostgreSQL committed and before it said so."""
    cut = []

    class Transactions:
        def __init__(self, inner):
            self._inner = inner

        @asynccontextmanager
        async def begin(self):
            async with self._inner.begin() as unit:
                yield unit
            if not cut:
                cut.append(unit)
                raise ConnectionResetError

    async with here.consuming(bill, queue.intake(), transactions=Transactions(AsyncpgTransactions(here.manager))):
        queue.put(body("A1", identity=SYSTEM_CLOCK.new_id()))
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 1
    assert [signal.result for signal in here.heard.all(DeliverySettled)] == ["given_back", "duplicate"]


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_a_foreign_lost_connection_is_charged_and_pauses_nothing(here, queue, sql):
    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def gateway(event, delivery):
        if delivery.attempt == 1:
            raise ConnectionRefusedError(111, "the gateway is down")

    async with here.consuming(gateway, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    assert here.heard.all(IntakePaused) == []
    assert len(here.heard.all(DeliveryDelayed)) == 1
