"""What a job's transactions are with ``on=``: sessions of SQLAlchemy's, asynchronous connections of psycopg's."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from postroad.clock import seconds
from postroad.errors import UsageError
from postroad.psycopg import AsyncConnections
from postroad.retry import Backoff
from postroad.signals.catalog import LateWriteRefused, WorkSettled
from postroad.sqlalchemy import AsyncSessions, Sessions, within
from postroad.work.job import job, job_of
from postroad.work.run import BlockingRun, Run  # noqa: TC001 - a job's declaration reads its annotations
from work.jobbench import Number, enqueue, numbers, queues, until_empty, working

QUICKLY = Backoff(first=seconds(0.05), most=seconds(0.05), attempts=5)


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "made"
    __table_args__ = ({"schema": "postroad"},)
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
async def effects(here, sql):
    await sql.execute("CREATE TABLE made (number int); GRANT ALL ON made TO pr_runtime")
    yield sql
    await here.owner.cancel()
    await here.owner.join(within=seconds(2))


def address(url, driver):
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


@pytest.fixture(params=["asyncpg", "psycopg", "connections"])
async def on(request, runtime_url):
    if request.param == "connections":
        yield AsyncConnections()
        return
    engine = create_async_engine(address(runtime_url, request.param))
    yield AsyncSessions(async_sessionmaker(engine))
    await engine.dispose()


async def write(tx, number):
    if isinstance(tx, AsyncSession):
        tx.add(Effect(number=number))
    else:
        await tx.execute("INSERT INTO postroad.made VALUES (%s)", (number,))


def opened(here, url, on):
    return lambda one: on.transactions(url, here.owner, size=4, name=one.name)


async def written(sql):
    return [row["number"] for row in await sql.fetch("SELECT number FROM made ORDER BY 1")]


async def test_a_runs_transactions_are_of_its_form_and_fenced(here, effects, runtime_url, on):
    @job("j", on=on)
    async def work(request: Number, run: Run) -> None:
        async with run.transaction() as tx:
            await write(tx, request.number)
        with suppress(ZeroDivisionError):
            async with run.transaction() as tx:
                await write(tx, request.number + 50)
                raise ZeroDivisionError
        async with run.transaction(finish=True) as tx:
            await write(tx, request.number + 100)

    await enqueue(effects, "j", *numbers(3))
    async with working(here, queues(here, work, transactions=opened(here, runtime_url, on))):
        await until_empty(effects)
    assert await written(effects) == [0, 1, 2, 100, 101, 102]


async def test_what_a_run_writes_after_its_row_is_anothers_changes_nothing(here, effects, runtime_url, on):
    @job("j", on=on, retry=QUICKLY)
    async def work(request: Number, run: Run) -> None:
        if run.attempt == 1:
            await effects.execute("UPDATE work SET token = token + 1000000 WHERE id = $1", run.id)
        async with run.transaction() as tx:
            await write(tx, request.number)

    await enqueue(effects, "j", *numbers(1))
    async with working(here, queues(here, work, transactions=opened(here, runtime_url, on))):
        await here.heard.wait(LateWriteRefused)
    assert await written(effects) == []


async def test_a_commit_inside_is_refused(here, effects, runtime_url, on):
    seen = []

    @job("j", on=on, retry=QUICKLY)
    async def work(request: Number, run: Run) -> None:
        try:
            async with run.transaction() as tx:
                await write(tx, request.number + run.attempt)
                if run.attempt == 1:
                    await tx.commit()
        except UsageError as error:
            seen.append(error.code)
            raise

    await enqueue(effects, "j", *numbers(1))
    async with working(here, queues(here, work, transactions=opened(here, runtime_url, on))):
        await until_empty(effects)
    assert (seen, await written(effects)) == (["PR111"], [2])


async def test_a_def_job_has_sessions_on_its_thread(here, effects, runtime_url):
    engine = create_engine(address(runtime_url, "psycopg"))
    on = Sessions(sessionmaker(engine))

    @job("j", on=on)
    def work(request: Number, run: BlockingRun) -> None:
        with run.transaction() as session:
            session.add(Effect(number=request.number))
            within(session).enqueue(later, Number(number=1))
        with suppress(ZeroDivisionError), run.transaction() as session:
            session.execute(text("INSERT INTO postroad.made VALUES (50)"))
            raise ZeroDivisionError
        with run.transaction(finish=True) as session:
            session.add(Effect(number=request.number + 100))

    await enqueue(effects, "j", *numbers(2))
    async with working(here, queues(here, work, transactions=opened(here, runtime_url, on))):
        await here.heard.wait(WorkSettled, count=2)
    assert await written(effects) == [0, 1, 100, 101]
    assert await effects.fetchval("SELECT count(*) FROM work WHERE queue = 'later'") == 2
    await here.owner.join(within=seconds(2))
    engine.dispose()


@job("later")
async def later(request: Number, run: Run) -> None: ...


def test_a_form_must_fit_the_function(runtime_url):
    on = AsyncConnections()
    with pytest.raises(UsageError, match=r"`def` function needs transactions of threads.*PR101"):

        @job("j", on=on)
        def work(request: Number, run: BlockingRun) -> None: ...

    with pytest.raises(UsageError, match="write on=AsyncSessions"):
        job("j", on=runtime_url)(later)
    assert job_of(later).on is None
