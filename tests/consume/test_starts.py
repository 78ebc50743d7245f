"""What is noted of redelivered messages: only what was started, and only as long as nothing answered it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from consume.bench import AT_ONCE, Counted, Order, body
from consume.kinds import BOTH, Gate, outside
from postroad.clock import SYSTEM_CLOCK
from postroad.consume import consumer
from postroad.events import Subscription
from postroad.failures import Drop, Quarantine, Retry
from postroad.runtime.upkeep import Upkeep
from postroad.signals.catalog import (
    DeliveryQuarantined,
    DeliveryResult,
    HandlerStarted,
    IntakePaused,
    IntakeResumed,
    SuspectStarted,
)
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
NAME = "billing.orders"


@consumer(Placed, name=NAME, retry=AT_ONCE)
async def bill(event, delivery):
    await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)


async def starts(sql) -> list[tuple[int, UUID]]:
    return [tuple(row) for row in await sql.fetch("SELECT start, process FROM starts ORDER BY message_key, start")]


async def effects(sql) -> int:
    return await sql.fetchval("SELECT count(*) FROM public.effect")


async def died(sql, key: UUID, times: int, *, process: UUID | None = None) -> None:
    """As if so many processes had died over it."""
    for start in range(1, times + 1):
        await sql.execute("INSERT INTO starts VALUES ($1, $2, $3, $4)", NAME, key, start, process or uuid4())


@pytest.mark.parametrize("kind", BOTH, indirect=True)
@pytest.mark.parametrize(
    ("raised", "result"),
    [
        (None, DeliveryResult.OK), (Drop("no"), DeliveryResult.DROP), (Quarantine("no"), DeliveryResult.QUARANTINE),
        (Retry(timedelta(minutes=5)), DeliveryResult.RETRY),
    ],
)  # fmt: skip
async def test_a_redelivered_message_is_noted_while_it_runs_and_its_outcome_answers_it(
    here, queue, sql, raised, result
):
    noted, on_it = [], outside()

    @consumer(Placed, name=NAME)
    async def look(event, delivery):
        noted.extend(await on_it(starts(sql)))
        if raised is not None:
            raise raised

    async with here.consuming(look, queue.intake()) as attempts:
        process = attempts.starts._process
        queue.put(body("A1"), redelivered=True)
        await here.settled(result=result)
    assert noted == [(1, process)]
    assert await starts(sql) == []
    assert here.heard.all(SuspectStarted) == []


async def test_a_first_delivery_notes_nothing_and_costs_no_statement(here, queue, sql):
    counted = Counted(here.manager)

    @consumer(Placed, name=NAME, group=False)
    async def plain(event, delivery):
        assert await starts(sql) == []

    async with here.consuming(plain, queue.intake(), transactions=counted):
        queue.put(body("A1"))
        await here.settled()
        first = len(counted.statements)
        queue.put(body("A2"), redelivered=True)
        await here.settled(2)
    assert len(counted.statements) > 2 * first


@pytest.mark.parametrize(("unanswered", "alone"), [(1, False), (2, True), (3, True)])
async def test_a_suspect_runs_and_alone_from_two_unanswered_starts_on(here, queue, sql, unanswered, alone):
    key, entered, release, beside = uuid4(), Gate(), Gate(), []

    @consumer(Placed, name=NAME, concurrency=3, group=False)
    async def hold(event, delivery):
        beside.append(event.order)
        if event.order == "suspect":
            entered.set()
            await release.wait()

    await died(sql, key, unanswered)
    async with here.consuming(hold, queue.intake()):
        queue.put(body("suspect", identity=key), redelivered=True)
        await entered.wait()
        queue.put(body("B1"))
        if alone:
            assert not await _within(0.3, lambda: len(beside) > 1)
        else:
            await until(lambda: len(beside) > 1)
        release.set()
        await here.settled(2, result=DeliveryResult.OK)
    assert [(signal.unanswered, signal.alone) for signal in here.heard.all(SuspectStarted)] == [(unanswered, alone)]
    assert await starts(sql) == []


async def _within(limit, condition) -> bool:
    try:
        await until(condition, within=limit)
    except TimeoutError:
        return False
    return True


async def test_with_four_unanswered_starts_it_is_quarantined_and_not_run(here, queue, sql):
    key = uuid4()
    await died(sql, key, 4)
    async with here.consuming(bill, queue.intake()):
        queue.put(body("A1", identity=key), redelivered=True)
        await here.settled(result=DeliveryResult.QUARANTINE)
        queue.put(body("A1", identity=key), redelivered=True)
        await here.settled(result=DeliveryResult.DUPLICATE)
    row = await sql.fetchrow("SELECT kind, class, code, reason, attempt FROM quarantine")
    assert tuple(row)[:3] == ("delivery", "quarantine", "PR511")
    assert "started 4 times" in row["reason"]
    assert "process died" in row["reason"]
    assert (await effects(sql), await starts(sql), len(here.heard.all(DeliveryQuarantined))) == (0, [], 1)


@pytest.mark.sabotage
async def test_without_starts_it_would_be_run(here, queue, sql, monkeypatch):
    monkeypatch.setattr("postroad.consume.arrival.Arrival.suspect", property(lambda _: False))
    key = uuid4()
    await died(sql, key, 4)
    async with here.consuming(bill, queue.intake()):
        queue.put(body("A1", identity=key), redelivered=True)
        await here.settled(result=DeliveryResult.OK)
    assert await effects(sql) == 1


async def test_its_own_starts_do_not_count_against_a_living_process(here, queue, sql):
    key = uuid4()
    async with here.consuming(bill, queue.intake()) as attempts:
        await died(sql, key, 5, process=attempts.starts._process)
        queue.put(body("A1", identity=key), redelivered=True)
        await here.settled(result=DeliveryResult.OK)
    assert await starts(sql) == []


async def busy_elsewhere(here, there, queue, sql):
    """A redelivered message whose ack channel was lost while it ran is delivered to another process meanwhile."""
    key, entered, release = uuid4(), Gate(), Gate()

    @consumer(Placed, name=NAME, retry=AT_ONCE)
    async def hold(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)
        entered.set()
        await release.wait()

    async with here.consuming(hold, queue.intake()), there.consuming(bill, queue.intake()):
        there.service._intake._standing = False
        queue.put(body("A1", identity=key), redelivered=True)
        await entered.wait()
        here.service._intake._standing = False
        there.service._intake._standing = True
        queue.put(body("A1", identity=key), redelivered=True)
        await until(lambda: sum(there.service._tries.values()) >= 3)
        noted = await starts(sql)
        release.set()
        await here.settled(result=DeliveryResult.OK)
        await there.settled(result=DeliveryResult.DUPLICATE)
    return noted


async def test_what_another_process_runs_is_busy_and_charges_nothing(here, there, queue, sql):
    noted = await busy_elsewhere(here, there, queue, sql)
    assert [start for start, _ in noted] == [1]
    assert (await effects(sql), await starts(sql)) == (1, [])
    assert here.heard.all(DeliveryQuarantined) == there.heard.all(DeliveryQuarantined) == []


async def test_interrupted_it_is_given_back_without_a_start(here, queue, sql):
    entered = Gate()

    @consumer(Placed, name=NAME)
    async def hang(event, delivery):
        entered.set()
        await asyncio.Event().wait()

    async with here.consuming(hang, queue.intake()):
        queue.put(body("A1"), redelivered=True)
        await entered.wait()
        assert len(await starts(sql)) == 1
        here.run.cancel()
        await asyncio.wait([here.run])
    assert await starts(sql) == []
    assert queue.given_back == 1


@pytest.mark.sabotage
async def test_without_taking_back_a_mere_stop_leaves_a_start(here, queue, sql, monkeypatch):
    monkeypatch.setattr("postroad.consume.starts.Starts.void", lambda *_: None)
    with pytest.raises(AssertionError):
        await test_interrupted_it_is_given_back_without_a_start(here, queue, sql)


async def test_a_database_that_goes_away_under_it_charges_no_start(here, queue, sql):
    """Nobody can take the start back before it answers again."""
    seen = []

    @consumer(Placed, name=NAME)
    async def lose(event, delivery):
        seen.append(delivery.attempt)
        if len(seen) == 1:
            await sql.execute("SELECT pg_terminate_backend($1)", await delivery.tx.fetchval("SELECT pg_backend_pid()"))
            await delivery.tx.execute("SELECT 1")

    async with here.consuming(lose, queue.intake()) as attempts:
        queue.put(body("A1"), redelivered=True)
        await here.heard.wait(IntakePaused)
        await here.heard.wait(IntakeResumed)
        assert attempts.starts._owed == set()
        await here.settled(result=DeliveryResult.OK)
    assert (seen, await starts(sql)) == ([1, 1], [])


async def test_maintenance_forgets_starts_of_what_has_not_come_for_a_week(sql, runtime_url):
    now = datetime.now(UTC)
    await died(sql, SYSTEM_CLOCK.new_id(), 2)
    await sql.execute("UPDATE starts SET at = $1 WHERE start = 1", now - timedelta(days=8))
    connection = await asyncpg.connect(runtime_url)
    try:
        done = await Upkeep(connection, "postroad", now=now, remember=timedelta(days=35)).round()
    finally:
        await connection.close()
    assert done.starts == 1
    assert [start for start, _ in await starts(sql)] == [2]


async def test_a_redelivered_handler_still_starts_at_attempt_one(here, queue, sql):
    key = uuid4()
    await died(sql, key, 3)
    async with here.consuming(bill, queue.intake()):
        queue.put(body("A1", identity=key), redelivered=True)
        await here.settled(result=DeliveryResult.OK)
    assert [signal.attempt for signal in here.heard.all(HandlerStarted)] == [1]
