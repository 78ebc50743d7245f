"""The consumer service: it knows the events only by their wire names, and keeps its own books of the flights."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from postroad.asyncpg import within
from postroad.clock import minutes
from postroad.consume import Delivery, consumer
from postroad.demo.gauges import sinks_from_environment
from postroad.demo.notices import Notice, company, notice, notify
from postroad.events import Subscription
from postroad.runtime.app import App
from postroad.schedules.schedule import Schedule
from postroad.work.job import job

if TYPE_CHECKING:
    from postroad.asyncpg import Connection
    from postroad.work.run import Run

LATE: Final = 60


class Departure(BaseModel):
    """What this service reads of a departure."""

    flight_id: str
    carrier: str
    day: date
    delay_minutes: int


class Cancellation(BaseModel):
    """What this service reads of a cancellation."""

    flight_id: str
    carrier: str
    day: date


Departed = Subscription("flights.flight.departed", version=1, model=Departure)
Cancelled = Subscription("flights.flight.cancelled", version=1, model=Cancellation)

SEE = "INSERT INTO flight_seen (flight_id, carrier, day, delay_minutes) VALUES ($1, $2, $3, $4)"
INCREMENT = """
INSERT INTO carrier_punctuality AS c (carrier, flights, departed, cancelled, dep_delay_minutes, delayed_over_60)
VALUES ($1, 1, $2, $3, $4, $5)
ON CONFLICT (carrier) DO UPDATE
   SET flights = c.flights + 1, departed = c.departed + $2, cancelled = c.cancelled + $3,
       dep_delay_minutes = c.dep_delay_minutes + $4, delayed_over_60 = c.delayed_over_60 + $5
"""
REPORT = """
INSERT INTO daily_report (day, flights, departed, cancelled, dep_delay_minutes, delayed_over_60)
SELECT $1, count(*), count(delay_minutes), count(*) - count(delay_minutes), coalesce(sum(delay_minutes), 0),
       count(*) FILTER (WHERE delay_minutes > $2)
  FROM flight_seen WHERE day = $1
"""


@consumer(Departed, Cancelled, name="punctuality.projection")
async def project(event: Departure | Cancellation, delivery: Delivery[Connection]) -> None:
    """Note the flight, count it for its carrier, order a notice if it is late: all would double without the inbox.

    The order is in the same transaction; a job sends the notice, since nobody can roll that back.
    """
    delay = event.delay_minutes if isinstance(event, Departure) else None
    await delivery.tx.execute(SEE, event.flight_id, event.carrier, event.day, delay)
    if delay is None:
        await delivery.tx.execute(INCREMENT, event.carrier, 0, 1, 0, 0)
        return
    late = delay > LATE
    await delivery.tx.execute(INCREMENT, event.carrier, 1, 0, delay, int(late))
    if late:
        await within(delivery.tx).enqueue(notify, Notice(flight_id=event.flight_id, delay_minutes=delay))


class ReportRequest(BaseModel):
    """Whose report it is."""

    day: date


@job("punctuality.report", max_runtime=minutes(1))
async def report(request: ReportRequest, run: Run[Connection]) -> None:
    """Write the report of a day from the flights that were seen of it: once, however often this is tried."""
    async with run.transaction(finish=True) as tx:
        await tx.execute(REPORT, request.day, LATE)


daily = Schedule(
    "punctuality.daily",
    cron="15 2 * * *",
    zone="America/New_York",
    job=report,
    args=lambda due: ReportRequest(day=due.date() - timedelta(days=1)),
)
"""Each night in New York the report of the day before."""

app = App(
    "punctuality", consumers=[project], jobs=[notify, report], schedules=[daily], effects=[notice], lifespan=company,
    sinks=sinks_from_environment(),
)  # fmt: skip
