"""Consumers and jobs of an App with ``on=``: from a session that publishes to a session that handles, and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg  # noqa: TC002 - declarations read it
import pytest
from pydantic import BaseModel, Field
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from postroad.clock import seconds
from postroad.consume import Delivery, consumer
from postroad.events import Producer
from postroad.psycopg import AsyncConnections
from postroad.runtime.app import App
from postroad.runtime.settings import Settings, TopologyMode
from postroad.sqlalchemy import AsyncSessions, Sessions, within
from postroad.work.job import job
from postroad.work.run import Run  # noqa: TC001 - a job's declaration reads its annotations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

shop = Producer("formshop")


@shop.event("order.placed", version=1)
class Placed(BaseModel):
    """An order was placed."""

    number: int = Field(description="Its number.")


class Packing(BaseModel):
    """What a job is asked."""

    number: int


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE seen (who text, number int); GRANT ALL ON seen TO pr_runtime")
    yield connection
    await connection.close()


async def test_an_app_gives_each_handler_what_its_on_says(
    sql: asyncpg.Connection[asyncpg.Record], runtime_url: str
) -> None:
    engine = create_async_engine(runtime_url.replace("postgresql:", "postgresql+asyncpg:", 1), pool_size=20)
    blocking = create_engine(runtime_url.replace("postgresql:", "postgresql+psycopg:", 1), pool_size=20)
    sessions = AsyncSessions(async_sessionmaker(engine))

    @consumer(Placed, name="forms.async", on=sessions)
    async def with_sessions(event: Placed, delivery: Delivery[AsyncSession]) -> None:
        await delivery.tx.execute(text("INSERT INTO seen VALUES ('async', :number)"), {"number": event.number})
        await within(delivery.tx).enqueue(pack, Packing(number=event.number))

    @consumer(Placed, name="forms.thread", on=Sessions(sessionmaker(blocking)))
    def on_threads(event: Placed, delivery: Delivery[Session]) -> None:
        delivery.tx.execute(text("INSERT INTO seen VALUES ('thread', :number)"), {"number": event.number})

    @consumer(Placed, name="forms.psycopg", on=AsyncConnections())
    async def with_psycopg(event: Placed, delivery: Delivery[psycopg.AsyncConnection[Any]]) -> None:
        await delivery.tx.execute("INSERT INTO seen VALUES ('psycopg', %s)", (event.number,))

    @job("forms.pack", on=sessions)
    async def pack(request: Packing, run: Run[AsyncSession]) -> None:
        async with run.transaction(finish=True) as session:
            await session.execute(text("INSERT INTO seen VALUES ('job', :number)"), {"number": request.number})

    settings = Settings(
        database_url=runtime_url, direct_url=runtime_url, broker_url="postgres:", topology=TopologyMode.APPLY,
        grace=seconds(5), shard_lease=seconds(2), worker_lease=seconds(2),
    )  # fmt: skip
    consumers = [with_sessions, on_threads, with_psycopg]
    app = App("formshop", publishes=[shop], consumers=consumers, jobs=[pack], settings=settings)
    async with app:
        async with async_sessionmaker(engine).begin() as session:
            await within(session).publish_many([Placed(number=number) for number in range(5)])
        async with asyncio.timeout(60):
            while await sql.fetchval("SELECT count(*) FROM seen") < 20:  # noqa: ASYNC110 - a database tells nothing
                await asyncio.sleep(0.05)
    rows = await sql.fetch(
        "SELECT who, array_agg(number ORDER BY number) AS numbers FROM seen GROUP BY who ORDER BY who"
    )
    assert [row["who"] for row in rows if row["numbers"] == [0, 1, 2, 3, 4]] == ["async", "job", "psycopg", "thread"]
    await engine.dispose()
    blocking.dispose()
