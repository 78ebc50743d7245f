"""Groups: 32 deliveries in one transaction, of which one fails in every way there is, and costs the others nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import pytest

from consume.bench import AT_ONCE, Counted, Order, body
from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.consume import consumer, gears, group, inbox
from postroad.consume.inbox import Claim
from postroad.events import Subscription
from postroad.failures import Drop, Quarantine
from postroad.signals.catalog import (
    DeliveriesAcked,
    DeliveriesCommitted,
    DeliveryDelayed,
    DeliveryQuarantined,
    DeliveryResult,
    DeliverySettled,
    HandlerStarted,
    IntakePaused,
)
from postroad.sql import asyncpg as hand
from postroad.sql.drive import drive
from postroad.sql.statement import Statement
from postroad.sql.transactions import AsyncpgUnit
from support import until

Placed = Subscription("orders.order.placed", version=1, model=Order)
COUNT = 32
CULPRIT = "13"
UP_TO_IT = 14
INSERT = "INSERT INTO public.effect VALUES ($1, 1, $2)"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """A busy machine is no reason to end a group or to change gears; what is tested here is."""
    monkeypatch.setattr(group, "AGE", seconds(60))
    monkeypatch.setattr(gears, "AGE", seconds(60))
    monkeypatch.setattr(gears, "SLOW_ABOVE", seconds(60))
    monkeypatch.setattr(gears, "FAST_BELOW", seconds(60))
    monkeypatch.setattr(group, "STALLED", seconds(60))
    monkeypatch.setattr(gears, "ABREAST", 1)


@pytest.fixture
def careful(monkeypatch):
    """As after a failure: every member has a savepoint."""
    monkeypatch.setattr(gears.Gears, "optimistic", property(lambda _: False))


@pytest.fixture(params=["optimistic", "careful"])
def mode(request):
    """Groups as they are while nothing has failed, and as they are for a minute after that."""
    if request.param == "careful":
        request.getfixturevalue("careful")
    return request.param


def billing(trouble, *, attempts=1, **given):
    """A consumer with one effect, which has `trouble` after it on the culprit's first attempts."""
    given = {"retry": AT_ONCE, **given}

    @consumer(Placed, name="billing.orders", **given)
    async def bill(event, delivery):
        await delivery.tx.execute(INSERT, event.order, delivery.attempt)
        if event.order == CULPRIT and delivery.attempt <= attempts:
            await trouble(delivery)

    return bill


async def grouped(here, queue, function, *, count=COUNT, ok=COUNT):
    for number in range(count):
        queue.put(body(f"{number}"))
    async with here.consuming(function, queue.intake(), retries=True):
        await here.settled(ok, result=DeliveryResult.OK)
        await until(lambda: len(queue.acked) == count)


async def once_each(sql, *, culprit=2):
    """Every order is once in effect, and the culprit's at its attempt number `culprit`: alone charged."""
    rows = await sql.fetch("SELECT name, attempt FROM public.effect")
    assert sorted(row["name"] for row in rows) == sorted(f"{number}" for number in range(COUNT))
    assert {row["name"]: row["attempt"] for row in rows if row["attempt"] != 1} == (
        {CULPRIT: culprit} if culprit > 1 else {}
    )
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'handled'") == COUNT
    assert await sql.fetchval("SELECT count(*) FROM work") == 0


def started(here, mode="careful", *, before=0):
    """How many handlers ran; `before` of them in an optimistic group, which was rolled back with its first failure."""
    return len(here.heard.all(HandlerStarted)) - (before if mode == "optimistic" else 0)


async def refuses(_):
    raise RuntimeError


async def a_refusal(here, queue, sql, mode="careful"):
    await grouped(here, queue, billing(refuses))
    await once_each(sql)
    assert started(here, mode, before=UP_TO_IT) == COUNT + 1


