"""The flights of the demo, sent over the real road into books of this test's own, which are reconciled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import asyncpg
from pydantic import BaseModel

from postroad.asyncpg import within
from postroad.clock import seconds
from postroad.consume import Delivery, consumer
from postroad.demo.author import INSERT, event_of
from postroad.demo.departures import flights
from postroad.demo.flights import SAMPLE, Flight, read
from postroad.events import Subscription
from postroad.reconcile import Drift, Reconciliation, handled, pages, resend
from postroad.runtime.app import App
from postroad.runtime.settings import ALL_ROLES, Settings, TopologyMode
from postroad.work.job import job

if TYPE_CHECKING:
    from postroad.work.run import Run

FLIGHT = """
CREATE TABLE IF NOT EXISTS flight (
    flight_id text COLLATE "C" PRIMARY KEY, carrier text, origin text, destination text, delay_minutes integer
);
GRANT ALL ON flight TO pr_runtime, pr_author
"""
SEEN = """
CREATE TABLE IF NOT EXISTS flight_seen (flight_id text COLLATE "C" PRIMARY KEY, carrier text, delay_minutes integer);
GRANT ALL ON flight_seen TO pr_runtime
"""
SAYS = "SELECT flight_id, concat_ws(' ', carrier, delay_minutes) FROM {} WHERE flight_id > $1 ORDER BY 1 LIMIT $2"
SEE = """
INSERT INTO flight_seen VALUES ($1, $2, $3)
ON CONFLICT (flight_id) DO UPDATE SET carrier = excluded.carrier, delay_minutes = excluded.delay_minutes
"""
SETTLE = seconds(1)


class Leaving(BaseModel):
    """What is read of either event."""

    flight_id: str
    carrier: str
    delay_minutes: int | None = None


class Request(BaseModel):
    """Nothing is asked."""


Departed = Subscription("flights.flight.departed", version=1, model=Leaving)
Cancelled = Subscription("flights.flight.cancelled", version=1, model=Leaving)


@consumer(Departed, Cancelled, name="reconcile.seen")
async def see(event: Leaving, delivery: Delivery[Any]) -> None:
    """Set, never add: it may be handled again."""
    await delivery.tx.execute(SEE, event.flight_id, event.carrier, event.delay_minutes)


async def take_away(drift: Drift) -> None:
    await drift.tx.execute("DELETE FROM flight_seen WHERE flight_id = $1", drift.key)


class Airline:
    """The other service's database."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self.fetch = pool.fetch
        self.acquire = pool.acquire


def books(*, log: type[Any] | None = None) -> Reconciliation:
    return Reconciliation(
        "reconcile.flights", authority=pages(SAYS.format("flight"), on=log),
        projection=pages(SAYS.format("flight_seen")),
        settle=SETTLE, repair=resend(see, log=log, extra=take_away),
    )  # fmt: skip


@job("reconcile.nightly")
async def nightly(_request: Request, run: Run[Any]) -> None:
    await books().check(run)
    await books().mend(run)


def settings_of(url: str, broker_url: str) -> Settings:
    return Settings(
        database_url=url, direct_url=url, broker_url=broker_url, roles=ALL_ROLES, topology=TopologyMode.APPLY,
        grace=seconds(8),
    )  # fmt: skip


@asynccontextmanager
async def airport(url: str, broker_url: str, *, producer: bool = True, airline: str | None = None, **more: Any):
    """The consuming App, running; it publishes, too, where there is no other. `airline` is the other's database."""

    async def lifespan() -> AsyncIterator[Airline | None]:
        if airline is None:
            yield None
            return
        async with asyncpg.create_pool(airline, min_size=0, max_size=2) as pool:
            yield Airline(pool)

    log = None if airline is None else Airline
    app = App(
        "reconcile.airport", publishes=[flights] if producer else [], consumers=[see], jobs=[nightly],
        reconciliations=[books(log=log), handled(see, log=log, settle=SETTLE)], lifespan=lifespan,
        settings=settings_of(url, broker_url), **more,
    )  # fmt: skip
    async with app:
        await app.ready()
        yield app


def some_flights(count: int) -> list[Flight]:
    return [*islice((line for line in read(SAMPLE) if isinstance(line, Flight)), count)]


async def depart(author_url: str, leaving: Sequence[Flight]) -> None:
    """Each flight's row and event in a transaction of its own, as the demo's author does it."""
    author = await asyncpg.connect(author_url)
    for flight in leaving:
        async with author.transaction():
            await author.execute(
                INSERT, flight.flight_id, flight.carrier, flight.origin, flight.destination, flight.delay
            )
            await within(author).publish(event_of(flight), key=flight.flight_id, occurred_at=flight.occurred)
    await author.close()
