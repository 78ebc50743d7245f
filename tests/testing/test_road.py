"""The harness: what it reads, what it runs, when it stops, and what it says of bad use."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from postroad import App, Backoff, Delivery, consumer, minutes, seconds
from postroad.errors import PostroadError, UsageError
from postroad.testing import BlockingRoad, DeliveryResult, Road, enqueued_on, ledger, letters, published_on
from postroad.testing import trial as trials
from postroad.work.settings import WorkSettings
from testing.shop import (
    CardRefused,
    Gateway,
    Mail,
    OrderBilled,
    OrderPlaced,
    PaymentSeen,
    Unreadable,
    app,
    bill,
    note_payment,
    orders,
    print_mail,
    send_mail,
)
from testing.steps import column, enqueue, place

KEPT = {"migration", "installation", "lease", "inbox_mark", "audit"}
"""What `Road.clear` leaves as it is."""

# --- what is there ----------------------------------------------------------------------------------------------------


async def test_published_gives_events_and_their_envelopes_in_order(road):
    await place(road, "A-1", "A-2")
    first, second = await road.published(OrderPlaced)
    assert (first.event, second.event) == (OrderPlaced(number="A-1"), OrderPlaced(number="A-2"))
    assert (first.key, first.envelope.type, first.envelope.source) == (
        "A-1", "sales.order.placed", "urn:postroad:sales",
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


class Stranger:
    """No `Gateway`, but given in its place."""

    name = "a stranger"


async def test_a_lifespan_is_entered_and_resources_can_stand_in_for_it(own):
    await Road(app, own).deliver(OrderPlaced(number="gateway"), to=bill)
    await Road(app, own, resources=[Gateway("a fake")]).deliver(OrderPlaced(number="gateway"), to=bill)
    await Road(app, own, resources={Gateway: Stranger()}).deliver(OrderPlaced(number="gateway"), to=bill)
    assert await column(Road(app, own), "bill") == ["a fake", "a stranger", "the real one"]


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


async def test_what_a_drain_puts_off_is_never_its_own_to_try_again(own):
    @consumer(OrderPlaced, name="hasty", retry=Backoff(first=seconds(0.01), attempts=9), group=False)
    async def hasty(event: OrderPlaced, delivery: Delivery) -> None:
        if event.number == "refused":
            raise CardRefused
        await delivery.tx.execute("SELECT pg_sleep(1.5)")

    road = Road(App("hasty", publishes=[orders], consumers=[hasty]), own)
    await place(road, "refused", "A-1")
    drained = await road.drain(raises=False)
    assert (drained.deliveries, len(drained.failures)) == ({DeliveryResult.OK: 1, DeliveryResult.RETRY: 1}, 1)


@pytest.mark.sabotage
async def test_with_the_products_own_sweeps_it_depends_on_how_long_a_drain_takes(own, monkeypatch):
    monkeypatch.setattr(trials, "_TIMES", WorkSettings(sweep=seconds(0.2)))
    with pytest.raises(AssertionError):
        await test_what_a_drain_puts_off_is_never_its_own_to_try_again(own)


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


async def test_clear_leaves_no_table_of_a_later_step_out(road):
    await road.drain()
    async with road.transaction() as connection:
        tables = await connection.fetch("""
            SELECT relname FROM pg_class
            WHERE relnamespace = 'postroad'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
            """)
    emptied = set(re.findall(r"\.(\w+)", ledger.QUERIES.text("clear", "postroad")))
    assert {row["relname"] for row in tables} - emptied == KEPT


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