async def test_a_member_that_fails_costs_the_others_nothing(here, queue, sql, mode):
    await a_refusal(here, queue, sql, mode)
    assert [signal.count for signal in here.heard.all(DeliveriesCommitted)] == [COUNT, 1]
    (delayed,) = here.heard.all(DeliveryDelayed)
    assert delayed.attempt == 1


@pytest.mark.sabotage
async def test_without_savepoints_it_costs_their_effects(here, queue, sql, careful, monkeypatch):
    nothing = Statement("SELECT 1", command=True)
    for name in ("ENTER", "LEAVE", "UNDO"):
        monkeypatch.setattr(group, name, nothing)
    with pytest.raises(AssertionError):
        await a_refusal(here, queue, sql)


@pytest.mark.sabotage
async def test_a_mark_left_as_if_handled_would_lose_the_retry(here, queue, sql, monkeypatch):
    def amend(*_, **__):
        return
        yield

    monkeypatch.setattr(inbox, "amend", amend)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(4):
            await a_refusal(here, queue, sql)


async def test_commit_comes_before_ack_and_both_once_for_the_group(here, queue, sql):
    async def nothing(_):
        pass

    heard = []
    here.signals.subscribe(heard.append)
    await grouped(here, queue, billing(nothing))
    told = [signal for signal in heard if isinstance(signal, DeliveriesCommitted | DeliveriesAcked)]
    assert told == [DeliveriesCommitted("billing.orders", COUNT), DeliveriesAcked("billing.orders", COUNT)]
    [settled] = [signal for signal in heard if isinstance(signal, DeliverySettled)]  # They ended alike, in one turn.
    assert (settled.result, settled.count, len(settled.seconds)) == (DeliveryResult.OK, COUNT, COUNT)


async def test_a_database_error_that_the_handler_hides_fails_its_member(here, queue, sql, mode):
    async def hide(delivery):
        with suppress(asyncpg.DivisionByZeroError):
            await delivery.tx.execute("SELECT 1 / 0")

    await grouped(here, queue, billing(hide))
    await once_each(sql)
    assert started(here, mode, before=UP_TO_IT + 1) == COUNT + 1


@pytest.mark.parametrize(
    ("error", "outcome", "signal"),
    [(Drop("not ours"), "dropped", None), (Quarantine("odd"), "quarantined", DeliveryQuarantined)],
)
async def test_a_member_is_dropped_or_quarantined_in_the_groups_transaction(
    here, queue, sql, mode, error, outcome, signal
):
    async def decide(_):
        raise error

    await grouped(here, queue, billing(decide), ok=COUNT - 1)
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == COUNT - 1
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = $1", outcome) == 1
    assert await sql.fetchval("SELECT count(*) FROM quarantine") == (1 if signal else 0)
    assert len(here.heard.all(DeliveryQuarantined)) == (1 if signal else 0)
    assert [signal.count for signal in here.heard.all(DeliveriesCommitted)] == [COUNT]


async def deferred(sql):
    await sql.execute("""
        CREATE TABLE public.parent (id int PRIMARY KEY);
        CREATE TABLE public.child (id int REFERENCES public.parent DEFERRABLE INITIALLY DEFERRED);
        GRANT ALL ON public.parent, public.child TO pr_runtime;
    """)


async def orphan(delivery):
    await delivery.tx.execute("INSERT INTO public.child VALUES (1)")


async def a_deferred_constraint(here, queue, sql, mode="careful"):
    await deferred(sql)
    await grouped(here, queue, billing(orphan))
    await once_each(sql)
    assert started(here, mode, before=COUNT) == COUNT + 1
    (delayed,) = here.heard.all(DeliveryDelayed)
    assert delayed.error_type == "asyncpg.exceptions.ForeignKeyViolationError"


async def test_a_deferred_constraint_fails_its_member_alone(here, queue, sql, mode):
    await a_deferred_constraint(here, queue, sql, mode)


