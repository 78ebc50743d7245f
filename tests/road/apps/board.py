"""The service that hears of parcels and keeps a board: a table without a unique constraint, so that doubles show."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING

from pydantic import BaseModel

from postroad.clock import seconds
from postroad.consume import Delivery, consumer
from postroad.events import Subscription
from postroad.failures import Quarantine, Rules
from postroad.retry import Backoff
from postroad.runtime.app import App
from road.apps import faults

if TYPE_CHECKING:
    from postroad.asyncpg import Connection


class Parcel(BaseModel):
    """What the board reads of a movement."""

    number: int
    act: str = ""
    note: str = ""


class Weight(BaseModel):
    """What the board reads of the scales."""

    grams: int


class Unwanted(Exception):
    """The board's own way to say that it never wants this."""


Moved = Subscription("parcels.parcel.moved", version=1, model=Parcel)
Weighed = Subscription("parcels.parcel.weighed", version=1, model=Weight)
QUICK = Backoff(first=seconds(0.1), most=seconds(0.2), attempts=3)


@consumer(Moved, name="board.moves", retry=QUICK, rules=Rules(quarantine=[Unwanted]))
async def see(event: Parcel, delivery: Delivery[Connection]) -> None:
    """Write first, so that what follows has something to lose."""
    await delivery.tx.execute("INSERT INTO seen (number, process) VALUES ($1, $2)", event.number, os.getpid())
    act, _, argument = event.act.partition(":")
    match act:
        case "wait":
            await asyncio.sleep(float(argument))
        case "block":
            time.sleep(float(argument))  # noqa: ASYNC251 - blocking the loop is the fault
        case "freeze":  # Holds the interpreter's lock too: no thread of ours runs meanwhile.
            ctypes.PyDLL(None).sleep(int(argument))
        case "fail" if delivery.attempt <= int(argument):
            raise ValueError(event.note)
        case "die" if delivery.attempt > int(argument):  # After a moment, so that others run beside it.
            await asyncio.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        case "die":
            raise ValueError(event.note)
        case "break":
            raise KeyError(event.note)
        case "refuse":
            raise Unwanted(event.note)
        case "give up":
            raise Quarantine("the board does not take these")
        case _:
            pass


@consumer(Weighed, name="board.weights", order="latest")
async def weigh(event: Weight, delivery: Delivery[Connection]) -> None:
    """Note every weight that counted, in the order in which it did."""
    await delivery.tx.execute(
        "INSERT INTO weight (key, sequence, process) VALUES ($1, $2, $3)", delivery.key, delivery.sequence, os.getpid()
    )


app = App("board", consumers=[see, weigh], sinks=faults.prepare())
