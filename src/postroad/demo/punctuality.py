"""The consumer service: it knows the events only by their wire names, and keeps a projection per carrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from postroad.consume import Delivery, consumer
from postroad.demo.gauges import sinks_from_environment
from postroad.events import Subscription
from postroad.runtime.app import App

if TYPE_CHECKING:
    from postroad.asyncpg import Connection

LATE: Final = 60


class Departure(BaseModel):
    """What this service reads of a departure."""

    flight_id: str
    carrier: str
    delay_minutes: int


class Cancellation(BaseModel):
    """What this service reads of a cancellation."""

    flight_id: str
    carrier: str


Departed = Subscription("flights.flight.departed", version=1, model=Departure)
Cancelled = Subscription("flights.flight.cancelled", version=1, model=Cancellation)

SEE = "INSERT INTO flight_seen (flight_id, carrier) VALUES ($1, $2)"
INCREMENT = """
INSERT INTO carrier_punctuality AS c (carrier, flights, departed, cancelled, dep_delay_minutes, delayed_over_60)
VALUES ($1, 1, $2, $3, $4, $5)
ON CONFLICT (carrier) DO UPDATE
   SET flights = c.flights + 1, departed = c.departed + $2, cancelled = c.cancelled + $3,
       dep_delay_minutes = c.dep_delay_minutes + $4, delayed_over_60 = c.delayed_over_60 + $5
"""


@consumer(Departed, Cancelled, name="punctuality.projection")
async def project(event: Departure | Cancellation, delivery: Delivery[Connection]) -> None:
    """Note the flight, and count it for its carrier: both effects would double without the inbox."""
    await delivery.tx.execute(SEE, event.flight_id, event.carrier)
    if isinstance(event, Departure):
        late = int(event.delay_minutes > LATE)
        await delivery.tx.execute(INCREMENT, event.carrier, 1, 0, event.delay_minutes, late)
    else:
        await delivery.tx.execute(INCREMENT, event.carrier, 0, 1, 0, 0)


app = App("punctuality", consumers=[project], sinks=sinks_from_environment())