@pytest.mark.sabotage
async def test_unchecked_a_deferred_constraint_fails_the_commit_and_all_run_again(
    here, queue, sql, careful, monkeypatch
):
    leave = Statement("RELEASE SAVEPOINT postroad_member; SAVEPOINT postroad_member", command=True)
    monkeypatch.setattr(group, "LEAVE", leave)
    with pytest.raises(AssertionError):
        await a_deferred_constraint(here, queue, sql)


async def test_what_a_handler_defers_stays_deferred_until_its_end(here, queue, sql, mode):
    await deferred(sql)

    @consumer(Placed, name="billing.orders")
    async def child_first(event, delivery):
        await delivery.tx.execute("INSERT INTO public.child VALUES ($1)", int(event.order))
        await delivery.tx.execute("INSERT INTO public.parent VALUES ($1)", int(event.order))

    await grouped(here, queue, child_first)
    assert [signal.count for signal in here.heard.all(DeliveriesCommitted)] == [COUNT]
    assert await sql.fetchval("SELECT count(*) FROM public.child") == COUNT


async def test_a_failure_at_commit_is_charged_to_whoever_fails_alone(here, queue, sql, mode):
    async def boom(delivery):  # The rows of a cursor that outlives its transaction are read at its commit.
        await delivery.tx.execute("DECLARE boom CURSOR WITH HOLD FOR SELECT 1 / (amount - 1) FROM public.effect")

    await grouped(here, queue, billing(boom))
    await once_each(sql)
    assert started(here, mode, before=COUNT) == 2 * COUNT + 1
    assert len(here.heard.all(DeliveryDelayed)) == 1


async def test_a_handler_that_kills_its_connection_is_charged_alone(here, queue, sql, mode):
    async def kill(delivery):
        await delivery.tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    await grouped(here, queue, billing(kill))
    await once_each(sql)
    assert here.heard.all(IntakePaused) == []
    assert len(here.heard.all(DeliveryDelayed)) == 1


async def test_a_retry_that_kills_its_connection_again_spends_its_budget(here, queue, sql):
    async def kill(delivery):
        await delivery.tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    for number in range(COUNT):
        queue.put(body(f"{number}"))
    async with here.consuming(billing(kill, attempts=9), queue.intake(), retries=True):
        await here.heard.wait(DeliveryQuarantined)
        await here.settled(COUNT - 1, result=DeliveryResult.OK)
    assert here.heard.all(IntakePaused) == []
    assert await sql.fetchval("SELECT attempt FROM quarantine") == AT_ONCE.attempts


async def commits(delivery):
    await delivery.tx.execute("COMMIT")


async def test_a_handler_that_commits_is_refused_and_charged_alone(here, queue, sql, mode):
    await grouped(here, queue, billing(commits))
    await once_each(sql)
    (delayed,) = here.heard.all(DeliveryDelayed)
    assert delayed.error_type == "postroad.errors.UsageError"
    assert started(here, mode, before=UP_TO_IT) == COUNT + 1


async def a_commit_past_the_guard(here, queue, sql, monkeypatch):
    monkeypatch.setattr(hand, "check", lambda _: None)
    await grouped(here, queue, billing(commits), ok=COUNT - 14)
    rows = await sql.fetch("SELECT name FROM public.effect")
    assert sorted(row["name"] for row in rows) == sorted(f"{number}" for number in range(COUNT))


async def test_a_commit_past_the_guard_loses_and_doubles_nothing(here, queue, sql, mode, monkeypatch):
    await a_commit_past_the_guard(here, queue, sql, monkeypatch)


async def test_not_even_where_the_handler_fails_after_it(here, queue, sql, mode, monkeypatch):
    async def commits_and_fails(delivery):
        await commits(delivery)
        raise RuntimeError

    monkeypatch.setattr(hand, "check", lambda _: None)
    await grouped(here, queue, billing(commits_and_fails), ok=COUNT - 14)
    rows = await sql.fetch("SELECT name FROM public.effect")
    assert sorted(row["name"] for row in rows) == sorted(f"{number}" for number in range(COUNT))


