"""Lines at the author's door that must type-check, and lines (marked with their error code) that must not."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, assert_type
from uuid import UUID

import asyncpg  # noqa: TC002 - a line for the type checker
from pydantic import BaseModel

from postroad import Delivery, Keep, Producer, Subscription, consumer, job
from postroad.asyncpg import Enqueue, Enqueued, Publish, within

flights = Producer("typed")


@flights.event("flight.departed", version=1)
class Departed(BaseModel):
    """A flight left the gate."""

    number: int


@job("reports.render")
async def render(request: Departed, run: object) -> None: ...


@flights.event("flight.step1", version=1)
class Step1(BaseModel):
    """A step."""


@flights.event("flight.step2", version=1)
class Step2(BaseModel):
    """A step."""


@flights.event("flight.step3", version=1)
class Step3(BaseModel):
    """A step."""


@flights.event("flight.step4", version=1)
class Step4(BaseModel):
    """A step."""


@flights.event("flight.step5", version=1)
class Step5(BaseModel):
    """A step."""


@flights.event("flight.step6", version=1)
class Step6(BaseModel):
    """A step."""


@flights.event("flight.step7", version=1)
class Step7(BaseModel):
    """A step."""


@flights.event("flight.step8", version=1)
class Step8(BaseModel):
    """A step."""


@consumer(Step1, name="steps.1")
async def take1(event: Step1, delivery: Delivery) -> None: ...


@consumer(Step1, Step2, name="steps.2")
async def take2(event: Step1 | Step2, delivery: Delivery) -> None: ...


@consumer(Step1, Step2, Step3, name="steps.3")
async def take3(event: Step1 | Step2 | Step3, delivery: Delivery) -> None: ...


@consumer(Step1, Step2, Step3, Step4, name="steps.4")
async def take4(event: Step1 | Step2 | Step3 | Step4, delivery: Delivery) -> None: ...


@consumer(Step1, Step2, Step3, Step4, Step5, name="steps.5")
async def take5(event: Step1 | Step2 | Step3 | Step4 | Step5, delivery: Delivery) -> None: ...


@consumer(Step1, Step2, Step3, Step4, Step5, Step6, name="steps.6")
async def take6(event: Step1 | Step2 | Step3 | Step4 | Step5 | Step6, delivery: Delivery) -> None: ...


@consumer(Step1, Step2, Step3, Step4, Step5, Step6, Step7, name="steps.7")
async def take7(event: Step1 | Step2 | Step3 | Step4 | Step5 | Step6 | Step7, delivery: Delivery) -> None: ...


@consumer(Step1, Step2, Step3, Step4, Step5, Step6, Step7, Step8, name="steps.8")
async def take8(event: Step1 | Step2 | Step3 | Step4 | Step5 | Step6 | Step7 | Step8, delivery: Delivery) -> None: ...


@consumer(Step1, name="whole")
async def whole(event: Step1, delivery: Delivery[Any]) -> None:
    await within(delivery.tx).publish(Step1())


@consumer(Step1, name="own")
async def own(event: Step1, delivery: Delivery) -> None:
    await within(delivery.tx).publish(Step1())
    await delivery.tx.execute("SELECT 1")


@consumer(Step1, Step2, name="fewer")  # E: arg-type
async def fewer(event: Step1, delivery: Delivery) -> None: ...


@consumer(Step1, Step2, Step3, Step4, Step5, Step6, Step7, Step8, name="fewer.of.eight")  # E: arg-type
async def fewer_of_eight(event: Step1 | Step2 | Step3 | Step4 | Step5 | Step6 | Step7, delivery: Delivery) -> None: ...


@consumer(Step1, name="another")  # E: arg-type
async def another(event: Step2, delivery: Delivery) -> None: ...


@consumer(Step1, name="elsewhere")  # E: arg-type
async def elsewhere(event: Step1, delivery: Delivery[int]) -> None: ...


@consumer(Step1, name="returns")  # E: arg-type
async def returns(event: Step1, delivery: Delivery) -> int:
    return 1


@consumer(Step1, name="alone")  # E: arg-type
async def alone(event: Step1) -> None: ...


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
    consumer(name="nothing")  # E: call-overload
    consumer(Step1)  # E: call-overload
    consumer("steps", name="text")  # E: call-overload
    consumer(Step1, name="no.form", on=pool)  # E: call-overload
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
