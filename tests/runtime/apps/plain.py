"""A small App with a `def` handler; it hangs when its environment says so."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from postroad.clock import minutes, seconds
from postroad.consume import Delivery, consumer
from postroad.events import Producer
from postroad.psycopg import within
from postroad.retry import Backoff
from postroad.runtime.app import App

if TYPE_CHECKING:
    from psycopg import Connection

plain = Producer("plain")


@plain.event("order.placed", version=1)
class Placed(BaseModel):
    """An order was placed."""

    number: int = Field(description="The order's number")


@plain.event("order.booked", version=1, subscribers="optional")
class Booked(BaseModel):
    """An order was booked."""

    number: int = Field(description="The order's number")


@consumer(Placed, name="plain.book", max_runtime=seconds(1), retry=Backoff(first=minutes(5)))
def book(event: Placed, delivery: Delivery[Connection[Any]]) -> None:
    delivery.tx.execute("INSERT INTO booked VALUES (%s)", (event.number,))
    within(delivery.tx).publish(Booked(number=event.number))
    while os.environ.get("ORDERS_MODE") == "hangs" and event.number == 0:
        time.sleep(0.1)  # blocks its thread: what this mode is for


app = App("plain", publishes=[plain], consumers=[book])