@pytest.mark.sabotage
async def test_a_commit_past_the_guard_would_lose_who_comes_after(here, queue, sql, mode, monkeypatch):
    async def nothing(*_):
        pass

    monkeypatch.setattr(group.Group, "_take_back", nothing)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(4):
            await a_commit_past_the_guard(here, queue, sql, monkeypatch)


async def test_hanging_on_a_row_of_its_own_group_ends_at_the_time_limit_and_is_done_alone(
    here, queue, sql, database, mode
):
    await sql.execute("CREATE TABLE public.hot AS SELECT 1 AS id, 0 AS n; GRANT ALL ON public.hot TO pr_runtime")

    @consumer(Placed, name="billing.orders", retry=AT_ONCE, max_runtime=seconds(0.5))
    async def hang(event, delivery):
        if event.order == "2":
            await delivery.tx.execute("UPDATE public.hot SET n = n + 1")
        if event.order == CULPRIT:
            other = await asyncpg.connect(database)
            try:
                await other.execute("UPDATE public.hot SET n = n + 1")
            finally:
                other.terminate()
        await delivery.tx.execute(INSERT, event.order, delivery.attempt)

    await grouped(here, queue, hang)
    await once_each(sql, culprit=1)
    assert here.heard.all(DeliveryDelayed) == []


async def test_over_its_time_limit_a_member_is_tried_alone_and_then_charged(here, queue, sql, mode):
    async def sleep(_):
        await asyncio.sleep(30)

    await grouped(here, queue, billing(sleep, max_runtime=seconds(0.3)))
    await once_each(sql)
    # With savepoints those before it stay; the others have not run yet.
    assert started(here, mode, before=UP_TO_IT - 1) == COUNT + 2
    assert len(here.heard.all(DeliveryDelayed)) == 1


async def test_a_lock_time_out_ends_the_group_and_charges_nobody(here, queue, sql, mode):
    await sql.execute("CREATE TABLE public.hot AS SELECT 1 AS id, 0 AS n; GRANT ALL ON public.hot TO pr_runtime")

    async def touch(delivery):
        await delivery.tx.execute("UPDATE public.hot SET n = n + 1")

    holder = sql.transaction()
    await holder.start()
    await sql.execute("UPDATE public.hot SET n = 100")
    for number in range(COUNT):
        queue.put(body(f"{number}"))
    async with here.consuming(billing(touch), queue.intake(), retries=True):
        await here.settled(COUNT - 1, result=DeliveryResult.OK)
        await holder.rollback()
        await here.settled(COUNT, result=DeliveryResult.OK)
    await once_each(sql, culprit=1)
    assert started(here, mode, before=UP_TO_IT) == COUNT + 1
    assert await sql.fetchval("SELECT n FROM public.hot") == 1


async def one_id_twice_in_one_group(here, queue, sql):
    async def nothing(_):
        pass

    twin = SYSTEM_CLOCK.new_id()
    for key in ("a", "b"):
        queue.put(body("A1", identity=twin, key=key))
    queue.put(body("B2"))
    async with here.consuming(billing(nothing), queue.intake()):
        await here.settled(3)
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 2
    assert [signal.result for signal in here.heard.all(DeliverySettled)].count(DeliveryResult.DUPLICATE) == 1


async def test_the_same_id_twice_in_one_group_is_once_in_effect(here, queue, sql):
    await one_id_twice_in_one_group(here, queue, sql)


@pytest.mark.sabotage
async def test_a_group_that_held_an_id_twice_would_double_its_effect(here, queue, sql, monkeypatch):
    monkeypatch.setattr(group, "_distinct", lambda arrivals: (arrivals, []))
    with pytest.raises(AssertionError):
        await one_id_twice_in_one_group(here, queue, sql)


