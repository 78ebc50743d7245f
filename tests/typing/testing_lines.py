"""Lines about the harness for tests: those marked with a code must not type-check."""

from __future__ import annotations

from typing import assert_type

import psycopg
from psycopg.rows import TupleRow
from pydantic import BaseModel, Field

from postroad import Delivery, Producer, Run, consumer, job
from postroad.testing import (
    BlockingRoad,
    DeliveryResult,
    MadeRun,
    OpenJob,
    Published,
    Quarantined,
    Road,
    make_delivery,
    make_run,
    published_on,
)

orders = Producer("typedorders")


@orders.event("order.placed", version=1)
class OrderPlaced(BaseModel):
    """An order was placed."""

    number: str = Field(description="its number")


class Mail(BaseModel):
    receiver: str


@consumer(OrderPlaced, name="typed.billing")
async def bill(event: OrderPlaced, delivery: Delivery) -> None: ...


@job("typed.mail")
async def send_mail(request: Mail, run: Run) -> None: ...


async def awaited(road: Road, tx: psycopg.Connection[TupleRow]) -> None:
    assert_type(await road.published(OrderPlaced), list[Published[OrderPlaced]])
    assert_type((await road.published(OrderPlaced))[0].event.number, str)
    assert_type(await road.enqueued(send_mail), list[OpenJob[Mail]])
    assert_type((await road.enqueued(send_mail))[0].request.receiver, str)
    assert_type(await road.quarantined(bill), list[Quarantined[OrderPlaced]])
    assert_type(await road.deliver(OrderPlaced(number="A"), to=bill, twice=True), list[DeliveryResult])
    assert_type(make_delivery(OrderPlaced(number="A"), tx=tx), Delivery[psycopg.Connection[TupleRow]])
    assert_type(make_run(send_mail, tx=tx), MadeRun[psycopg.Connection[TupleRow]])
    assert_type(published_on(tx, OrderPlaced), list[Published[OrderPlaced]])
    make_delivery(OrderPlaced(number="A"), tx=tx, resources=[Mail(receiver="A")])
    make_delivery(OrderPlaced(number="A"), tx=tx, resources={Mail: Mail(receiver="A")})
    make_delivery(OrderPlaced(number="A"), tx=tx, resources=7)  # E: arg-type
    await road.deliver(b"{}", to=bill)
    await road.deliver(Mail(receiver="A"), to=bill)  # E: arg-type
    await road.advance(10)  # E: call-arg
    await road.drain(raise_errors=False)  # E: call-arg
    for _ in road.published(OrderPlaced):  # E: attr-defined
        pass


def blocking(road: BlockingRoad) -> None:
    assert_type(road.published(OrderPlaced), list[Published[OrderPlaced]])
    assert_type(road.enqueued(send_mail), list[OpenJob[Mail]])
    assert_type(road.deliver(OrderPlaced(number="A"), to=bill), list[DeliveryResult])
    road.deliver(Mail(receiver="A"), to=bill)  # E: arg-type
