"""Consumers and jobs of an App with ``on=``: from a session that publishes to a session that handles, and back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import psycopg  # noqa: TC002 - declarations read it
import pytest
from pydantic import BaseModel, Field
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from django_site import database as place
from django_site import databases
from postroad.clock import seconds
from postroad.consume import Delivery, consumer
from postroad.django import Atomic
from postroad.errors import Unavailable, UsageError
from postroad.events import Producer
from postroad.psycopg import AsyncConnections
from postroad.runtime import wires
from postroad.runtime.app import App
from postroad.runtime.settings import Role, Settings, TopologyMode
from postroad.sqlalchemy import AsyncSessions, Sessions, within
from postroad.work.job import job
from postroad.work.run import Run  # noqa: TC001 - a job's declaration reads its annotations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from postroad.testing.servers import Postgres

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


# --- a database of somebody else ------------------------------------------------------------------------------------


def settings_of(url: str) -> Settings:
    return Settings(
        database_url=url, direct_url=url, broker_url="postgres:", topology=TopologyMode.APPLY, grace=seconds(5),
        shard_lease=seconds(2), worker_lease=seconds(2), start_timeout=seconds(1),
    )  # fmt: skip


def sessions_to(url: str) -> AsyncSessions[AsyncSession]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:", 1), poolclass=NullPool)
    return AsyncSessions(async_sessionmaker(engine))


def threads_to(url: str) -> Sessions[Session]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:", 1), poolclass=NullPool)
    return Sessions(sessionmaker(engine))


def consuming_with(on: Any, url: str) -> App:
    if on.threaded:

        @consumer(Placed, name="elsewhere.threads", on=on)
        def handle(event: Placed, delivery: Delivery[Session]) -> None: ...

    else:

        @consumer(Placed, name="elsewhere.tasks", on=on)
        async def handle(event: Placed, delivery: Delivery[AsyncSession]) -> None:
            await delivery.tx.execute(text("INSERT INTO seen VALUES ('async', :number)"), {"number": event.number})

    return App("formshop", publishes=[shop], consumers=[handle], settings=settings_of(url))


def working_with(on: Any, url: str) -> App:
    @job("elsewhere.job", on=on)
    async def work(request: Packing, run: Run[AsyncSession]) -> None: ...

    return App("formshop", jobs=[work], settings=settings_of(url))


@pytest.fixture
def elsewhere(postgres: Postgres, migrated_template: str) -> Iterator[str]:
    """Another database of the same server, with Postroad's tables as well."""
    name = f"test_{uuid4().hex}"
    yield postgres.create_database(name, migrated_template)
    postgres.drop_database(name)


async def is_refused(app: App, name: str) -> None:
    with pytest.raises(UsageError, match=f"on= of '{name}' leads to another database than POSTROAD_DATABASE_URL") as no:
        async with app:
            pass
    assert no.value.code == "PR101"
    assert "\n" not in str(no.value)


async def test_sessions_of_another_database_are_refused_at_the_start(runtime_url: str, elsewhere: str) -> None:
    await is_refused(consuming_with(sessions_to(elsewhere), runtime_url), "elsewhere.tasks")
    await is_refused(consuming_with(threads_to(elsewhere), runtime_url), "elsewhere.threads")
    await is_refused(working_with(sessions_to(elsewhere), runtime_url), "elsewhere.job")


async def test_the_same_database_by_another_role_is_the_apps_own(runtime_url: str, database: str) -> None:
    for app in (
        consuming_with(sessions_to(database), runtime_url), consuming_with(threads_to(database), runtime_url),
        consuming_with(AsyncConnections(), runtime_url), working_with(sessions_to(database), runtime_url),
    ):  # fmt: skip
        async with app:
            await app.ready()


@pytest.fixture
def aliases(runtime_url: str, elsewhere: str) -> Iterator[None]:
    with databases(default=place(runtime_url), away=place(elsewhere)):
        yield


async def test_an_alias_of_django_must_lead_there_too(runtime_url: str, aliases: None) -> None:
    async with consuming_with(Atomic(), runtime_url) as app:
        await app.ready()
    await is_refused(consuming_with(Atomic(using="away"), runtime_url), "elsewhere.threads")


async def test_what_cannot_connect_is_told_at_the_start(runtime_url: str) -> None:
    nowhere = sessions_to("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(Unavailable, match="PR301"):
        async with consuming_with(nowhere, runtime_url):
            pass


async def test_a_process_that_runs_no_handler_does_not_ask(runtime_url: str, elsewhere: str) -> None:
    app = consuming_with(sessions_to(elsewhere), runtime_url)
    app._settings = replace(settings_of(runtime_url), roles=frozenset({Role.DISPATCH}))
    async with app:
        await app.ready()


@pytest.mark.sabotage
async def test_unasked_the_inbox_of_a_consumer_would_be_in_that_database(
    sql: asyncpg.Connection[asyncpg.Record], runtime_url: str, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(wires, "check_forms", nothing)
    other = await asyncpg.connect(elsewhere)
    await other.execute("CREATE TABLE seen (who text, number int)")
    own = create_async_engine(runtime_url.replace("postgresql:", "postgresql+asyncpg:", 1), poolclass=NullPool)
    async with consuming_with(sessions_to(elsewhere), runtime_url):
        async with async_sessionmaker(own).begin() as session:
            await within(session).publish(Placed(number=1))
        async with asyncio.timeout(60):
            while await other.fetchval("SELECT count(*) FROM seen") == 0:  # noqa: ASYNC110 - a database tells nothing
                await asyncio.sleep(0.05)
    assert await other.fetchval("SELECT count(*) FROM postroad.inbox") == 1
    assert await sql.fetchval("SELECT count(*) FROM postroad.inbox") == 0
    await other.close()