async def held_elsewhere(here, there, queue, sql):
    """Another process has a group of the same messages open, in another order; one more comes here beside them."""
    entered, go = asyncio.Event(), asyncio.Event()

    @consumer(Placed, name="billing.orders")
    async def slow(event, delivery):
        await delivery.tx.execute(INSERT, event.order, delivery.attempt)
        entered.set()
        await go.wait()

    @consumer(Placed, name="billing.orders")
    async def quick(event, delivery):
        await delivery.tx.execute(INSERT, event.order, delivery.attempt)

    twins, other = [body(f"{number}") for number in range(COUNT - 1)], type(queue)()
    for twin in twins:
        other.put(twin)
    async with there.consuming(slow, other.intake()):
        await entered.wait()
        for twin in [*reversed(twins), body(f"{COUNT - 1}")]:
            queue.put(twin)
        try:
            async with here.consuming(quick, queue.intake()):
                await here.heard.wait(DeliverySettled, within=3)
                go.set()
                await asyncio.gather(here.settled(COUNT), there.settled(COUNT - 1))
        finally:
            go.set()
    await once_each(sql, culprit=1)
    assert [*here.heard.all(DeliveryDelayed), *there.heard.all(DeliveryDelayed)] == []


async def test_groups_in_two_processes_with_the_same_keys_do_not_wait_for_each_other(here, there, queue, sql):
    await held_elsewhere(here, there, queue, sql)


@pytest.mark.sabotage
async def test_a_claim_without_the_try_would_wait(here, there, queue, sql, careful, monkeypatch):
    monkeypatch.setitem(
        inbox.QUERIES._rendered, ("claim_many", "postroad"),
        inbox.QUERIES.text("claim_many", "postroad")
        .replace("pg_try_advisory_xact_lock(hashtextextended($1::text || ':' || wanted.key::text, 0))", "true")
        .replace("set_config('lock_timeout', $3::text, true)", "$3::text"),
    )  # fmt: skip
    with pytest.raises(TimeoutError):
        await held_elsewhere(here, there, queue, sql)


async def test_hot_rows_in_two_processes_charge_nobody(here, there, queue, sql):
    await sql.execute("""
        CREATE TABLE public.hot AS SELECT generate_series(0, 15) AS id, 0 AS n;
        GRANT ALL ON public.hot TO pr_runtime;
    """)

    @consumer(Placed, name="billing.orders")
    async def count(event, delivery):
        await delivery.tx.execute("UPDATE public.hot SET n = n + 1 WHERE id = $1", event.amount * 7 % 16)

    other, most = type(queue)(), 300
    for number in range(most):
        queue.put(body(f"a{number}", amount=number))
        other.put(body(f"b{number}", amount=-number))
    async with here.consuming(count, queue.intake()), there.consuming(count, other.intake()):
        await asyncio.gather(here.settled(most), there.settled(most))
    assert await sql.fetchval("SELECT sum(n) FROM public.hot") == 2 * most
    results = {signal.result for each in (here, there) for signal in each.heard.all(DeliverySettled)}
    assert results == {DeliveryResult.OK}


async def test_several_groups_are_open_at_once_and_one_that_waits_holds_up_only_itself(here, queue, sql, monkeypatch):
    monkeypatch.setattr(gears, "ABREAST", 4)
    go = asyncio.Event()

    @consumer(Placed, name="billing.orders")
    async def one(event, delivery):
        await delivery.tx.execute(INSERT, event.order, delivery.attempt)
        if int(event.order) % COUNT == 0 and event.order != "0":
            await go.wait()

    for number in range(4 * COUNT):
        queue.put(body(f"{number}"))
    async with here.consuming(one, queue.intake(prefetch=4 * COUNT)):
        await here.settled(COUNT)
        await until(lambda: started(here) == COUNT + 3)
        go.set()
        await here.settled(4 * COUNT)
    assert [signal.count for signal in here.heard.all(DeliveriesCommitted)] == [COUNT] * 4


