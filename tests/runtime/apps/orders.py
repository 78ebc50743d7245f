"""A small App that tests run as a process: it publishes to itself, and misbehaves when its environment says so."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from postroad.consume import Delivery, consumer
from postroad.events import Producer
from postroad.runtime.app import App

if TYPE_CHECKING:
    from postroad.owner import Readiness

MODE = os.environ.get("ORDERS_MODE", "")
orders = Producer("orders")


@orders.event("order.booked", version=1)
class OrderBooked(BaseModel):
    """An order was booked."""

    number: int = Field(description="The order's number")


class Till:
    """What the lifespan yields."""

    def __init__(self) -> None:
        self.open = True


async def resources() -> AsyncGenerator[Till, None]:
    till = Till()
    yield till
    till.open = False


@consumer(OrderBooked, name="orders.book", group=MODE != "endless")  # so that several are endless at once
async def book(event: OrderBooked, delivery: Delivery[Any]) -> None:
    assert delivery.use(Till).open
    if MODE == "blocks" and event.number >= 0:
        time.sleep(60)  # noqa: ASYNC251 - what this mode is for
    if MODE == "slow":
        await asyncio.sleep(0.05)
    if MODE == "endless":
        await asyncio.sleep(25)
    await delivery.tx.execute("INSERT INTO booked VALUES ($1)", event.number)


app = App("orders", publishes=[orders], consumers=[book], lifespan=resources)


async def faulty(stop: asyncio.Event, ready: Readiness) -> None:
    ready.up()
    raise ConnectionError("secret")


async def stray(stop: asyncio.Event, ready: Readiness) -> None:
    ready.up()
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await stop.wait()


if MODE == "faulty":
    app.background("faulty", faulty)
if MODE == "stray":
    app.background("stray", stray)
