"""The next release of the service that keeps the board: it reads movements of version 2, and hangs up labels too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from postroad.consume import Delivery, consumer
from postroad.events import Subscription
from postroad.runtime.app import App
from road.apps.board import QUICK

if TYPE_CHECKING:
    from postroad.asyncpg import Connection


class Parcel(BaseModel):
    """What this release reads of a movement."""

    number: int
    place: str


def with_place(payload: dict[str, Any]) -> dict[str, Any]:
    """Version 1 did not say where."""
    return {**payload, "place": "unknown"}


Moved = Subscription("parcels.parcel.moved", version=2, model=Parcel, upcasts={1: with_place})


@consumer(Moved, name="board.moves", retry=QUICK)
async def see(event: Parcel, delivery: Delivery[Connection]) -> None:
    """Write as the release before did."""
    await delivery.tx.execute("INSERT INTO seen (number, process) VALUES ($1, $2)", event.number, os.getpid())


@consumer(Moved, name="board.labels", retry=QUICK)
async def label(event: Parcel, delivery: Delivery[Connection]) -> None:
    """Fail at first, so that a retry lies in the table that both releases work on."""
    if delivery.attempt == 1 and event.number % 2:
        raise ValueError
    await delivery.tx.execute("INSERT INTO weight (key, sequence) VALUES ('label', $1)", event.number)


app = App("board", consumers=[see, label])