async def groups_in_each_others_way(here, queue, sql):
    """Four groups at once, of handlers that touch the same rows in another order each."""
    await sql.execute("""
        CREATE TABLE public.hot AS SELECT generate_series(0, 15) AS id, 0 AS n;
        GRANT ALL ON public.hot TO pr_runtime;
    """)

    @consumer(Placed, name="billing.orders")
    async def count(event, delivery):
        await delivery.tx.execute("UPDATE public.hot SET n = n + 1 WHERE id = $1", hash(event.order) % 16)

    most = 30 * COUNT
    for number in range(most):
        queue.put(body(f"{number}"))
    async with here.consuming(count, queue.intake(prefetch=256)) as attempts:
        await here.settled(most, result=DeliveryResult.OK)
        assert attempts.gears.fast
    assert await sql.fetchval("SELECT sum(n) FROM public.hot") == most
    assert {signal.result for signal in here.heard.all(DeliverySettled)} == {DeliveryResult.OK}
    assert started(here) <= most + 4 * COUNT


async def test_groups_that_get_in_each_others_way_go_one_by_one_and_charge_nobody(here, queue, sql, monkeypatch):
    monkeypatch.setattr(gears, "ABREAST", 4)
    await groups_in_each_others_way(here, queue, sql)


@pytest.mark.sabotage
async def test_groups_that_went_on_abreast_would_run_most_handlers_in_vain(here, queue, sql, monkeypatch):
    monkeypatch.setattr(gears, "ABREAST", 4)
    monkeypatch.setattr(gears.Gears, "collided", lambda _: None)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(8):
            await groups_in_each_others_way(here, queue, sql)


async def test_a_stop_gives_back_what_open_groups_hold(here, queue, sql, monkeypatch):
    monkeypatch.setattr(gears, "ABREAST", 4)
    go = asyncio.Event()

    @consumer(Placed, name="billing.orders")
    async def wait(event, delivery):
        await go.wait()

    for number in range(4 * COUNT):
        queue.put(body(f"{number}"))
    async with here.consuming(wait, queue.intake(prefetch=4 * COUNT)):
        await until(lambda: started(here) == 4)
    assert queue.given_back + len(queue.acked) == 4 * COUNT
    assert queue.acked == []


async def test_a_group_that_is_cancelled_before_it_began_gives_its_deliveries_back(here, queue, sql, monkeypatch):
    async def broken(_):
        raise LookupError

    async def nothing(_):
        pass

    monkeypatch.setattr(group, "_some", broken)
    for number in range(2 * COUNT):
        queue.put(body(f"{number}"))
    with pytest.raises(LookupError):
        async with here.consuming(billing(nothing), queue.intake()):
            await until(lambda: queue.given_back == 2 * COUNT)
    assert started(here) == 0


async def one_that_hangs(here, queue, sql):
    async def hangs(_):
        await asyncio.Event().wait()

    for number in range(COUNT):
        queue.put(body(f"{number}"))
    async with here.consuming(billing(hangs, max_runtime=seconds(4)), queue.intake(), retries=True):
        async with asyncio.timeout(3):
            await here.settled(COUNT - 1, result=DeliveryResult.OK)
        assert here.heard.all(DeliveryDelayed) == []
        await here.settled(COUNT, result=DeliveryResult.OK)
    await once_each(sql)


async def test_a_member_that_hangs_keeps_the_others_waiting_for_a_moment_only(here, queue, sql, mode, monkeypatch):
    monkeypatch.setattr(group, "STALLED", seconds(0.3))
    await one_that_hangs(here, queue, sql)


@pytest.mark.sabotage
async def test_without_that_patience_they_would_wait_for_its_time_limit(here, queue, sql):
    with pytest.raises(TimeoutError):
        await one_that_hangs(here, queue, sql)


