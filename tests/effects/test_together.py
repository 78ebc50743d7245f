"""Effects beside what else a run may have: queues of its own and of others, another owner's queue, leases."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from effects.bench import QUICK, ask, charges, eventually, looks, receipts, states
from effects.provider import Cards, Charge, PlainCards, Provider
from effects.test_app import settings_of, until
from postroad import Properties, Subscription
from postroad.asyncpg import within
from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.consume import consumer
from postroad.effects import ledger
from postroad.effects.ledger import Ledger, WithLedger
from postroad.effects.resolver import Resolver
from postroad.errors import UsageError
from postroad.leases.held import HeldLease
from postroad.runtime.app import App
from postroad.runtime.lease_acts import fence
from postroad.runtime.operations import database_settings
from postroad.runtime.settings import Role
from postroad.signals.catalog import JobDelayed
from postroad.sql import Statement
from postroad.sql.threaded import PsycopgTransactions
from postroad.work.job import job
from runtime.test_peers import on_channel, send, standing
from work.bench import SCHEMA, Ready
from work.jobbench import queues, until_empty, working
from work.test_run_leases import leases_of

if TYPE_CHECKING:
    from postroad.work.run import BlockingRun, Run

# --- queues -----------------------------------------------------------------------------------------------------------


async def pay_for(author_url: str, pay: Any, **payments: str | None) -> None:
    """Enqueue payments, each in the queue that it says, or else in its own."""
    author = await asyncpg.connect(author_url)
    async with author.transaction():
        for payment, queue in payments.items():
            await within(author).enqueue(pay, Charge(payment=payment), queue=queue)
    await author.close()


async def paid_in(runtime_url, author_url, sql, *, concurrency: int, patience: float) -> Provider:
    """Payments in a queue of their own, and one in the queue of another job; the first one's outcome is unknown."""
    charge = charges()

    @job("pay", queue="payments", concurrency=concurrency, retry=QUICK, max_runtime=seconds(20))
    async def pay(request: Charge, run: Run) -> None:
        outcome = await charge.once(request, run)
        async with run.transaction(finish=True) as tx:
            await tx.execute("INSERT INTO postroad.receipt VALUES ($1, $2)", request.payment, f"{run.queue} {outcome}")

    @job("tell", queue="letters", concurrency=1)
    async def tell(request: Charge, run: Run) -> None: ...

    with Provider("act-500") as provider:

        async def lifespan():
            yield Cards(provider.url)

        settings = settings_of(runtime_url, "", roles=frozenset({Role.WORK}))
        app = App("till", jobs=[pay, tell], effects=[charge], lifespan=lifespan, settings=settings)
        provider.blind = True
        await pay_for(author_url, pay, p0=None)
        async with app:
            await until(sql, "SELECT looks > 0 FROM effect")
            await pay_for(author_url, pay, p1=None, p2="letters")
            try:
                async with asyncio.timeout(patience):
                    await until(sql, "SELECT count(*) = 2 FROM receipt")
            finally:
                provider.blind = False
            await until(sql, "SELECT count(*) = 3 FROM receipt")
    return provider


async def test_what_is_unknown_in_a_queue_of_one_holds_up_no_neighbour_and_runs_in_others_queues(
    runtime_url, author_url, sql
):
    provider = await paid_in(runtime_url, author_url, sql, concurrency=1, patience=20)
    assert provider.acts == {"p0": 1, "p1": 1, "p2": 1}
    assert provider.requests["p0"] == 1
    assert await receipts(sql) == [
        ("p0", "payments Done(ref='ref-p0-1')"), ("p1", "payments Done(ref='ref-p1-1')"),
        ("p2", "letters Done(ref='ref-p2-1')"),
    ]  # fmt: skip


@pytest.mark.sabotage
async def test_waited_for_in_its_slot_what_is_unknown_holds_up_its_queue(runtime_url, author_url, sql, monkeypatch):
    once = Ledger.once

    async def stubborn(self, effect, command, run):
        while True:
            try:
                return await once(self, effect, command, run)
            except ledger.OutcomeUnknown:
                await asyncio.sleep(0.05)

    monkeypatch.setattr(Ledger, "once", stubborn)
    with pytest.raises(TimeoutError):
        await paid_in(runtime_url, author_url, sql, concurrency=1, patience=4)


def from_text(body: bytes, properties: Properties) -> Charge:
    return Charge(payment=body.decode("ascii"))


async def test_a_delivery_of_another_owners_queue_is_taken_once_and_charged_once(runtime_url, vhost, sql):
    placed, charge = Subscription("tills.sale.made", version=1, model=Charge), charges()

    @consumer(placed, name="tills.charge", queue="OLD OUT", bind=False, decode=from_text, effects=[charge], retry=QUICK)
    async def bill(sale: Charge, run: Run) -> None:
        outcome = await charge.once(sale, run)
        async with run.transaction(finish=True) as tx:
            await tx.execute("INSERT INTO postroad.receipt VALUES ($1, $2)", sale.payment, repr(outcome))

    await on_channel(vhost, standing)
    with Provider("act-500") as provider:

        async def lifespan():
            yield Cards(provider.url)

        app = App("tills", consumers=[bill], lifespan=lifespan, settings=settings_of(runtime_url, vhost))
        async with app:
            for number, body in (("1", b"s1"), ("1", b"s1"), ("2", b"s2")):
                await on_channel(vhost, send("OLD", "", body, message_id=number, headers={"origin": "host"}))
            await until(sql, "SELECT count(*) = 2 FROM inbox WHERE outcome = 'handled'")
    assert provider.acts == {"s1": 1, "s2": 1}
    assert [payment for payment, _ in await receipts(sql)] == ["s1", "s2"]
    assert await sql.fetchval("SELECT count(*) FROM work") == 0


