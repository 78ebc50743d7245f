"""Tests of consumers with effects: a delivery is taken and acked at once, and runs as a leased row, once in effect."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from consume.bench import AT_ONCE, Order, OrderPlaced, Queue, body, process
from postroad.clock import seconds
from postroad.consume import consumer, consumer_of, pipeline
from postroad.effects import Done, effect
from postroad.errors import LeaseLost, UsageError
from postroad.events import Subscription
from postroad.failures import Drop, OutcomeUnknown, Quarantine
from postroad.signals.catalog import DeliveryResult, LateWriteRefused
from postroad.work.run import BlockingRun, Grip, Run

PLACED = Subscription("orders.order.placed", version=1, model=Order)


class Nothing:
    async def perform(self, command: Order, attempt: Any) -> Done:
        return Done()


ACT = effect("act", Nothing, key=lambda command: command.order, timeout=seconds(1))


def taking(work: Any, **options: Any) -> Any:
    @consumer(PLACED, name="board", effects=[ACT], retry=AT_ONCE, **options)
    async def handle(order: Order, run: Run) -> None:
        await work(order, run)

    return handle


@pytest.fixture
async def here(runtime_url):
    async with process(runtime_url) as standing:
        yield standing


@pytest.fixture
async def sql(database):
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path = postroad")
    await connection.execute("CREATE TABLE seen (number text); GRANT ALL ON seen TO pr_runtime")
    yield connection
    await connection.close()


async def note(order: Order, run: Run, *, finish: bool = True) -> None:
    async with run.transaction(finish=finish) as tx:
        await tx.execute("INSERT INTO postroad.seen VALUES ($1)", order.order)


async def marks(sql) -> list[str]:
    return [row["outcome"] for row in await sql.fetch("SELECT outcome FROM inbox ORDER BY at")]


async def until(sql, query: str, wanted: Any) -> None:
    async with asyncio.timeout(20):
        while await sql.fetchval(query) != wanted:  # noqa: ASYNC110 - a database tells nothing by itself
            await asyncio.sleep(0.01)


async def test_a_delivery_is_acked_while_its_handler_still_waits_for_somebody(here, sql):
    queue, gate = Queue(), asyncio.Event()

    async def work(order, run) -> None:
        assert (run.job, run.attempt) == ("board", 1)
        await gate.wait()
        await note(order, run)

    async with here.consuming(taking(work), queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(result=DeliveryResult.TAKEN)
        await until(sql, "SELECT state FROM work", "running")
        assert len(queue.acked) == 1
        assert await marks(sql) == ["delayed"]
        gate.set()
        await here.settled(result=DeliveryResult.OK)
    assert await marks(sql) == ["handled"]
    assert await sql.fetchval("SELECT count(*) FROM seen") == 1
    assert await sql.fetch("SELECT outcome, attempt FROM finished") == [("handled", 1)]


async def test_what_waits_for_a_provider_keeps_no_delivery_from_being_taken(here, sql):
    queue, gate = Queue(), asyncio.Event()

    async def work(order, run) -> None:
        await gate.wait()
        await note(order, run)

    async with here.consuming(taking(work, concurrency=1), queue.intake(), retries=True):
        for number in range(20):
            queue.put(body(f"A{number}", key="one"))
        await here.settled(20, result=DeliveryResult.TAKEN)
        gate.set()
        await here.settled(20, result=DeliveryResult.OK)
    assert await sql.fetchval("SELECT count(DISTINCT number) FROM seen") == 20


async def copies(here, sql) -> int:
    """One event, delivered three times: as its handler waits, and after it; how often it took effect."""
    queue, gate, identity = Queue(), asyncio.Event(), uuid4()

    async def work(order, run) -> None:
        await gate.wait()
        await note(order, run)

    async with here.consuming(taking(work), queue.intake(), retries=True):
        queue.put(body("A1", identity=identity))
        await until(sql, "SELECT state FROM work", "running")
        queue.put(body("A1", identity=identity), redelivered=True)
        await here.settled(2)
        gate.set()
        await here.settled(result=DeliveryResult.OK)
        queue.put(body("A1", identity=identity))
        await here.settled(4)
        await until(sql, "SELECT count(*) FROM work", 0)
    return await sql.fetchval("SELECT count(*) FROM seen")


async def test_a_copy_is_a_duplicate_while_the_handler_runs_and_after_it(here, sql):
    assert await copies(here, sql) == 1
    assert len(await here.settled(2, result=DeliveryResult.DUPLICATE)) == 2


@pytest.mark.sabotage
async def test_without_the_mark_a_copy_runs_again(here, sql, monkeypatch):
    def unmarked(*_args: Any, **_named: Any):
        return None
        yield

    monkeypatch.setattr(pipeline, "_claimed", unmarked)
    assert await copies(here, sql) > 1


async def finished_together(here, sql) -> list[str]:
    """The last transaction of a run fails at its end, once: what is written of it until then."""
    queue, tries = Queue(), 0

    async def work(order, run) -> None:
        nonlocal tries
        tries += 1
        async with run.transaction(finish=True) as tx:
            await tx.execute("INSERT INTO postroad.seen VALUES ($1)", order.order)
            if tries == 1:
                await sql.execute("UPDATE work SET token = nextval('work_token')")

    async with here.consuming(taking(work), queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.heard.wait(LateWriteRefused)
        await here.settled(2)
        return [*(await marks(sql)), *(row["number"] for row in await sql.fetch("SELECT number FROM seen"))]


async def test_mark_writes_and_end_commit_together_or_not_at_all(here, sql):
    assert await finished_together(here, sql) == ["delayed"]


@pytest.mark.sabotage
async def test_without_the_fence_a_run_that_lost_its_row_would_write(here, sql, monkeypatch):
    sealed = Grip.sealed

    def unfenced(self, *, finish: bool):
        try:
            yield from sealed(self, finish=finish)
        except LeaseLost:
            return

    monkeypatch.setattr(Grip, "sealed", unfenced)
    assert await finished_together(here, sql) == ["handled", "A1"]


async def test_a_failure_is_charged_and_tried_again_and_quarantined_at_the_end(here, sql):
    queue = Queue()

    async def work(order, run) -> None:
        await note(order, run, finish=False)
        raise ValueError

    async with here.consuming(taking(work), queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(result=DeliveryResult.QUARANTINE)
    assert await marks(sql) == ["quarantined"]
    assert await sql.fetch("SELECT code, attempt, kind FROM quarantine") == [("PR507", 5, "delivery")]
    assert await sql.fetchval("SELECT count(*) FROM seen") == 5  # Its transactions are its own.


async def test_an_outcome_that_the_ledger_looks_up_delays_it_uncharged_and_another_is_kept(here, sql):
    queue, told = Queue(), []

    async def work(order, run) -> None:
        told.append(run.attempt)
        if len(told) < 9:
            raise OutcomeUnknown("looked up", after=seconds(0.01))
        raise OutcomeUnknown("nobody looks")

    async with here.consuming(taking(work), queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(result=DeliveryResult.QUARANTINE)
    assert told == [1] * 9
    assert await sql.fetchval("SELECT class FROM quarantine") == "outcome_unknown"


@pytest.mark.parametrize(("error", "mark"), [(Drop("not ours"), "dropped"), (Quarantine("look"), "quarantined")])
async def test_what_the_author_decides_is_done(here, sql, error, mark):
    queue = Queue()

    async def work(order, run) -> None:
        raise error

    async with here.consuming(taking(work), queue.intake(), retries=True):
        queue.put(body("A1"))
        await until(sql, "SELECT outcome <> 'delayed' FROM inbox", True)
    assert await marks(sql) == [mark]
    assert await sql.fetchval("SELECT count(*) FROM work") == 0


async def test_what_is_not_valid_is_quarantined_and_never_taken(here, sql):
    queue = Queue()

    async def work(order, run) -> None:
        raise AssertionError

    async with here.consuming(taking(work), queue.intake(), retries=True):
        queue.put(b"{")
        await here.settled(result=DeliveryResult.QUARANTINE)
    assert await sql.fetchval("SELECT code FROM quarantine") == "PR501"


async def test_a_handler_that_exceeds_its_limit_is_cancelled_and_charged(here, sql):
    queue = Queue()

    async def work(order, run) -> None:
        if run.attempt == 1:
            await asyncio.Event().wait()
        await note(order, run)

    async with here.consuming(taking(work, max_runtime=seconds(1.1)), queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(result=DeliveryResult.OK)
    assert await sql.fetchval("SELECT attempt FROM finished") == 2


async def test_a_def_handler_gets_a_run_for_threads(runtime_url, sql):
    @consumer(PLACED, name="board", effects=[ACT], retry=AT_ONCE)
    def handle(order: Order, run: BlockingRun) -> None:
        with run.transaction(finish=True) as tx:
            tx.execute("INSERT INTO postroad.seen VALUES (%s)", (order.order,))

    queue = Queue()
    async with process(runtime_url, kind="def") as here, here.consuming(handle, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(result=DeliveryResult.OK)
    assert await marks(sql) == ["handled"]
    assert await sql.fetchval("SELECT count(*) FROM seen") == 1


async def test_once_with_the_delivery_of_a_plain_consumer_is_refused(here, sql):
    @consumer(PLACED, name="plain", retry=AT_ONCE)
    async def handle(order: Order, delivery: Any) -> None:
        with pytest.raises(UsageError, match=r"once\(\) needs a run, not a Delivery.*PR107"):
            await ACT.once(order, delivery)

    queue = Queue()
    async with here.consuming(handle, queue.intake()):
        queue.put(body("A1"))
        await here.settled(result=DeliveryResult.OK)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effects": [SimpleNamespace()]}, "effects holds SimpleNamespace, not an effect"),
        ({"effects": [ACT], "order": "latest"}, "order='latest' needs a handler's transaction"),
        ({"effects": [ACT], "max_runtime": seconds(1)}, "its max_runtime leaves no time for effect 'act'"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(options, said):
    with pytest.raises(UsageError, match=said):

        @consumer(PLACED, name="board", **options)
        async def handle(order: Order, run: Run) -> None: ...


def test_a_consumer_with_effects_shares_no_transaction():
    assert not consumer_of(taking(note)).group
    assert OrderPlaced
