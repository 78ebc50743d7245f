"""What a handler is given, and what its transaction costs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from consume.bench import AT_ONCE, Counted, Order, OrderPlaced, body
from consume.kinds import BOTH, publish
from postroad.clock import SYSTEM_CLOCK
from postroad.consume import consumer
from postroad.events import Subscription
from postroad.events.cause import current_cause
from postroad.signals.catalog import DeliveryResult

Placed = Subscription("orders.order.placed", version=1, model=Order)


class Gateway:
    pass


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_a_delivery_says_what_the_envelope_says(here, queue, sql):
    seen = []
    here.resources[Gateway] = Gateway()

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def look(event, delivery):
        seen.append((event, delivery, delivery.use(Gateway)))

    identity = SYSTEM_CLOCK.new_id()
    async with here.consuming(look, queue.intake()):
        queue.put(body("A1", amount=7, identity=identity, key="k", sequence=3, causation="c-1"), redelivered=True)
        await here.settled()
    ((event, delivery, gateway),) = seen
    assert event == Order(order="A1", amount=7)
    assert gateway is here.resources[Gateway]
    assert delivery.id == str(identity)
    assert delivery.message_key == identity
    assert (delivery.type, delivery.version, delivery.source) == ("orders.order.placed", 1, "urn:postroad:orders")
    assert (delivery.key, delivery.sequence, delivery.attempt, delivery.redelivered) == ("k", 3, 1, True)
    assert (delivery.correlation_id, delivery.causation_id, delivery.consumer) == ("story-1", "c-1", "billing.orders")
    assert delivery.occurred_at <= delivery.recorded_at <= datetime.now(UTC)
    assert "A1" not in repr(delivery)


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_an_object_that_the_app_does_not_have_is_the_codes_fault(here, queue, sql):
    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def look(event, delivery):
        delivery.use(Gateway)

    async with here.consuming(look, queue.intake(), retries=True):
        queue.put(body())
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    assert "lifespan does not yield" in await sql.fetchval("SELECT reason FROM quarantine")


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_a_publish_inherits_its_cause_and_commits_with_the_handler(here, queue, sql):
    identity = SYSTEM_CLOCK.new_id()

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def answer(event, delivery):
        await publish(delivery, OrderPlaced(order=f"{delivery.attempt}", amount=1))
        if delivery.attempt == 1:
            raise ConnectionResetError

    async with here.consuming(answer, queue.intake(), retries=True):
        queue.put(body("A1", identity=identity))
        await here.settled(1, result=DeliveryResult.OK)
        assert current_cause() is None
    (row,) = await sql.fetch("SELECT correlation, causation FROM event")
    assert (row["correlation"], row["causation"]) == ("story-1", str(identity))
    assert await sql.fetchval("SELECT count(*) FROM outbox") == 1


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        (None, ["BEGIN;", "WITH", "UPDATE", "COMMIT;"]),
        ("latest", ["BEGIN;", "WITH", "INSERT", "UPDATE", "COMMIT;"]),
    ],
)
async def test_a_delivery_costs_no_statement_more_than_claim_and_guard(here, queue, sql, order, wanted):
    @consumer(Placed, name="billing.orders", order=order)
    async def one(event, delivery):
        await delivery.tx.execute("UPDATE public.effect SET amount = $1", event.amount)

    counted = Counted(here.manager)
    async with here.consuming(one, queue.intake(), transactions=counted):
        queue.put(body("A1", key="a", sequence=1))
        await here.settled()
    assert counted.statements == wanted


async def test_a_duplicate_costs_one_statement(here, queue, sql):
    @consumer(Placed, name="billing.orders")
    async def one(event, delivery):
        pass

    counted, twin = Counted(here.manager), body()
    async with here.consuming(one, queue.intake(), transactions=counted):
        queue.put(twin)
        queue.put(twin)
        await here.settled(2)
    assert counted.statements == ["BEGIN;", "WITH", "COMMIT;"] * 2
