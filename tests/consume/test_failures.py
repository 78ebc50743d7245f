"""Every failure has one class and one place, and a retry is no duplicate."""

from __future__ import annotations

import contextlib
import json

import pytest

from consume.bench import AT_ONCE, Order, body
from consume.kinds import BOTH, DATA_ERRORS, outside
from postroad.clock import seconds
from postroad.consume import consumer, inbox
from postroad.consume.inbox import Mark
from postroad.events import Subscription
from postroad.failures import Drop, OutcomeUnknown, Quarantine, Retry, Rules
from postroad.retry import Backoff
from postroad.signals.catalog import DeliveryDelayed, DeliveryQuarantined, DeliveryResult

Placed = Subscription("orders.order.placed", version=1, model=Order)
pytestmark = pytest.mark.parametrize("kind", BOTH, indirect=True)


class GatewayDown(Exception):
    pass


def failing(error, *, times=1000, **options):
    """A consumer whose handler writes, and then fails the first `times` times."""
    attempts = []

    @consumer(Placed, name="billing.orders", **{"retry": AT_ONCE, **options})
    async def fail(event, delivery):
        attempts.append(delivery.attempt)
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)
        if len(attempts) <= times:
            raise error

    return fail, attempts


async def state(sql):
    work = [tuple(row) for row in await sql.fetch("SELECT state, attempt FROM work")]
    kept = [tuple(row) for row in await sql.fetch("SELECT class, code, attempt FROM quarantine")]
    marks = [row["outcome"] for row in await sql.fetch("SELECT outcome FROM inbox")]
    effects = [row["attempt"] for row in await sql.fetch("SELECT attempt FROM public.effect")]
    return {"work": work, "quarantine": kept, "inbox": marks, "effects": effects}


async def failed_and_retried(here, queue, sql):
    handler, attempts = failing(GatewayDown("x"), times=2)
    async with here.consuming(handler, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.OK)
    return attempts, await state(sql)


async def test_a_failed_handler_is_retried_until_it_succeeds_and_takes_effect_once(here, queue, sql):
    attempts, found = await failed_and_retried(here, queue, sql)
    assert attempts == [1, 2, 3]
    assert found == {"work": [], "quarantine": [], "inbox": ["handled"], "effects": [3]}
    (row,) = await sql.fetch("SELECT outcome, attempt, history FROM finished")
    assert (row["outcome"], row["attempt"]) == ("handled", 3)
    assert [entry["attempt"] for entry in json.loads(row["history"])] == [1, 2]
    assert len(queue.acked) == 1


