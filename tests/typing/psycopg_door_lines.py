"""Lines at the psycopg door that must type-check, and lines (marked with their error code) that must not."""

from __future__ import annotations

from datetime import date
from typing import Any, assert_type
from uuid import UUID

import psycopg
from psycopg_pool import ConnectionPool  # noqa: TC002 - a line for the type checker
from pydantic import BaseModel

from postroad import Delivery, Producer, Run, consumer, job
from postroad.psycopg import AsyncConnections, AsyncWithin, Enqueue, Enqueued, Publish, Within, within

flights = Producer("typed")


@flights.event("flight.landed", version=1)
class Landed(BaseModel):
    """A flight landed."""

    number: int


@job("reports.render")
def render(request: Landed, run: object) -> None: ...


@consumer(Landed, name="one")
def one(event: Landed, delivery: Delivery[psycopg.Connection]) -> None:
    within(delivery.tx).publish(Landed(number=1))


@consumer(Landed, name="two", on=AsyncConnections())
async def two(event: Landed, delivery: Delivery[psycopg.AsyncConnection]) -> None:
    assert_type(await within(delivery.tx).publish(Landed(number=1)), UUID)


@job("reports.print", on=AsyncConnections())
async def print_it(request: Landed, run: Run[psycopg.AsyncConnection]) -> None:
    async with run.transaction() as connection:
        assert_type(connection, psycopg.AsyncConnection)


@consumer(Landed, name="three", on=AsyncConnections())  # E: arg-type
async def three(event: Landed, delivery: Delivery[psycopg.Connection]) -> None: ...


@consumer(Landed, name="four")  # E: arg-type
def four(event: Landed, delivery: Delivery[psycopg.AsyncConnection]) -> None: ...


@consumer(Landed, name="five")  # E: arg-type
def five(event: int, delivery: Delivery[psycopg.Connection]) -> None: ...


@job("reports.elsewhere", on=AsyncConnections())  # E: arg-type
async def elsewhere(request: Landed, run: Run[psycopg.Connection]) -> None: ...


def blocking(
    connection: psycopg.Connection, rows: psycopg.Connection[dict[str, Any]], pool: ConnectionPool[psycopg.Connection]
) -> None:
    assert_type(within(connection), Within)
    assert_type(within(rows).publish(Landed(number=1), key="k"), UUID)
    assert_type(within(connection).publish_many([Landed(number=1), Publish(Landed(number=2))]), list[UUID])
    with pool.connection() as lent:
        within(lent).publish(Landed(number=1))
    assert_type(within(connection).enqueue(render, Landed(number=1), unique="u"), Enqueued)
    assert_type(within(connection).enqueue_many([Enqueue(render, Landed(number=1))]), list[Enqueued])


async def asynchronous(connection: psycopg.AsyncConnection) -> None:
    assert_type(within(connection), AsyncWithin)
    assert_type(await within(connection).publish(Landed(number=1), key="k"), UUID)
    assert_type(await within(connection).publish_many([Landed(number=1)]), list[UUID])
    assert_type(await within(connection).enqueue(render, Landed(number=1)), Enqueued)


async def refused(
    connection: psycopg.Connection, other: psycopg.AsyncConnection, pool: ConnectionPool[psycopg.Connection]
) -> None:
    within(other).publish(Landed(number=1))  # E: unused-coroutine
    within(other).publish_many([Landed(number=1)])  # E: unused-coroutine
    await within(connection).publish(Landed(number=1))  # E: misc
    within(pool)  # E: call-overload
    within("postgresql://")  # E: call-overload
    within(connection.cursor())  # E: call-overload
    within(connection).publish(Landed(number=1), "key")  # E: call-arg
    within(connection).publish(Landed(number=1), sequence="1")  # E: arg-type
    within(connection).publish(Landed(number=1), occurred_at=date(2026, 1, 1))  # E: arg-type
    await within(other).publish(Landed(number=1), sequence="1")  # E: arg-type
    identity: str = within(connection).publish(Landed(number=1))  # E: assignment
    number: UUID = within(other).publish(Landed(number=1))  # E: assignment
    within(connection).enqueue(render, "text")  # E: arg-type
    within(other).enqueue(render, Landed(number=1))  # E: unused-coroutine
    await within(other).enqueue(render, "text")  # E: arg-type
    del identity, number
