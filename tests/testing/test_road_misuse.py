"""What the harness says of bad use, and of a drain that cannot come to its end: one line each."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import BaseModel, Field

from postroad import App, Delivery, Dependency, Producer, Rules, consumer
from postroad.asyncpg import within
from postroad.errors import UsageError
from postroad.testing import Road, published_on
from testing.shop import Mail, OrderPlaced, PaymentSeen, bill, never, orders, send_mail
from testing.steps import enqueue, place

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
    with pytest.raises(TimeoutError, match=r"not done within 0.5 s; left: .*1 in slow:deliveries"):
        await road.drain(within=timedelta(seconds=0.5))
