"""The author's doors: jobs enqueued with the author's own state, or not at all, by every driver."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import class_row
from pydantic import BaseModel, Field

import postroad.asyncpg
import postroad.psycopg
from postroad.errors import AccessRefused, SchemaError, UsageError
from postroad.events import Producer
from postroad.outbox.unawaited import DROPPED, UnawaitedPublish
from postroad.signals.catalog import PublishDropped
from postroad.work import enqueue as module
from postroad.work.enqueue import Enqueue
from postroad.work.job import job

prints = Producer("prints")


@prints.event("print.ordered", version=1)
class Ordered(BaseModel):
    """A print was ordered."""

    number: int = Field(description="Its number.")


class PrintRequest(BaseModel):
    number: int


@job("prints.print")
async def print_(request: PrintRequest, run: Any) -> None: ...


class Author:
    """One connection of whichever kind: what is awaitable is awaited."""

    def __init__(self, connection):
        self.connection = connection
        self.module = postroad.asyncpg if isinstance(connection, asyncpg.Connection) else postroad.psycopg

    async def do(self, given):
        return await given if inspect.isawaitable(given) else given

    @property
    def door(self):
        return self.module.within(self.connection)

    async def enqueue(self, *given, **options):
        return await self.do(self.door.enqueue(*given, **options))

    async def enqueue_many(self, jobs):
        return await self.do(self.door.enqueue_many(jobs))

    async def publish(self, event):
        return await self.do(self.door.publish(event))

    async def execute(self, text):
        await self.do(self.connection.execute(text))

    async def undone(self, *acts):
        """All of it in one transaction (or savepoint), which is then rolled back."""
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the error ends the block
            async with self.transaction():
                for act in acts:
                    await act()
                raise ZeroDivisionError

    @asynccontextmanager
    async def transaction(self):
        block = self.connection.transaction()
        if isinstance(self.connection, psycopg.Connection):
            with block:
                yield
        else:
            async with block:
                yield


async def opened(kind, url):
    if kind == "asyncpg":
        return Author(await asyncpg.connect(url))
    if kind == "blocking":
        return Author(psycopg.connect(url, autocommit=True))
    return Author(await psycopg.AsyncConnection.connect(url, autocommit=True))


@pytest.fixture(params=["asyncpg", "blocking", "asynchronous"])
def kind(request):
    return request.param


@pytest.fixture
async def author(kind, author_url, postgres, database):
    postgres.execute("CREATE TABLE own (id int); GRANT ALL ON own TO pr_author", database=database.rpartition("/")[2])
    author = await opened(kind, author_url)
    yield author
    await author.do(author.connection.close())


@pytest.fixture
async def reader(runtime_url):
    connection = await asyncpg.connect(runtime_url)
    yield connection
    await connection.close()


async def numbers(reader):
    rows = await reader.fetch("SELECT body FROM postroad.work ORDER BY id")
    return [PrintRequest.model_validate_json(row["body"]).number for row in rows]


async def counts(reader):
    text = (
        "SELECT (SELECT count(*) FROM own), (SELECT count(*) FROM postroad.event), (SELECT count(*) FROM postroad.work)"
    )
    return tuple(await reader.fetchrow(text))


async def test_a_job_commits_with_the_authors_own_state_and_events(author, reader, postgres, database):
    postgres.execute("GRANT SELECT ON own TO pr_runtime", database=database.rpartition("/")[2])
    later = datetime(2126, 1, 1, tzinfo=UTC)
    async with author.transaction():
        await author.execute("INSERT INTO own VALUES (1)")
        done = await author.enqueue(print_, PrintRequest(number=7), run_at=later, priority=5, unique="seven")
        await author.publish(Ordered(number=7))
        assert await counts(reader) == (0, 0, 0)
    assert await counts(reader) == (1, 1, 1)
    row = await reader.fetchrow("SELECT * FROM postroad.work")
    assert (row["id"], done.new) == (done.id, True)
    assert (row["event_type"], row["queue"], row["key"], row["priority"]) == (
        "prints.print",
        "prints.print",
        "seven",
        5,
    )
    assert (row["state"], row["run_at"], row["due"]) == ("scheduled", later, later)


@pytest.mark.parametrize("done", [1, 3], ids=["between write and publish", "between publish and commit"])
async def test_a_failure_leaves_neither_writes_nor_events_nor_jobs(author, reader, postgres, database, done):
    postgres.execute("GRANT SELECT ON own TO pr_runtime", database=database.rpartition("/")[2])
    acts = [
        lambda: author.execute("INSERT INTO own VALUES (1)"),
        lambda: author.publish(Ordered(number=7)),
        lambda: author.enqueue(print_, PrintRequest(number=7)),
    ]
    await author.undone(*acts[:done])
    assert await counts(reader) == (0, 0, 0)


@pytest.mark.sabotage
async def test_on_a_connection_of_its_own_the_job_would_outlive_the_rollback(author, author_url, kind, reader):
    beside = await opened(kind, author_url)
    async with beside.transaction():
        await author.undone(lambda: beside.enqueue(print_, PrintRequest(number=7)))
    await beside.do(beside.connection.close())
    assert await numbers(reader) == [7]


async def test_outside_a_transaction_an_enqueue_is_refused_at_the_call(author, reader):
    with pytest.raises(UsageError, match=r"an enqueue outside a transaction would stand alone; .*transaction.*PR105"):
        author.door.enqueue(print_, PrintRequest(number=7))
    with pytest.raises(UsageError, match="PR105"):
        author.door.enqueue_many([])
    assert await numbers(reader) == []


async def test_an_enqueue_awaited_after_its_transaction_is_refused(author, kind, reader):
    if kind == "blocking":
        return  # Nothing of it is awaited.
    async with author.transaction():
        late = author.door.enqueue(print_, PrintRequest(number=7))
    with pytest.raises(UsageError, match=r"an enqueue that was awaited outside a transaction.*PR105"):
        await late
    assert await numbers(reader) == []


@pytest.mark.parametrize("wrong", [{"request": Ordered(number=1)}, {"priority": 10**6}, {"run_at": "soon"}])
async def test_a_wrong_enqueue_is_refused_at_the_call(author, reader, wrong):
    given = {"request": PrintRequest(number=1), **wrong}
    async with author.transaction():
        with pytest.raises(UsageError, match="PR107"):
            author.door.enqueue(print_, given.pop("request"), **given)
        with pytest.raises(UsageError, match="PR107"):
            author.door.enqueue_many([Enqueue(print_, PrintRequest(number=1)), Enqueue(print_, "text")])
        await author.enqueue(print_, PrintRequest(number=2))
    assert await numbers(reader) == [2]


async def test_a_unique_job_is_written_once_and_the_author_is_told(author, reader):
    done = []
    for _ in range(2):
        async with author.transaction():
            done.append(await author.enqueue(print_, PrintRequest(number=7), unique="k" * 5000 + "\x00\ud800😀"))
    async with author.transaction():
        done.append(await author.enqueue(print_, PrintRequest(number=8), unique="k" * 5000 + "\x00\ud801😀"))
    assert [one.new for one in done] == [True, False, True]
    assert [one.id is None for one in done] == [False, True, False]
    assert await numbers(reader) == [7, 8]


async def test_many_jobs_keep_their_order_and_options(author, reader):
    async with author.transaction():
        done = await author.enqueue_many(
            [
                Enqueue(print_, PrintRequest(number=at), unique=key, priority=-at)
                for at, key in enumerate(["b", None, "b"])
            ]
        )
        assert await author.enqueue_many([]) == []
    assert [one.new for one in done] == [True, True, False]
    rows = await reader.fetch("SELECT id, priority FROM postroad.work ORDER BY id")
    assert [tuple(row) for row in rows] == [(done[0].id, 0), (done[1].id, -1)]


async def test_a_job_may_go_to_another_queue_where_its_unique_key_is_another(author, reader):
    async with author.transaction():
        done = [
            await author.enqueue(print_, PrintRequest(number=1), unique="k"),
            await author.enqueue(print_, PrintRequest(number=2), unique="k", queue="slow"),
            *await author.enqueue_many([Enqueue(print_, PrintRequest(number=3), unique="k", queue="slow")]),
            *await author.enqueue_many([Enqueue(print_, PrintRequest(number=4), queue="slow")]),
        ]
    assert [one.new for one in done] == [True, True, False, True]
    rows = await reader.fetch("SELECT queue, event_type FROM postroad.work ORDER BY id")
    assert [tuple(row) for row in rows] == [("prints.print", "prints.print"), *[("slow", "prints.print")] * 2]


@pytest.mark.parametrize("count", [1, 500])
async def test_enqueueing_takes_one_statement(author, count, reader):
    """Counted by the command ids of the transaction: each statement that writes takes one."""
    async with author.transaction():
        await author.enqueue_many([Enqueue(print_, PrintRequest(number=1))] * count)
        await author.enqueue(print_, PrintRequest(number=2))
    seen = await reader.fetch("SELECT DISTINCT cmin::text::int FROM postroad.work ORDER BY 1")
    assert [row[0] for row in seen] == [0, 1]


@pytest.mark.parametrize("count", [1, 500])
async def test_enqueueing_takes_one_round_trip(author_url, count):
    connection, seen = await asyncpg.connect(author_url), []
    jobs = [Enqueue(print_, PrintRequest(number=1))] * count
    async with connection.transaction():
        await postroad.asyncpg.within(connection).enqueue_many(jobs)  # asyncpg learns the types once per connection.
        with connection.query_logger(lambda record: seen.append(record.query)):
            await postroad.asyncpg.within(connection).enqueue_many(jobs)
            await postroad.asyncpg.within(connection).enqueue(print_, PrintRequest(number=1))
    assert len(seen) == 2
    await connection.close()


async def test_a_savepoint_takes_its_job_back(author, reader):
    async with author.transaction():
        await author.enqueue(print_, PrintRequest(number=1))
        await author.undone(lambda: author.enqueue(print_, PrintRequest(number=2)))
        await author.enqueue(print_, PrintRequest(number=3))
    assert await numbers(reader) == [1, 3]


async def test_the_connections_own_row_factory_does_not_matter(author_url, reader):
    with psycopg.connect(author_url, row_factory=class_row(dict)) as connection:
        assert postroad.psycopg.within(connection).enqueue(print_, PrintRequest(number=1)).new
    assert await numbers(reader) == [1]


async def test_in_pipeline_mode_an_enqueue_is_answered_too(author, kind, reader):
    if kind == "asyncpg":
        return  # It has none.
    pipeline = author.connection.pipeline()
    async with AsyncExitStack() as stack:
        if kind == "blocking":
            stack.enter_context(pipeline)
        else:
            await stack.enter_async_context(pipeline)
        async with author.transaction():
            await author.publish(Ordered(number=1))
            done = [await author.enqueue(print_, PrintRequest(number=1), unique="k") for _ in range(2)]
    assert [one.new for one in done] == [True, False]
    assert await numbers(reader) == [1]


async def test_a_forgotten_await_is_reported(author, kind, reader):
    if kind == "blocking":
        return  # It needs none.

    def forget():
        author.door.enqueue(print_, PrintRequest(number=1))
        author.door.enqueue_many([Enqueue(print_, PrintRequest(number=1))])
        gc.collect()

    heard = []
    remove = DROPPED.subscribe(heard.append)
    async with author.transaction():
        with pytest.warns(UnawaitedPublish, match=r"enqueue of prints\.print was never awaited"):
            forget()
    remove()
    assert heard == [PublishDropped("prints.print")] * 2
    assert await numbers(reader) == []


async def test_an_awaited_enqueue_is_not_reported_nor_is_one_run_as_a_task(author, kind):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with author.transaction():
            await author.enqueue(print_, PrintRequest(number=1))
            if kind != "blocking":
                await asyncio.create_task(author.door.enqueue(print_, PrintRequest(number=1)))
        gc.collect()
    assert caught == []


async def test_a_database_that_was_not_migrated_says_what_to_run(kind, empty_database):
    author = await opened(kind, empty_database)
    with pytest.raises(SchemaError, match=r"^schema 'postroad' is missing .*`postroad migrate`.* \[PR202\]$"):
        async with author.transaction():
            await author.enqueue(print_, PrintRequest(number=1))
    await author.do(author.connection.close())


async def test_an_enqueue_without_the_right_says_who_gives_it(kind, database, postgres):
    postgres.add_role("pr_nobody")
    author = await opened(kind, postgres.url(database.rpartition("/")[2], "pr_nobody"))
    with pytest.raises(AccessRefused, match=r"may not enqueue in schema .*--author-role.* \[PR303\]$"):
        async with author.transaction():
            await author.enqueue(print_, PrintRequest(number=1))
    await author.do(author.connection.close())


@pytest.mark.sabotage
async def test_an_answer_that_reads_columns_would_be_refused_to_the_author(author, monkeypatch):
    text = module.QUERIES.text("enqueue", "postroad")
    wrong = text.replace("RETURNING current_setting('postroad.enqueued')::bigint AS id", "RETURNING work.id")
    assert wrong != text
    monkeypatch.setitem(module.QUERIES._rendered, ("enqueue", "postroad"), wrong)
    with pytest.raises(AccessRefused):
        async with author.transaction():
            await author.enqueue(print_, PrintRequest(number=1))
