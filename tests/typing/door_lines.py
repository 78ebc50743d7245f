"""Lines at the author's door that must type-check, and lines (marked with their error code) that must not."""

from __future__ import annotations

from datetime import date, datetime
from typing import assert_type
from uuid import UUID

import asyncpg  # noqa: TC002 - a line for the type checker
from pydantic import BaseModel

from postroad import Keep, Producer, Subscription, job
from postroad.asyncpg import Enqueue, Enqueued, Publish, within

flights = Producer("typed")


@flights.event("flight.departed", version=1)
class Departed(BaseModel):
    """A flight left the gate."""

    number: int


@job("reports.render")
async def render(request: Departed, run: object) -> None: ...


async def allowed(connection: asyncpg.Connection[asyncpg.Record], pool: asyncpg.Pool[asyncpg.Record]) -> None:
    assert_type(Departed(number=1), Departed)
    assert_type(await within(connection).publish(Departed(number=1), key="k"), UUID)
    assert_type(await within(connection).publish_many([Departed(number=1), Publish(Departed(number=2))]), list[UUID])
    async with pool.acquire() as lent:
        await within(lent).publish(Departed(number=1))
    assert_type(await within(connection).enqueue(render, Departed(number=1), unique="u", priority=1), Enqueued)
    assert_type(await within(connection).enqueue(render, Departed(number=1), queue="slow"), Enqueued)
    assert_type(await within(connection).enqueue_many([Enqueue(render, Departed(number=1))]), list[Enqueued])
    assert_type(Subscription("a.b.sent", version=1, model=Departed).decode({}), Departed)


async def refused(connection: asyncpg.Connection[asyncpg.Record], pool: asyncpg.Pool[asyncpg.Record]) -> None:
    within(connection).publish(Departed(number=1))  # E: unused-coroutine
    within(connection).publish_many([Departed(number=1)])  # E: unused-coroutine
    within(pool)  # E: arg-type
    within("postgresql://")  # E: arg-type
    await within(connection).publish(Departed(number=1), "key")  # E: call-arg
    await within(connection).publish(Departed(number=1), sequence="1")  # E: arg-type
    await within(connection).publish(Departed(number=1), occurred_at=date(2026, 1, 1))  # E: arg-type
    await within(connection).publish(Departed(number=1), occurred=datetime.now())  # E: call-arg  # noqa: DTZ005
    await within(connection).publish_many(Departed(number=1))  # E: arg-type
    identity: str = await within(connection).publish(Departed(number=1))  # E: assignment
    within(connection).enqueue(render, Departed(number=1))  # E: unused-coroutine
    await within(connection).enqueue(render, "text")  # E: arg-type
    await within(connection).enqueue(Departed, Departed(number=1))  # E: arg-type
    await within(connection).enqueue(render, Departed(number=1), run_at=date(2026, 1, 1))  # E: arg-type
    await within(connection).enqueue(render, Departed(number=1), unique=1)  # E: arg-type
    await within(connection).enqueue_many([Departed(number=1)])  # E: list-item
    Enqueue(render, "text")  # E: arg-type
    Departed(number=1).nonsense  # E: attr-defined  # noqa: B018
    flights.event("flight.departed")  # E: call-arg
    flights.event("flight.departed", version="1")  # E: arg-type
    flights.event("flight.departed", version=1, retention=90)  # E: arg-type
    flights.event("flight.departed", version=1, retention=Keep.DAYS_90, compatibility="sideways")  # E: arg-type
    flights.event("flight.departed", version=1)(lambda: None)  # E: type-var
    Subscription("a.b.sent", version=1)  # E: call-arg
    Subscription("a.b.sent", version=1, model=Departed(number=1))  # E: arg-type
    del identity
