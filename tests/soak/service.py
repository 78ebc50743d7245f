"""The two services of a soak: one that moves and weighs parcels, one that keeps a board without any constraint."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from postroad.clock import seconds
from postroad.consume import Delivery, consumer
from postroad.events import Producer
from postroad.runtime.app import App

if TYPE_CHECKING:
    from postroad.asyncpg import Connection

soak = Producer("soak")


@soak.event("parcel.moved", version=1)
class Moved(BaseModel):
    """A parcel went somewhere."""

    number: int = Field(description="The parcel's number, which no other has")
    slow: float = Field(default=0.0, description="For how many seconds its handler takes its time")


@soak.event("parcel.weighed", version=1)
class Weighed(BaseModel):
    """A parcel was put on the scales again."""

    grams: int = Field(description="What they showed")


@consumer(Moved, name="soak.moves", concurrency=4)
async def see(event: Moved, delivery: Delivery[Connection]) -> None:
    """Note every time that it takes effect, and at which attempt."""
    await delivery.tx.execute(
        "INSERT INTO seen (number, attempt, process) VALUES ($1, $2, $3)", event.number, delivery.attempt, os.getpid()
    )
    if event.slow:
        await asyncio.sleep(event.slow)  # the fault: a handler that takes its time


@consumer(Weighed, name="soak.weights", order="latest", max_runtime=seconds(20))
async def weigh(event: Weighed, delivery: Delivery[Connection]) -> None:
    """Note every weight that counted, in the order in which it did."""
    await delivery.tx.execute(
        "INSERT INTO weight (key, sequence, attempt) VALUES ($1, $2, $3)",
        delivery.key, delivery.sequence, delivery.attempt,
    )  # fmt: skip


author = App("soak", publishes=[soak])
board = App("soak-board", consumers=[see, weigh])