@pytest.mark.parametrize("waits", ["a group", "a slot"])
async def test_what_waits_for_a_seat_while_the_service_stops_goes_back(here, queue, sql, waits):
    go, begun = asyncio.Event(), []

    @consumer(Placed, name="billing.orders", concurrency=1)
    async def hold(event, delivery):
        begun.append(event.order)
        await go.wait()

    async with here.consuming(hold, queue.intake()):
        queue.put(body("first"), redelivered=waits == "a group")
        await until(lambda: begun == ["first"])
        for number in range(8):
            queue.put(body(f"{number}"), redelivered=waits == "a slot")
        await until(lambda: here.service._lanes._ready.empty() and not here.service._lanes._group)
        await until(lambda: here.service._owed == 9)
        here.stop.set()
        await until(lambda: not here.service._open)
        go.set()
        await asyncio.wait_for(here.run, 5)
    assert begun == ["first"]
    assert queue.given_back == 8
    assert len(queue.acked) == 1


async def test_an_error_of_ours_in_a_group_ends_the_service_at_once(here, queue, sql, monkeypatch):
    async def broken(*_, **__):
        raise LookupError

    async def nothing(_):
        pass

    monkeypatch.setattr(gears, "ABREAST", 4)
    monkeypatch.setattr(group.Group, "settle", broken)
    for number in range(COUNT):
        queue.put(body(f"{number}"))
    done = []
    with pytest.raises(LookupError):
        async with here.consuming(billing(nothing), queue.intake()):
            done, _ = await asyncio.wait([here.run], timeout=5)
    assert len(done) == 1
    assert queue.given_back >= COUNT
    assert started(here) == 0


async def a_savepoint_left_open(here, queue, sql):
    async def once(delivery):
        await delivery.tx.execute("ROLLBACK TO SAVEPOINT of_another")

    good = billing(once)

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def bill(event, delivery):
        await good(event, delivery)
        if event.order == "3":
            await delivery.tx.execute("SAVEPOINT of_another")

    await grouped(here, queue, bill)
    await once_each(sql)


async def test_a_savepoint_that_a_member_leaves_is_out_of_the_others_reach(here, queue, sql, mode):
    await a_savepoint_left_open(here, queue, sql)


@pytest.mark.sabotage
async def test_a_savepoint_in_their_reach_would_undo_what_lies_between(here, queue, sql, monkeypatch):
    monkeypatch.setattr(AsyncpgUnit, "entangled", False)
    with pytest.raises(AssertionError):
        await a_savepoint_left_open(here, queue, sql)


async def test_savepoints_of_the_driver_leave_groups_as_they_are(here, queue, sql):
    async def nested(delivery):
        async with delivery.tx.transaction():
            await delivery.tx.execute("SELECT 1")

    await grouped(here, queue, billing(nested))
    assert started(here) == COUNT


@pytest.mark.parametrize("how", ["redelivered", "opted out"])
async def test_some_deliveries_never_join_a_group(here, queue, sql, how):
    async def nothing(_):
        pass

    for number in range(8):
        queue.put(body(f"{number}"), redelivered=how == "redelivered")
    async with here.consuming(billing(nothing, group=how != "opted out"), queue.intake()):
        await here.settled(8)
    assert [signal.count for signal in here.heard.all(DeliveriesCommitted)] == [1] * 8


async def test_an_old_group_commits_and_the_rest_goes_on_in_the_next(here, queue, sql, monkeypatch):
    monkeypatch.setattr(group, "AGE", seconds(0.05))

    async def slower(_):
        await asyncio.sleep(0.06)

    await grouped(here, queue, billing(slower))
    await once_each(sql, culprit=1)
    counts = [signal.count for signal in here.heard.all(DeliveriesCommitted)]
    assert len(counts) >= 2
    assert sum(counts) == COUNT
    assert started(here) == COUNT


