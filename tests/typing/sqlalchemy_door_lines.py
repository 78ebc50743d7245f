"""Lines at the SQLAlchemy door that must type-check, and lines (marked with their error code) that must not."""

from __future__ import annotations

from datetime import date
from typing import Any, assert_type
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy import Connection, Engine  # noqa: TC002 - lines for the type checker
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from postroad import BlockingRun, Delivery, Producer, Run, consumer, job
from postroad.sqlalchemy import AsyncSessions, AsyncWithin, Enqueue, Enqueued, Publish, Sessions, Within, within

flights = Producer("typed")


class OwnSession(AsyncSession):
    """An author's own class."""


@flights.event("flight.landed", version=1)
class Landed(BaseModel):
    """A flight landed."""

    number: int


@flights.event("flight.departed", version=1)
class Departed(BaseModel):
    """A flight departed."""

    number: int


asynchronous = AsyncSessions(async_sessionmaker[AsyncSession]())
special = AsyncSessions(async_sessionmaker(class_=OwnSession))
blocking = Sessions(sessionmaker[Session]())


@job("reports.render", on=asynchronous)
async def render(request: Landed, run: Run[AsyncSession]) -> None:
    async with run.transaction() as session:
        assert_type(session, AsyncSession)


@job("reports.print", on=blocking)
def print_it(request: Landed, run: BlockingRun[Session]) -> None:
    with run.transaction() as session:
        assert_type(session, Session)


@job("reports.render", on=asynchronous)  # E: arg-type
async def render_elsewhere(request: Landed, run: Run[Session]) -> None: ...


@job("reports.print", on=blocking)  # E: arg-type
async def print_elsewhere(request: Landed, run: Run[AsyncSession]) -> None: ...


@consumer(Landed, name="one", on=asynchronous)
async def one(event: Landed, delivery: Delivery[AsyncSession]) -> None:
    assert_type(delivery.tx, AsyncSession)
    await within(delivery.tx).publish(Departed(number=event.number))


@consumer(Landed, Departed, name="two", on=special)
async def two(event: Landed | Departed, delivery: Delivery[OwnSession]) -> None:
    assert_type(delivery.tx, OwnSession)


@consumer(Landed, name="wider", on=special)
async def wider(event: Landed | Departed, delivery: Delivery[AsyncSession]) -> None: ...


@consumer(Landed, name="three", on=blocking)
def three(event: Landed, delivery: Delivery[Session]) -> None:
    within(delivery.tx).publish(Departed(number=event.number))


@consumer(Landed, name="four", on=asynchronous)  # E: arg-type
async def four(event: Landed, delivery: Delivery[Session]) -> None: ...


@consumer(Landed, Departed, name="five", on=asynchronous)  # E: arg-type
async def five(event: Landed, delivery: Delivery[AsyncSession]) -> None: ...


@consumer(Landed, name="six", on=asynchronous)  # E: arg-type
async def six(event: Landed, delivery: Delivery[OwnSession]) -> None: ...


async def allowed(
    session: AsyncSession, connection: AsyncConnection, other: Session, plain: Connection,
    scope: scoped_session[Session], engine: Engine, async_engine: AsyncEngine,
) -> None:  # fmt: skip
    assert_type(within(session), AsyncWithin)
    assert_type(within(connection), AsyncWithin)
    assert_type(within(other), Within)
    assert_type(within(plain), Within)
    assert_type(within(scope), Within)
    assert_type(within(other, bind=engine), Within)
    assert_type(within(session, bind=async_engine), AsyncWithin)
    assert_type(await within(session).publish(Landed(number=1), key="k"), UUID)
    assert_type(await within(session).publish_many([Landed(number=1), Publish(Landed(number=2))]), list[UUID])
    assert_type(await within(connection).enqueue(render, Landed(number=1), unique="u"), Enqueued)
    assert_type(within(other).publish(Landed(number=1)), UUID)
    assert_type(within(plain).enqueue_many([Enqueue(render, Landed(number=1))]), list[Enqueued])


async def refused(
    session: AsyncSession, connection: AsyncConnection, other: Session, engine: Engine, maker: sessionmaker[Session],
    raw: Any,
) -> None:  # fmt: skip
    within(session).publish(Landed(number=1))  # E: unused-coroutine
    within(connection).enqueue(render, Landed(number=1))  # E: unused-coroutine
    await within(other).publish(Landed(number=1))  # E: misc
    within(engine)  # E: call-overload
    within(maker)  # E: call-overload
    within("postgresql://")  # E: call-overload
    within(session, bind=engine)  # E: call-overload
    within(session, bind="engine")  # E: call-overload
    await within(session).publish(Landed(number=1), "key")  # E: call-arg
    await within(session).publish(Landed(number=1), sequence="1")  # E: arg-type
    within(other).publish(Landed(number=1), occurred_at=date(2026, 1, 1))  # E: arg-type
    identity: str = await within(session).publish(Landed(number=1))  # E: assignment
    number: UUID = within(session).publish(Landed(number=1))  # E: assignment
    await within(session).enqueue(render, "text")  # E: arg-type
    within(other).enqueue(render, "text")  # E: arg-type
    AsyncSessions(maker)  # E: arg-type
    Sessions(engine)  # E: arg-type
    del identity, number, raw