# --- leases -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def till(here, runtime_url, charge, provider, *functions: Any, **options: Any):
    """As `effects.bench.shop`, whose runs may take leases."""
    resources = {charge.owner: charge.owner(provider.url)}
    book = Ledger(
        runtime_url, [charge], schema=SCHEMA, resources=resources.__getitem__, owner=here.owner, signals=here.signals,
        clock=SYSTEM_CLOCK,
    )  # fmt: skip
    stop = asyncio.Event()
    resolver = Resolver(book, owner=here.owner, chance=lambda: 0.5, every=seconds(0.05))
    task = asyncio.create_task(resolver.run(stop, Ready()))
    made = queues(
        here, *functions, resources=WithLedger(resources.__getitem__, book), leases=leases_of(here), **options
    )  # fmt: skip
    try:
        async with working(here, made):
            yield
    finally:
        stop.set()
        book.news.set()
        await asyncio.wait([task], timeout=10)


async def lease_lost(here, sql, runtime_url) -> Provider:
    """While the provider works, an operator fences the lease that the run holds; then the provider answers."""
    charge = charges(timeout=seconds(8), settle=seconds(9))

    @job("charge", retry=QUICK, max_runtime=seconds(20))
    async def work(request: Charge, run: Run) -> None:
        async with run.lease("till"):
            outcome = await charge.once(request, run)
        async with run.transaction(finish=True) as tx:
            await tx.execute("INSERT INTO postroad.receipt VALUES ($1, $2)", request.payment, repr(outcome))

    with Provider("act-late") as provider:
        async with till(here, runtime_url, charge, provider, work):
            await ask(sql, "a")
            assert await asyncio.to_thread(provider.asked.wait, 20)
            settings = database_settings({"POSTROAD_DATABASE_URL": runtime_url})
            await fence(settings, "till", by="ada", reason="test")
            provider.let_go()
            await until_empty(sql)
    return provider


async def test_a_run_that_lost_its_lease_writes_no_outcome_and_the_next_has_it_looked_up(here, sql, runtime_url):
    provider = await lease_lost(here, sql, runtime_url)
    assert provider.requests == {"a": 1}
    assert await receipts(sql) == [("a", "Done(ref='ref-a-1')")]
    assert await looks(sql) == ["done succeeded"]


@pytest.mark.sabotage
async def test_without_the_fence_of_the_lease_its_late_outcome_would_be_written(here, sql, runtime_url, monkeypatch):
    monkeypatch.setattr(HeldLease, "fence", lambda _: iter(()))
    await lease_lost(here, sql, runtime_url)
    assert await looks(sql) == []


async def under_a_lease(here, sql, runtime_url, work, charge, **options: Any) -> tuple[list[str], Provider]:
    with Provider() as provider:
        async with till(here, runtime_url, charge, provider, work, **options):
            await ask(sql, "a")
            await eventually(sql, "SELECT count(*) FROM work WHERE attempt > 0", 1)
    return [signal.reason for signal in here.heard.of(JobDelayed)], provider


def in_a_leases_transaction(charge):
    @job("charge", max_runtime=seconds(20))
    async def work(request: Charge, run: Run) -> None:
        async with run.lease("till") as lease, lease.transaction():
            await charge.once(request, run)

    return work


async def test_within_a_leases_transaction_it_is_refused_and_nothing_is_called(here, sql, runtime_url):
    charge = charges()
    reasons, provider = await under_a_lease(here, sql, runtime_url, in_a_leases_transaction(charge), charge)
    assert "a transaction of the run is open" in reasons[0]
    assert provider.requests == {}
    assert await states(sql) == {}


async def test_on_a_thread_it_is_refused_within_either_transaction(here, sql, runtime_url):
    charge, refused = charges(PlainCards), []

    @job("charge", max_runtime=seconds(20))
    def work(request: Charge, run: BlockingRun) -> None:
        with run.lease("till") as lease, run.transaction() as tx:
            try:
                charge.once_sync(request, run)
            except UsageError as error:
                refused.append(str(error))
            tx.execute("SELECT 1")
        with psycopg.connect(runtime_url) as mine, run.lease("till") as lease, lease.transaction(mine):
            charge.once_sync(request, run)

    threads = PsycopgTransactions(runtime_url, here.owner, size=4, name="charge")
    reasons, provider = await under_a_lease(
        here, sql, runtime_url, work, charge, transactions=lambda _: threads
    )  # fmt: skip
    assert all("a transaction of the run is open" in text for text in [*refused, *reasons])
    assert (len(refused), provider.requests) == (1, {})


@pytest.mark.sabotage
async def test_without_counting_it_a_leases_transaction_would_be_open_while_a_provider_hangs(
    here, sql, runtime_url, monkeypatch
):
    monkeypatch.setattr(HeldLease, "open", property(lambda _: 0, lambda *_: None), raising=False)
    charge = charges(timeout=seconds(8), settle=seconds(9))
    with Provider("act-hang") as provider:
        async with till(here, runtime_url, charge, provider, in_a_leases_transaction(charge)):
            await ask(sql, "a")
            assert await asyncio.to_thread(provider.asked.wait, 20)
            idle = await here.manager.fetch(
                Statement("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                          " AND state LIKE 'idle in transaction%'")
            )  # fmt: skip
            provider.let_go()
    assert idle[0]["count"] >= 1