async def test_duplicates_in_a_group_are_known_at_once(here, queue, sql):
    async def nothing(_):
        pass

    twins = [body(f"{number}") for number in range(COUNT)]
    bill = billing(nothing)
    for many in (twins[:20], twins):
        for twin in many:
            queue.put(twin)
        async with here.consuming(bill, queue.intake()):
            await until(lambda many=many: len(queue.acked) >= len(many))
    await once_each(sql, culprit=1)
    assert [signal.count for signal in here.heard.all(DeliveriesCommitted)] == [20, COUNT - 20]


@pytest.mark.parametrize(("gear", "each", "per_commit"), [("optimistic", 1, 3), ("careful", 2, 4), ("slow", 4, 0)])
async def test_the_round_trips_of_a_thousand_deliveries(here, queue, sql, request, gear, each, per_commit):
    count = 1000
    if gear == "careful":
        request.getfixturevalue("careful")

    @consumer(Placed, name="billing.orders", group=gear != "slow")
    async def one(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, 1)", event.order)

    for number in range(count):
        queue.put(body(f"{number}"))
    counted = Counted(here.manager)
    async with here.consuming(one, queue.intake(), transactions=counted):
        await here.settled(count)
    commits = [signal.count for signal in here.heard.all(DeliveriesCommitted)]
    lone = commits.count(1) if gear != "slow" else 0  # A lone delivery has a transaction as in the slow gear.
    types = 6 if gear != "slow" else 0  # The driver asks once per connection (of two) what an array of UUIDs is.
    saved = each + per_commit - 4
    assert len(counted.statements) == each * count + per_commit * len(commits) - saved * lone + types
    if gear != "slow":
        assert len(commits) <= 2 * count / COUNT


async def test_with_order_a_stale_member_is_dropped_in_the_group(here, queue, sql):
    async def nothing(_):
        pass

    for number in range(8):
        queue.put(body(f"{number}", key=f"k{number}", sequence=5))
    for number in range(8):
        queue.put(body(f"{number}", key=f"k{number}", sequence=5 + (-1) ** number))
    async with here.consuming(billing(nothing, order="latest"), queue.intake()):
        await here.settled(12, result=DeliveryResult.OK)
        await here.settled(4, result=DeliveryResult.DROP)
    assert await sql.fetchval("SELECT count(*) FROM inbox WHERE outcome = 'dropped' AND reason = 'stale sequence'") == 4


def test_a_claim_of_many_says_what_it_found_of_each():
    keys = sorted(SYSTEM_CLOCK.new_id() for _ in range(4))
    pipeline = inbox.claim_many("postroad", "c", keys[::-1], patience=seconds(0.02))
    statement = next(pipeline)
    assert statement.args == ("c", keys, "20ms")
    rows = [
        {"key": keys[1], "had": True, "standing": None},
        {"key": keys[2], "had": False, "standing": None},
        {"key": keys[3], "had": False, "standing": "handled"},
    ]
    with pytest.raises(StopIteration) as end:
        pipeline.send(rows)
    assert end.value.value == dict(zip(keys[1:], [Claim.DUPLICATE, Claim.BUSY, Claim.DUPLICATE], strict=True))


async def test_a_claim_of_many_names_what_is_not_fresh_and_sets_the_patience_in_any_case(here, sql):
    keys = sorted(SYSTEM_CLOCK.new_id() for _ in range(3))
    again = dict.fromkeys(keys, Claim.DUPLICATE)
    for claimed, found in (([keys[1]], {}), (keys, {keys[1]: Claim.DUPLICATE}), (keys, again)):
        async with here.manager.transaction() as connection:
            claim = inbox.claim_many("postroad", "c", claimed, patience=seconds(0.02))
            assert await drive(claim, hand.AsyncpgHand(connection)) == found
            assert await connection.fetchval("SHOW lock_timeout") == "20ms"
    assert await sql.fetchval("SELECT count(*) FROM inbox") == 3
