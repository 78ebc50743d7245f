"""The harness: what it reads, what it runs, when it stops, and what it says of bad use."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pydantic import BaseModel, Field

from postroad import App, Delivery, Dependency, Producer, Rules, consumer, minutes
from postroad.asyncpg import within
from postroad.errors import PostroadError, UsageError
from postroad.testing import BlockingRoad, DeliveryResult, Road, enqueued_on, ledger, letters, published_on
from postroad.testing import trial as trials
from testing.shop import (
    TABLES,
    CardRefused,
    Gateway,
    Mail,
    OrderBilled,
    OrderPlaced,
    PaymentSeen,
    Unreadable,
    app,
    bill,
    never,
    note_payment,
    orders,
    print_mail,
    send_mail,
)

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres


@pytest.fixture
def own(database: str, postgres: Postgres) -> str:
    postgres.execute(TABLES, database=database.rpartition("/")[2])
    return database


@pytest.fixture
def road(own: str) -> Road:
    return Road(app, own)


async def place(road: Road, *numbers: str) -> None:
    async with road.transaction() as tx:
        for number in numbers:
            await within(tx).publish(OrderPlaced(number=number), key=number)


async def enqueue(road: Road, job, receiver: str, **options) -> None:
    async with road.transaction() as tx:
        await within(tx).enqueue(job, Mail(receiver=receiver), **options)


async def column(road: Road, table: str) -> list[str]:
    async with road.transaction() as tx:
        return [row[0] for row in await tx.fetch(f"SELECT * FROM {table} ORDER BY 1")]


# --- what is there ----------------------------------------------------------------------------------------------------


async def test_published_gives_events_and_their_envelopes_in_order(road):
    await place(road, "A-1", "A-2")
    first, second = await road.published(OrderPlaced)
    assert (first.event, second.event) == (OrderPlaced(number="A-1"), OrderPlaced(number="A-2"))
    assert (first.key, first.envelope.type, first.envelope.source) == (
        "A-1", "orders.order.placed", "urn:postroad:orders",
    )  # fmt: skip
    assert await road.published(OrderBilled) == []


async def test_enqueued_gives_requests_and_their_options(road):
    run_at = datetime(2031, 5, 1, tzinfo=UTC)
    await enqueue(road, send_mail, "Ada", run_at=run_at, unique="mail:Ada", priority=3)
    [waiting] = await road.enqueued(send_mail)
    assert (waiting.request, waiting.run_at, waiting.key, waiting.priority) == (
        Mail(receiver="Ada"), run_at, "mail:Ada", 3,
    )  # fmt: skip
    assert await road.enqueued(print_mail) == []


async def test_what_is_not_committed_is_seen_on_its_own_connection_only(own):
    psycopg = pytest.importorskip("psycopg")
    from postroad.psycopg import within as door

    road = Road(app, own)
    with psycopg.connect(own) as connection:
        door(connection).publish(OrderPlaced(number="A-1"))
        door(connection).enqueue(send_mail, Mail(receiver="Ada"))
        assert [one.event.number for one in published_on(connection, OrderPlaced)] == ["A-1"]
        assert [one.request.receiver for one in enqueued_on(connection, send_mail)] == ["Ada"]
        assert await road.published(OrderPlaced) == []
        connection.rollback()


# --- drain ------------------------------------------------------------------------------------------------------------


async def test_drain_runs_everything_that_follows_to_its_end(road):
    await place(road, *(f"A-{number}" for number in range(20)))
    drained = await road.drain()
    assert (drained.deliveries[DeliveryResult.OK], drained.jobs, drained.failures) == (20, 20, ())
    assert len(await column(road, "bill")) == len(await column(road, "mail")) == 20
    assert len(await road.published(OrderBilled)) == 20
    assert await road.enqueued(send_mail) == []
    assert (await road.drain()).jobs == 0


@pytest.mark.sabotage
async def test_a_drain_that_looks_at_the_outbox_alone_leaves_work(road, monkeypatch):
    real = trials.Trial._waiting

    async def outbox_alone(self):
        left = await real(self)
        return {queue: count for queue, count in left.items() if queue == "outbox"}

    monkeypatch.setattr(trials.Trial, "_waiting", outbox_alone)
    with pytest.raises((AssertionError, UsageError)):
        await test_drain_runs_everything_that_follows_to_its_end(road)


async def test_drain_runs_def_handlers_and_def_jobs(road):
    await enqueue(road, print_mail, "Ada")
    await road.deliver(PaymentSeen(number="P-1"), to=note_payment)
    assert (await road.drain()).jobs == 1
    assert (await column(road, "paid"), await column(road, "mail")) == (["P-1"], ["printed for Ada"])


async def test_nothing_runs_between_two_calls(road):
    await place(road, "A-1")
    await road.drain()
    await place(road, "A-2")
    assert [one.event.number for one in await road.published(OrderPlaced)] == ["A-1", "A-2"]
    assert await column(road, "bill") == ["A-1"]


async def test_drain_raises_what_a_handler_raised_and_says_what_became_of_it(road):
    await place(road, "refused", "A-1")
    with pytest.raises(CardRefused, match="the card was refused") as caught:
        await road.drain()
    assert any("billing failed and was delayed by 30 s" in note for note in caught.value.__notes__)
    assert await column(road, "bill") == ["A-1"]


async def test_drain_raises_several_errors_as_one_group(road):
    await place(road, "refused", "unreadable")
    await enqueue(road, send_mail, "broken")
    with pytest.raises(ExceptionGroup, match="3 deliveries or jobs failed") as caught:
        await road.drain()
    assert sorted(type(error).__name__ for error in caught.value.exceptions) == [
        "CardRefused", "Unreadable", "Unreadable",
    ]  # fmt: skip


async def test_drain_tells_of_failures_where_it_is_not_to_raise(road):
    await place(road, "refused")
    [failure] = (await road.drain(raises=False)).failures
    assert (failure.name, failure.became) == ("billing", "delayed by 30 s")
    assert isinstance(failure.error, CardRefused)


async def test_a_job_that_asks_for_time_has_not_failed(road):
    await enqueue(road, send_mail, "later")
    assert (await road.drain()).failures == ()
    [waiting] = await road.enqueued(send_mail)
    assert waiting.state == "scheduled"


async def test_events_for_other_apps_leave_by_the_road_and_trouble_nobody(own):
    road = Road(App("orders", publishes=[orders], jobs=[send_mail]), own)
    await place(road, "A-1")
    await road.drain()
    async with road.transaction() as tx:
        assert await tx.fetchval("SELECT count(*) FROM postroad.outbox") == 0
        assert await tx.fetchval("SELECT count(*) FROM postroad.work") == 0


@pytest.mark.sabotage
async def test_without_the_stand_in_for_other_apps_such_an_event_is_returned(own, monkeypatch):
    async def nobody(self):
        return None

    monkeypatch.setattr(trials.Trial, "_listen", nobody)
    with pytest.raises(UsageError, match="was not dispatched"):
        await test_events_for_other_apps_leave_by_the_road_and_trouble_nobody(own)


async def test_a_lifespan_is_entered_and_resources_can_stand_in_for_it(own):
    await Road(app, own).deliver(OrderPlaced(number="gateway"), to=bill)
    await Road(app, own, resources=[Gateway("a fake")]).deliver(OrderPlaced(number="gateway"), to=bill)
    assert await column(Road(app, own), "bill") == ["a fake", "the real one"]


async def test_drain_works_beside_the_app_inside_a_web_server(road, own, monkeypatch):
    monkeypatch.setenv("POSTROAD_DATABASE_URL", own)
    async with app:
        await place(road, "A-1")
        await road.drain()
        assert await column(road, "bill") == ["A-1"]


# --- deliver ----------------------------------------------------------------------------------------------------------


async def test_an_event_that_is_delivered_twice_is_handled_once(road):
    results = await road.deliver(OrderPlaced(number="A-1"), to=bill, twice=True)
    assert results == [DeliveryResult.OK, DeliveryResult.DUPLICATE]
    assert await column(road, "bill") == ["A-1"]
    assert [one.event.number for one in await road.published(OrderBilled)] == ["A-1"]
    assert len(await road.enqueued(send_mail)) == 1, "what the handler left is not run"


@pytest.mark.sabotage
async def test_a_second_copy_under_another_identity_takes_effect_again(road, monkeypatch):
    real = trials.send

    def renamed(schema, batch):
        return real(schema, [letters.letter(OrderPlaced(number="A-1"), app.declarations.consumers[0],
                                            identity=uuid4(), now=datetime.now(UTC))])  # fmt: skip

    monkeypatch.setattr(trials, "send", renamed)
    with pytest.raises(AssertionError):
        await test_an_event_that_is_delivered_twice_is_handled_once(road)


async def test_a_foreign_event_and_the_bytes_of_an_envelope_can_be_delivered(road):
    assert await road.deliver(PaymentSeen(number="P-1"), to=note_payment) == [DeliveryResult.OK]
    envelope = {
        "specversion": "1.0", "id": str(uuid4()), "source": "urn:postroad:payments", "time": "2026-01-01T00:00:00Z",
        "type": "payments.payment.settled", "schemaversion": 2, "recordedtime": datetime.now(UTC).isoformat(),
        "datacontenttype": "application/json", "data": {"number": "P-2", "amount": 7},
    }  # fmt: skip
    assert await road.deliver(json.dumps(envelope).encode(), to=note_payment) == [DeliveryResult.OK]
    assert await column(road, "paid") == ["P-1", "P-2"]


async def test_an_event_that_the_consumer_cannot_read_is_quarantined_with_its_code(road):
    envelope = {
        "specversion": "1.0", "id": str(uuid4()), "source": "urn:postroad:payments", "time": "2026-01-01T00:00:00Z",
        "type": "payments.payment.settled", "schemaversion": 9, "datacontenttype": "application/json",
        "recordedtime": datetime.now(UTC).isoformat(), "data": {"number": "P-2"},
    }  # fmt: skip
    with pytest.raises(PostroadError, match="PR503"):
        await road.deliver(json.dumps(envelope).encode(), to=note_payment)
    [kept] = await road.quarantined(note_payment)
    assert (kept.code, kept.payload) == ("PR503", None)


async def test_deliver_raises_what_a_def_handler_raised(road):
    with pytest.raises(CardRefused):
        await road.deliver(PaymentSeen(number="refused"), to=note_payment)


# --- time and quarantine ----------------------------------------------------------------------------------------------


async def test_a_retry_runs_once_its_delay_has_passed_and_not_before(road):
    await place(road, "refused")
    await road.drain(raises=False)
    await road.advance(seconds=20)
    assert (await road.drain()).failures == ()
    await road.advance(seconds=10)
    [failure] = (await road.drain(raises=False)).failures
    assert failure.became == "quarantined"
    [kept] = await road.quarantined(bill)
    assert (kept.payload, kept.error_type, kept.attempt) == (
        OrderPlaced(number="refused"),
        "testing.shop.CardRefused",
        2,
    )


@pytest.mark.sabotage
async def test_without_the_shift_of_times_no_retry_runs(road, monkeypatch):
    def nothing(schema, by):
        yield from ()

    monkeypatch.setattr(ledger, "advance", nothing)
    with pytest.raises(ValueError, match="not enough values"):
        await test_a_retry_runs_once_its_delay_has_passed_and_not_before(road)


async def test_a_job_for_later_runs_when_time_has_passed(road):
    async with road.transaction() as tx:
        now = await tx.fetchval("SELECT now()")
    await enqueue(road, send_mail, "Ada", run_at=now + minutes(10))
    assert (await road.drain()).jobs == 0
    await road.advance(minutes=10)
    assert (await road.drain()).jobs == 1
    assert await column(road, "mail") == ["Ada"]


async def test_a_retry_is_too_old_once_its_budget_of_age_has_passed(road):
    await place(road, "refused")
    await road.drain(raises=False)
    await road.advance(days=2)
    await road.drain(raises=False)
    [kept] = await road.quarantined(bill)
    assert kept.code == "PR507"


async def test_a_quarantined_job_gives_its_request(road):
    await enqueue(road, send_mail, "broken")
    with pytest.raises(Unreadable):
        await road.drain()
    await road.advance(days=2)
    with pytest.raises(Unreadable):
        await road.drain()
    [kept] = await road.quarantined(send_mail)
    assert kept.payload == Mail(receiver="broken")
    assert await road.quarantined(print_mail) == []


async def test_clear_empties_what_tests_leave_behind(road):
    await place(road, "A-1", "unreadable")
    await road.drain(raises=False)
    await road.clear()
    assert (await road.published(OrderPlaced), await road.quarantined(bill)) == ([], [])
    await place(road, "A-2")
    await road.drain()
    assert await column(road, "bill") == ["A-1", "A-2"], "the author's own tables are the author's"


# --- def tests --------------------------------------------------------------------------------------------------------


def test_the_blocking_road_does_the_same(own):
    from postroad.psycopg import within as door

    road = BlockingRoad(app, own)
    with road.transaction() as tx:
        door(tx).publish(OrderPlaced(number="A-1"))
        door(tx).enqueue(print_mail, Mail(receiver="Ada"))
    assert [one.event.number for one in road.published(OrderPlaced)] == ["A-1"]
    assert [one.request.receiver for one in road.enqueued(print_mail)] == ["Ada"]
    assert road.drain().jobs == 2
    assert road.deliver(OrderPlaced(number="A-2"), to=bill, twice=True)[1] is DeliveryResult.DUPLICATE
    with pytest.raises(CardRefused):
        road.deliver(OrderPlaced(number="refused"), to=bill)
    road.advance(minutes=1)
    road.drain(raises=False)
    assert len(road.quarantined(bill)) == 1
    road.clear()
    assert road.quarantined(bill) == []


async def test_the_blocking_road_refuses_a_running_loop(own):
    with pytest.raises(UsageError, match="await the fixture `road`"):
        BlockingRoad(app, own).drain()


# --- bad use ----------------------------------------------------------------------------------------------------------

others = Producer("others")


@others.event("thing.seen", version=1)
class ThingSeen(BaseModel):
    """A thing was seen."""

    name: str = Field(description="its name")


async def test_a_drain_with_nothing_to_run_is_refused(own):
    with pytest.raises(UsageError, match="has neither consumers nor jobs"):
        await Road(App("orders", publishes=[orders]), own).drain()


async def test_an_event_that_the_app_does_not_publish_is_refused(road):
    with pytest.raises(UsageError, match=r"does not publish others.thing.seen v1; add its producer"):
        await road.published(ThingSeen)
    with pytest.raises(UsageError, match="PR109"):
        await road.published(Mail)


async def test_a_staged_event_of_a_producer_that_the_app_does_not_publish_is_told(road):
    async with road.transaction() as tx:
        await within(tx).publish(ThingSeen(name="A"))
    with pytest.raises(UsageError, match=r"'others.thing.seen' was not dispatched .*; add its producer to publishes"):
        await road.drain()


async def test_a_job_that_nobody_runs_is_told(road):
    await enqueue(road, never, "Ada")
    with pytest.raises(UsageError, match=r"job 'mail.never' waits in queue 'mail.never'.*; add it to jobs"):
        await road.drain()


async def test_an_event_that_the_consumer_does_not_read_is_refused(road):
    with pytest.raises(UsageError, match="consumer 'billing' does not read PaymentSeen; it reads OrderPlaced"):
        await road.deliver(PaymentSeen(number="P-1"), to=bill)
    with pytest.raises(UsageError, match=r"does not read OrderPlaced \(the class itself\)"):
        await road.deliver(OrderPlaced, to=bill)


async def test_a_function_that_is_none_of_the_apps_is_refused(road):
    with pytest.raises(UsageError, match="is no consumer of App"):
        await road.deliver(OrderPlaced(number="A-1"), to=send_mail)
    with pytest.raises(UsageError, match="never is no consumer or job of App"):
        await road.quarantined(never)


async def test_time_passes_forwards_only(road):
    with pytest.raises(UsageError, match="time only passes"):
        await road.advance(minutes=-1)
    with pytest.raises(UsageError, match="time only passes"):
        await road.advance()


def test_a_loop_that_is_not_asyncios_is_refused(road):
    with pytest.raises(UsageError, match="runs on asyncio"):
        road.drain().send(None)


def test_a_road_leads_through_an_app(own):
    with pytest.raises(UsageError, match="through an App, not str"):
        Road("shop.main:app", own)


def test_a_connection_without_a_cursor_is_refused():
    with pytest.raises(UsageError, match="object has no cursor"):
        published_on(object(), OrderPlaced)


class GatewayDown(Exception):
    pass


async def answers(use) -> None:
    raise GatewayDown


async def test_a_dependency_that_is_away_ends_a_drain_with_its_name(own):
    @consumer(OrderPlaced, name="paying", rules=Rules(down={GatewayDown: Dependency("gateway", check=answers)}))
    async def pay(event: OrderPlaced, delivery: Delivery) -> None:
        raise GatewayDown

    road = Road(App("paying", publishes=[orders], consumers=[pay]), own)
    await place(road, "A-1")
    with pytest.raises(UsageError, match="drain: paying waits for gateway"):
        await road.drain()


async def test_a_drain_that_does_not_come_to_its_end_says_what_is_left(own):
    @consumer(OrderPlaced, name="slow")
    async def slow(event: OrderPlaced, delivery: Delivery) -> None:
        await delivery.tx.execute("SELECT pg_sleep(3)")

    road = Road(App("slow", publishes=[orders], consumers=[slow]), own)
    await place(road, "A-1")
    with pytest.raises(TimeoutError, match=r"not done within 0.5 s; left: 1 in slow:deliveries"):
        await road.drain(within=timedelta(seconds=0.5))
