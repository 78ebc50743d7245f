"""The author's door for SQLAlchemy: the same promises on sessions and connections, blocking and asynchronous."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import warnings
from contextlib import asynccontextmanager

import asyncpg
import pytest
from pydantic import BaseModel, Field
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

import postroad.sqlalchemy as door
from postroad import job
from postroad.errors import UsageError
from postroad.events import Producer
from postroad.events.cause import Cause, cause
from postroad.events.envelope import CONTENT_TYPE, decode
from postroad.sql.sqlalchemy import sync_hand
from postroad.sqlalchemy import Enqueue, Publish, UnawaitedPublish, within

gates = Producer("piers")


@gates.event("gate.opened", version=3)
class Opened(BaseModel):
    """A gate was opened."""

    number: int = Field(description="Its number.")


class Base(DeclarativeBase):
    pass


class Gate(Base):
    __tablename__ = "gate"
    id: Mapped[int] = mapped_column(primary_key=True)


@job("gates.paint")
async def paint(request: Opened, run: object) -> None: ...


STACKS = {
    "Session": (Session, "psycopg"),
    "Connection": (Connection, "psycopg"),
    "AsyncSession, asyncpg": (AsyncSession, "asyncpg"),
    "AsyncSession, psycopg": (AsyncSession, "psycopg"),
    "AsyncConnection, asyncpg": (AsyncConnection, "asyncpg"),
    "AsyncConnection, psycopg": (AsyncConnection, "psycopg"),
}
SESSIONS = [stack for stack in STACKS if "Session" in stack]


class Author:
    """A session or connection, whichever kind: what is awaitable is awaited."""

    def __init__(self, on, engine):
        self.on = on
        self.engine = engine

    async def do(self, given):
        return await given if inspect.isawaitable(given) else given

    async def write(self, number):
        if isinstance(self.on, Session | AsyncSession):
            self.on.add(Gate(id=number))  # Pending: nothing is sent yet.
        else:
            await self.execute(f"INSERT INTO gate VALUES ({number})")

    async def execute(self, statement):
        return await self.do(self.on.execute(text(statement)))

    async def publish(self, event, **options):
        return await self.do(within(self.on).publish(event, **options))

    async def commit(self):
        await self.do(self.on.commit())

    async def rollback(self):
        await self.do(self.on.rollback())

    @asynccontextmanager
    async def savepoint(self):
        if isinstance(self.on, AsyncSession | AsyncConnection):
            async with self.on.begin_nested():
                yield
        else:
            with self.on.begin_nested():
                yield


def address(url, driver):
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


def an_engine(kind, driver, url, **options):
    make = create_async_engine if issubclass(kind, AsyncSession | AsyncConnection) else create_engine
    return make(address(url, driver), **options)


@asynccontextmanager
async def opened(stack, url, **options):
    kind, driver = STACKS[stack]
    engine = an_engine(kind, driver, url, **options)
    on = kind(engine) if issubclass(kind, Session | AsyncSession) else engine.connect()
    author = Author(await on if isinstance(on, AsyncConnection) else on, engine)
    try:
        yield author
    finally:
        await author.do(author.on.close())
        await author.do(engine.dispose())


@pytest.fixture
def url(author_url, postgres, database):
    name = database.rpartition("/")[2]
    postgres.execute("CREATE TABLE gate (id int PRIMARY KEY); GRANT ALL ON gate TO pr_author", database=name)
    return author_url


@pytest.fixture(params=STACKS)
async def author(request, url):
    async with opened(request.param, url) as author:
        yield author


@pytest.fixture
async def reader(database):
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def numbers(reader):
    rows = await reader.fetch("SELECT envelope FROM postroad.event ORDER BY seq")
    return [decode(row["envelope"], content_type=CONTENT_TYPE, headers={}).data["number"] for row in rows]


async def gates_of(reader):
    return [row["id"] for row in await reader.fetch("SELECT id FROM gate ORDER BY id")]


async def test_a_publish_commits_with_the_authors_own_state(author, reader):
    await author.write(1)
    identity = await author.publish(Opened(number=1), key="UA-1", sequence=3)
    assert await numbers(reader) == []
    await author.commit()
    assert (await numbers(reader), await gates_of(reader)) == ([1], [1])
    assert await reader.fetchval("SELECT id FROM postroad.event") == identity


async def test_a_failure_between_the_write_and_the_publish_leaves_neither(author, reader):
    await author.write(1)
    with pytest.raises(UsageError, match="PR107"):
        await author.publish(Opened(number=1), sequence=-1)
    await author.rollback()
    assert (await numbers(reader), await gates_of(reader)) == ([], [])


async def test_a_failure_between_the_publish_and_the_commit_leaves_neither(author, reader):
    await author.write(1)
    await author.publish(Opened(number=1))
    await author.rollback()
    await author.write(2)
    await author.publish(Opened(number=2))
    await author.do(author.on.close())
    assert (await numbers(reader), await gates_of(reader)) == ([], [])


@pytest.mark.sabotage
@pytest.mark.parametrize("author", ["AsyncSession, asyncpg"], indirect=True)
async def test_a_publish_that_does_not_wait_for_the_transaction_to_begin_stands_alone(author, reader, monkeypatch):
    def at_once(connection):
        return sync_hand("asyncpg", connection.connection.driver_connection)

    monkeypatch.setattr(door, "hand_within", at_once)
    await author.publish(Opened(number=1))
    await author.rollback()
    assert await numbers(reader) == [1]


async def test_a_publish_begins_the_transaction_where_none_has_begun(author, reader):
    await author.publish(Opened(number=1))
    await author.rollback()
    await author.publish(Opened(number=2))
    await author.commit()
    assert await numbers(reader) == [2]


async def test_a_savepoint_takes_its_publish_back(author, reader):
    await author.publish(Opened(number=1))
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the savepoint ends by the error
        async with author.savepoint():
            await author.write(2)
            await author.publish(Opened(number=2))
            raise ZeroDivisionError
    async with author.savepoint():
        await author.write(3)
        await author.publish(Opened(number=3))
    await author.commit()
    assert (await numbers(reader), await gates_of(reader)) == ([1, 3], [3])


@pytest.mark.parametrize("author", SESSIONS, indirect=True)
async def test_pending_objects_flush_first_and_their_error_stages_nothing(author, reader):
    await author.write(1)
    await author.commit()
    if isinstance(author.on, AsyncSession):
        author.on.sync_session.expunge_all()
    else:
        author.on.expunge_all()
    await author.write(1)
    with pytest.raises(IntegrityError):
        await author.publish(Opened(number=1))
    await author.rollback()
    assert await numbers(reader) == []


async def test_several_events_and_jobs_go_in_their_order(author, reader):
    on = within(author.on)
    ids = await author.do(on.publish_many([Opened(number=1), Publish(Opened(number=2), key="k")]))
    first = await author.do(on.enqueue(paint, Opened(number=1), unique="u"))
    again = await author.do(
        on.enqueue_many([Enqueue(paint, Opened(number=2), unique="u"), Enqueue(paint, Opened(number=3))])
    )
    await author.commit()
    assert await numbers(reader) == [1, 2]
    assert [row["id"] for row in await reader.fetch("SELECT id FROM postroad.event ORDER BY seq")] == ids
    assert (first.new, [one.new for one in again]) == (True, [False, True])
    assert await reader.fetchval("SELECT count(*) FROM postroad.work") == 2


@pytest.mark.parametrize("stack", STACKS)
async def test_in_autocommit_a_publish_is_refused_and_nothing_is_staged(stack, url, reader):
    async with opened(stack, url, isolation_level="AUTOCOMMIT") as author:
        await author.write(1)
        with pytest.raises(UsageError, match=r"AUTOCOMMIT.*PR105"):
            await author.publish(Opened(number=1))
        with pytest.raises(UsageError, match="PR105"):
            await author.do(within(author.on).enqueue(paint, Opened(number=1)))
    assert await numbers(reader) == []


@pytest.mark.parametrize("stack", STACKS)
async def test_a_transaction_begun_by_hand_in_autocommit_is_one(stack, url, reader):
    async with opened(stack, url, isolation_level="AUTOCOMMIT") as author:
        await author.execute("BEGIN")
        await author.publish(Opened(number=1))
        await author.execute("ROLLBACK")
    assert await numbers(reader) == []


@pytest.mark.parametrize("author", SESSIONS, indirect=True)
async def test_a_session_that_may_not_begin_by_itself_needs_a_block(author, url):
    async with opened("Session", url) as other:
        kind = type(author.on)
        session = kind(author.engine, autobegin=False)
        with pytest.raises(UsageError, match=r"with session\.begin\(\).*PR105"):
            await author.do(within(session).publish(Opened(number=1)))
        await author.do(session.close())
        assert other.on.autobegin


async def test_a_closed_connection_is_refused_at_the_call(url):
    for stack in ("Connection", "AsyncConnection, asyncpg"):
        async with opened(stack, url) as author:
            await author.do(author.on.close())
            with pytest.raises(UsageError, match=r"PR10[57]"):
                within(author.on).publish(Opened(number=1))


@pytest.mark.parametrize("author", ["AsyncSession, asyncpg", "AsyncConnection, psycopg"], indirect=True)
async def test_a_publish_awaited_after_its_transaction_is_refused(author, reader):
    await author.execute("SELECT 1")
    late = within(author.on).publish(Opened(number=1))
    await author.commit()
    with pytest.raises(UsageError, match="PR105"):
        await late
    await author.commit()
    assert await numbers(reader) == []


@pytest.mark.parametrize("author", ["AsyncSession, asyncpg"], indirect=True)
async def test_a_publish_dropped_unawaited_is_reported(author):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        within(author.on).publish(Opened(number=1))
        gc.collect()
    assert [one.category for one in told] == [UnawaitedPublish]


async def test_one_round_trip_after_the_transaction_has_begun(author, monkeypatch):
    """What SQLAlchemy sends itself is seen by its engine: for a publish it is nothing."""
    seen = []
    engine = getattr(author.engine, "sync_engine", author.engine)
    event.listen(engine, "before_cursor_execute", lambda _c, _u, statement, *_: seen.append(statement))
    await author.execute("SELECT 1")
    await author.publish(Opened(number=1))
    await author.publish(Opened(number=2))
    assert seen == ["SELECT 1"]


async def test_a_sessions_maker_in_scope_is_the_session(url, reader):
    engine = create_engine(address(url, "psycopg"))
    scope = scoped_session(sessionmaker(engine))
    within(scope).publish(Opened(number=1))
    scope.commit()
    scope.remove()
    engine.dispose()
    assert await numbers(reader) == [1]


@pytest.mark.parametrize("author", ["AsyncSession, asyncpg", "AsyncSession, psycopg"], indirect=True)
async def test_hooks_and_run_sync_publish_on_the_blocking_form(author, reader):
    def staged(session, *_):
        within(session).publish(Opened(number=2))

    event.listen(author.on.sync_session, "after_flush", staged)
    await author.on.run_sync(lambda session: within(session).publish(Opened(number=1)))
    await author.write(1)
    await author.commit()
    assert await numbers(reader) == [1, 2]


async def test_several_binds_need_one_to_be_named(url, reader):
    one, other = create_engine(address(url, "psycopg")), create_engine(address(url, "psycopg"))

    class Routed(Session):
        def get_bind(self, mapper=None, **_):
            return one

    for session in (Session(one, binds={Gate: other}), Routed(one), Session()):
        with session:
            with pytest.raises(UsageError, match=r"name one: `within\(session, bind=engine\)`.*PR107"):
                within(session)
            within(session, bind=one).publish(Opened(number=1))
            session.commit()
    with Session(binds={Gate: one}) as session:
        within(session).publish(Opened(number=2))
        session.commit()
    with one.connect() as connection, pytest.raises(UsageError, match="bind= with a session"):
        within(connection, bind=one)
    one.dispose()
    other.dispose()
    assert await numbers(reader) == [1, 1, 1, 2]


async def test_an_asynchronous_session_names_an_asynchronous_engine(url, reader):
    one, other = (create_async_engine(address(url, "asyncpg")) for _ in range(2))
    async with AsyncSession(one, binds={Gate: other}) as session:
        with pytest.raises(UsageError, match="several binds"):
            within(session)
        await within(session, bind=other).publish(Opened(number=1))
        await session.commit()
    await one.dispose()
    await other.dispose()
    assert await numbers(reader) == [1]


def test_what_is_neither_session_nor_connection_is_refused(url):
    engine = create_engine(address(url, "psycopg"))
    for wrong in (engine, sessionmaker(engine), None, url):
        with pytest.raises(UsageError, match=r"session or connection of SQLAlchemy's.*PR107"):
            within(wrong)
    engine.dispose()


def test_another_driver_is_refused_in_one_line():
    for other in (create_engine("sqlite://"), create_engine("postgresql+pg8000://", module=FakeDriver())):
        with Session(other) as session, pytest.raises(UsageError, match=r"not by '(sqlite|pg8000)'.*PR107"):
            within(session)


class FakeDriver:
    """As much of a driver as SQLAlchemy asks for before it connects."""

    __version__ = "1.30.0"
    paramstyle = "format"
    Error = Exception


async def test_a_publish_inside_a_handler_carries_its_cause(author, reader):
    with cause(Cause(correlation="story", causation="event")):
        await author.publish(Opened(number=1))
    await author.commit()
    row = await reader.fetchrow("SELECT correlation, causation FROM postroad.event")
    assert tuple(row) == ("story", "event")


async def test_a_missing_schema_is_told_with_what_to_do(author, postgres, database):
    postgres.execute("DROP SCHEMA postroad CASCADE", database=database.rpartition("/")[2])
    with pytest.raises(Exception, match="PR202"):
        await author.publish(Opened(number=1))


@pytest.mark.parametrize("absent", ["asyncpg", "psycopg"])
def test_publishing_needs_only_the_driver_of_its_engine(url, absent):
    kind = "asyncpg" if absent == "psycopg" else "psycopg"
    code = f"""
import asyncio, sys
sys.modules[{absent!r}] = None
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from postroad import Producer
from postroad.sqlalchemy import within
from pydantic import BaseModel, Field

@Producer("piers").event("gate.opened", version=1)
class Opened(BaseModel):
    "Opened."
    number: int = Field(description="Its number.")

async def main():
    engine = create_async_engine({address(url, kind)!r})
    async with AsyncSession(engine) as session, session.begin():
        await within(session).publish(Opened(number=1))
    await engine.dispose()
    print(sorted(one for one in ("asyncpg", "psycopg", "pika") if sys.modules.get(one)))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert done.stdout.strip() == str([kind]), done.stderr
