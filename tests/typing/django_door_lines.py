"""Lines at the Django door that must type-check, and lines (marked with their error code) that must not."""

from __future__ import annotations

from datetime import date
from typing import assert_type
from uuid import UUID

from pydantic import BaseModel

from postroad import BlockingRun, Delivery, Producer, consumer, job
from postroad.django import Atomic, Enqueue, Enqueued, Publish, Within, within

flights = Producer("typed")


@flights.event("flight.landed", version=1)
class Landed(BaseModel):
    """A flight landed."""

    number: int


@flights.event("flight.departed", version=1)
class Departed(BaseModel):
    """A flight departed."""

    number: int


@job("reports.print", on=Atomic())
def print_it(request: Landed, run: BlockingRun[Within]) -> None:
    with run.transaction() as block:
        assert_type(block, Within)


@job("reports.print", on=Atomic(using="reports"))  # E: arg-type
def print_elsewhere(request: Landed, run: BlockingRun[str]) -> None: ...


@consumer(Landed, name="one", on=Atomic())
def one(event: Landed, delivery: Delivery[Within]) -> None:
    assert_type(delivery.tx.publish(Departed(number=event.number)), UUID)


@consumer(Landed, Departed, name="two", on=Atomic(using="reports"))
def two(event: Landed | Departed, delivery: Delivery[Within]) -> None: ...


@consumer(Landed, name="three", on=Atomic())  # E: arg-type
def three(event: Landed, delivery: Delivery[str]) -> None: ...


@consumer(Landed, Departed, name="four", on=Atomic())  # E: arg-type
def four(event: Landed, delivery: Delivery[Within]) -> None: ...


def allowed() -> None:
    assert_type(within(), Within)
    assert_type(within(using="reports"), Within)
    assert_type(within().publish(Landed(number=1), key="k"), UUID)
    assert_type(within().publish_many([Landed(number=1), Publish(Landed(number=2))]), list[UUID])
    assert_type(within().enqueue(print_it, Landed(number=1), unique="u"), Enqueued)
    assert_type(within().enqueue_many([Enqueue(print_it, Landed(number=1))]), list[Enqueued])


async def refused() -> None:
    within("reports")  # E: call-arg
    within(using=1)  # E: arg-type
    within(bind="reports")  # E: call-arg
    Atomic("reports")  # E: call-arg
    await within().publish(Landed(number=1))  # E: misc
    within().publish(Landed(number=1), "key")  # E: call-arg
    within().publish(Landed(number=1), sequence="1")  # E: arg-type
    within().publish(Landed(number=1), occurred_at=date(2026, 1, 1))  # E: arg-type
    within().publish_many(Landed(number=1))  # E: arg-type
    identity: str = within().publish(Landed(number=1))  # E: assignment
    within().enqueue(print_it, "text")  # E: arg-type
    within().enqueue(Departed, Departed(number=1))  # E: arg-type
    within().enqueue_many([Departed(number=1)])  # E: list-item
    del identity