@pytest.mark.sabotage
async def test_a_failed_event_that_is_marked_handled_is_lost(here, queue, sql, monkeypatch):
    claim = inbox.claim

    def careless(*given, mark, owned, **rest):
        return (yield from claim(*given, mark=mark if owned else Mark.HANDLED, owned=owned, **rest))

    monkeypatch.setattr(inbox, "claim", careless)
    handler, _ = failing(GatewayDown("x"), times=1)
    async with here.consuming(handler, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert (await state(sql))["effects"] == []


async def test_while_it_is_delayed_a_redelivery_is_a_duplicate(here, queue, sql):
    handler, attempts = failing(GatewayDown("x"), retry=Backoff(first=seconds(60), most=seconds(60)))
    twin = body("A1")
    async with here.consuming(handler, queue.intake()):
        queue.put(twin)
        await here.settled(1, result=DeliveryResult.RETRY)
        queue.put(twin)
        await here.settled(1, result=DeliveryResult.DUPLICATE)
    assert attempts == [1]
    assert await state(sql) == {"work": [("scheduled", 1)], "quarantine": [], "inbox": ["delayed"], "effects": []}
    (delayed,) = here.heard.all(DeliveryDelayed)
    assert 30 <= delayed.delay_seconds <= 60


async def test_a_spent_budget_ends_in_quarantine_with_the_last_failure(here, queue, sql):
    handler, attempts = failing(GatewayDown("secret-of-the-payload"), retry=Backoff(first=seconds(0.01), attempts=3))
    async with here.consuming(handler, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    assert attempts == [1, 2, 3]
    found = await state(sql)
    assert found == {"work": [], "quarantine": [("quarantine", "PR507", 3)], "inbox": ["quarantined"], "effects": []}
    reason = await sql.fetchval("SELECT reason FROM quarantine")
    assert "transient" in reason
    assert "GatewayDown" in reason
    assert "secret" not in reason


async def test_a_code_error_is_quarantined_after_three_attempts(here, queue, sql):
    handler, attempts = failing(KeyError("secret"))
    async with here.consuming(handler, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    assert attempts == [1, 2, 3]
    assert (await state(sql))["quarantine"] == [("quarantine", "code", 3)]


@pytest.mark.parametrize(
    ("error", "rules"),
    [(Drop("not ours"), Rules()), (GatewayDown("x"), Rules(drop={GatewayDown: "not ours"}))],
)
async def test_a_drop_is_marked_with_its_reason_and_leaves_no_effect(here, queue, sql, error, rules):
    handler, _ = failing(error, rules=rules)
    async with here.consuming(handler, queue.intake()):
        queue.put(body("A1"))
        (settled,) = await here.settled(1, result=DeliveryResult.DROP)
    assert settled.reason == "not ours"
    assert await sql.fetch("SELECT outcome, reason FROM inbox") == [("dropped", "not ours")]
    assert (await state(sql))["effects"] == []
    assert len(queue.acked) == 1


@pytest.mark.parametrize(
    ("error", "named"), [(Quarantine("a person must look"), "quarantine"), (OutcomeUnknown("paid?"), "outcome_unknown")]
)
async def test_what_must_not_be_repeated_is_quarantined_at_once(here, queue, sql, error, named):
    handler, attempts = failing(error)
    async with here.consuming(handler, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    assert attempts == [1]
    assert (await state(sql))["quarantine"] == [(named, "author", 1)]
    (quarantined,) = here.heard.all(DeliveryQuarantined)
    assert quarantined.reason == error.reason


async def test_retry_after_says_when_but_not_how_often(here, queue, sql):
    handler, attempts = failing(Retry(seconds(0.01)), retry=Backoff(first=seconds(60), most=seconds(60), attempts=3))
    async with here.consuming(handler, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    assert attempts == [1, 2, 3]


async def test_a_handler_over_its_time_limit_is_rolled_back_and_charged(here, queue, sql):
    @consumer(Placed, name="billing.orders", max_runtime=seconds(0.1), retry=Backoff(first=seconds(60)))
    async def sleepy(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ('x', 1, 1)")
        await delivery.tx.execute("SELECT pg_sleep(30)")

    async with here.consuming(sleepy, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
    history = json.loads(await sql.fetchval("SELECT history FROM work"))
    assert history[0]["code"] == "PR506"
    assert await state(sql) == {"work": [("scheduled", 1)], "quarantine": [], "inbox": ["delayed"], "effects": []}


async def test_an_error_in_the_database_that_the_handler_hides_is_not_acked(here, queue, sql):
    @consumer(Placed, name="billing.orders", retry=Backoff(first=seconds(60)))
    async def hide(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ('x', 1, 1)")
        with contextlib.suppress(*DATA_ERRORS):
            await delivery.tx.execute("SELECT 1 / 0")

    async with here.consuming(hide, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
    assert await state(sql) == {"work": [("scheduled", 1)], "quarantine": [], "inbox": ["delayed"], "effects": []}


async def test_a_failure_at_commit_is_the_handlers(here, queue, sql):
    await sql.execute("CREATE TABLE public.parent (id int PRIMARY KEY)")
    await sql.execute(
        "CREATE TABLE public.child (id int REFERENCES public.parent DEFERRABLE INITIALLY DEFERRED);"
        "GRANT ALL ON public.child, public.parent TO pr_runtime"
    )

    @consumer(Placed, name="billing.orders", retry=Backoff(first=seconds(60)))
    async def orphan(event, delivery):
        await delivery.tx.execute("INSERT INTO public.child VALUES (1)")

    async with here.consuming(orphan, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
    assert json.loads(await sql.fetchval("SELECT history FROM work"))[0]["code"] == "23503"


async def test_a_row_that_another_worker_has_by_now_changes_nothing(here, queue, sql):
    attempts, on_our_loop = [], outside()

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def slow(event, delivery):
        attempts.append(delivery.attempt)
        await delivery.tx.execute("INSERT INTO public.effect VALUES ('late', 1, $1)", delivery.attempt)
        if delivery.attempt == 1:
            raise GatewayDown
        if len(attempts) == 2:  # Another worker takes the row over while we run.
            await on_our_loop(sql.execute("UPDATE work SET token = nextval('work_token'), worker = 'worker:other'"))

    async with here.consuming(slow, queue.intake(), retries=True):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.GIVEN_BACK)
    assert (await state(sql))["effects"] == []
    assert (await state(sql))["inbox"] == ["delayed"]


async def test_a_row_whose_workers_died_until_the_budget_was_spent_is_not_run_again(here, queue, sql):
    handler, attempts = failing(GatewayDown("x"), retry=Backoff(first=seconds(0.01), attempts=3))
    async with here.consuming(handler, queue.intake()):
        queue.put(body("A1"))
        await here.settled(1, result=DeliveryResult.RETRY)
    await sql.execute("UPDATE work SET attempt = 3, suspect = 2, state = 'ready'")
    async with here.consuming(handler, queue.intake(), retries=True):
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    assert attempts == [1]
    assert (await state(sql))["quarantine"] == [("quarantine", "PR507", 4)]
    assert "worker died" in await sql.fetchval("SELECT reason FROM quarantine")
