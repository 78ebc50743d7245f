"""The author's door for psycopg: the same promises on blocking and on asynchronous connections."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import warnings
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import asyncpg
import psycopg
import psycopg_pool
import pytest
from psycopg.rows import class_row, namedtuple_row
from pydantic import BaseModel, Field

from postroad.clock import ManualClock
from postroad.errors import UsageError
from postroad.events import Producer
from postroad.events.cause import Cause, cause
from postroad.events.envelope import CONTENT_TYPE, decode, key_hash
from postroad.outbox.unawaited import DROPPED
from postroad.psycopg import AsyncWithin, Publish, UnawaitedPublish, Within, within
from postroad.signals.catalog import PublishDropped

gates = Producer("gates")


@gates.event("gate.opened", version=3)
class Opened(BaseModel):
    """A gate was opened."""

    number: int = Field(description="Its number.")


@gates.event("gate.closed", version=1, max_bytes=100)
class Closed(BaseModel):
    """A gate was closed."""

    note: str = Field(default="", description="Why.")


class Undeclared(BaseModel):
    number: int = 1


class Author:
    """One connection, whichever kind: what is awaitable is awaited."""

    def __init__(self, connection):
        self.connection = connection

    async def do(self, given):
        return await given if inspect.isawaitable(given) else given

    async def execute(self, text):
        return await self.do(self.connection.execute(text))

    async def publish(self, event, **options):
        return await self.do(within(self.connection).publish(event, **options))

    async def publish_many(self, events):
        return await self.do(within(self.connection).publish_many(events))

    async def commit(self):
        await self.do(self.connection.commit())

    async def rollback(self):
        await self.do(self.connection.rollback())


@pytest.fixture(params=["blocking", "asynchronous"])
async def author(request, author_url, postgres, database):
    postgres.execute("CREATE TABLE own (id int); GRANT ALL ON own TO pr_author", database=database.rpartition("/")[2])
    kind = psycopg.Connection if request.param == "blocking" else psycopg.AsyncConnection
    opened = kind.connect(author_url)
    author = Author(await opened if inspect.isawaitable(opened) else opened)
    yield author
    await author.do(author.connection.close())


@pytest.fixture
async def reader(runtime_url):
    connection = await asyncpg.connect(runtime_url)
    yield connection
    await connection.close()


async def logged(reader):
    rows = await reader.fetch("SELECT envelope FROM postroad.event ORDER BY seq")
    return [decode(row["envelope"], content_type=CONTENT_TYPE, headers={}) for row in rows]


async def test_a_publish_commits_with_the_authors_own_state(author, reader):
    left = datetime(2013, 1, 1, 10, 17, tzinfo=timezone(timedelta(hours=-5)))
    await author.execute("INSERT INTO own VALUES (1)")
    identity = await author.publish(Opened(number=7), key="UA-1", sequence=3, occurred_at=left)
    assert await logged(reader) == []
    await author.commit()
    (envelope,) = await logged(reader)
    assert isinstance(identity, UUID)
    assert identity.version == 7
    assert envelope.id == str(identity)
    assert (envelope.type, envelope.version, envelope.data) == ("gates.gate.opened", 3, {"number": 7})
    assert (envelope.key, envelope.sequence, envelope.time) == ("UA-1", 3, left)
    row = await reader.fetchrow("SELECT * FROM postroad.outbox")
    assert (row["route"], row["key_hash"]) == ("gates.gate.opened.v3", key_hash("UA-1"))
    assert row["shard"] == key_hash("UA-1") % 16
    assert await reader.fetchval("SELECT recorded FROM postroad.event") == envelope.recorded


async def test_a_publish_begins_the_transaction_where_none_has_begun(author, reader):
    await author.publish(Opened(number=1))
    await author.rollback()
    await author.publish(Opened(number=2))
    await author.commit()
    assert [envelope.data["number"] for envelope in await logged(reader)] == [2]


async def test_a_savepoint_takes_its_publish_back(author, reader):
    await author.publish(Opened(number=1))
    await author.execute("SAVEPOINT here")
    await author.publish(Opened(number=2))
    await author.execute("ROLLBACK TO here")
    await author.commit()
    assert [envelope.data["number"] for envelope in await logged(reader)] == [1]


async def test_in_autocommit_a_publish_outside_a_transaction_is_refused_at_the_call(author, reader):
    await author.do(author.connection.set_autocommit(True))
    with pytest.raises(UsageError, match=r"with connection\.transaction\(\).*PR105"):
        within(author.connection).publish(Opened(number=1))
    with pytest.raises(UsageError, match="PR105"):
        within(author.connection).publish_many([])
    await author.execute("BEGIN")
    await author.publish(Opened(number=2))
    await author.execute("COMMIT")
    assert [envelope.data["number"] for envelope in await logged(reader)] == [2]


async def test_in_autocommit_a_block_is_a_transaction(author, reader):
    await author.do(author.connection.set_autocommit(True))
    if isinstance(author.connection, psycopg.Connection):
        with author.connection.transaction():
            within(author.connection).publish(Opened(number=1))
    else:
        async with author.connection.transaction():
            await within(author.connection).publish(Opened(number=1))
    assert len(await logged(reader)) == 1


async def test_in_pipeline_mode_what_was_staged_goes_with_the_rest(author, reader):
    await author.do(author.connection.set_autocommit(True))
    if isinstance(author.connection, psycopg.Connection):
        with author.connection.pipeline(), author.connection.transaction():
            author.connection.execute("INSERT INTO own VALUES (1)")
            within(author.connection).publish(Opened(number=1))
            within(author.connection).publish(Opened(number=2))
    else:
        async with author.connection.pipeline(), author.connection.transaction():
            await author.connection.execute("INSERT INTO own VALUES (1)")
            await within(author.connection).publish(Opened(number=1))
            await within(author.connection).publish(Opened(number=2))
    assert [envelope.data["number"] for envelope in await logged(reader)] == [1, 2]


async def test_a_publish_awaited_after_its_transaction_is_refused(author_url, reader):
    async with await psycopg.AsyncConnection.connect(author_url, autocommit=True) as connection:
        async with connection.transaction():
            late = within(connection).publish(Opened(number=1))
        with pytest.raises(UsageError, match="PR105"):
            await late
    assert await logged(reader) == []


async def test_many_events_keep_order_and_options(author, reader):
    identities = await author.publish_many(
        [Opened(number=1), Publish(Closed(note="draught 100%"), key="d", sequence=0, correlation="c"), Opened(number=3)]
    )
    assert await author.publish_many([]) == []
    await author.commit()
    envelopes = await logged(reader)
    assert [envelope.id for envelope in envelopes] == [str(identity) for identity in identities]
    assert [envelope.type for envelope in envelopes] == ["gates.gate.opened", "gates.gate.closed", "gates.gate.opened"]
    assert (envelopes[1].key, envelopes[1].sequence, envelopes[1].correlation_id) == ("d", 0, "c")
    assert envelopes[1].data == {"note": "draught 100%"}


async def test_every_number_and_absence_fits_its_column(author, reader):
    for many in (False, True):
        for sequence in (None, 0, 40_000, 2**40, 2**63 - 1):
            for key in (None, "k"):
                given = Publish(Opened(number=1), key=key, sequence=sequence)
                if many:
                    await author.publish_many([given, given])
                else:
                    await author.publish(given.event, key=key, sequence=sequence)
    await author.commit()
    assert len(await logged(reader)) == 30


@pytest.mark.parametrize("count", [1, 500])
async def test_publishing_takes_one_statement(author, count, reader):
    """Counted by the command ids of the transaction: each statement takes one."""
    await author.publish_many([Opened(number=number) for number in range(count)])
    await author.commit()
    assert await reader.fetchval("SELECT count(DISTINCT cmin::text) FROM postroad.outbox") == 1
    assert await reader.fetchval("SELECT count(*) FROM postroad.outbox") == count


async def test_one_wrong_event_of_many_sends_none(author, reader):
    with pytest.raises(UsageError, match="PR109"):
        within(author.connection).publish_many([Opened(number=1), Undeclared()])
    await author.commit()
    assert await logged(reader) == []


@pytest.mark.parametrize(
    ("event", "options", "code"),
    [
        (Undeclared(), {}, "PR109"),
        (Closed(note="x" * 200), {}, "PR106"),
        (Opened.model_construct(number="hush"), {}, "PR107"),
        (Opened(number=1), {"key": ""}, "PR107"),
        (Opened(number=1), {"sequence": -1}, "PR107"),
    ],
)
async def test_a_wrong_publish_is_refused_before_anything_is_sent(author, reader, event, options, code):
    with pytest.raises(UsageError) as caught:
        within(author.connection).publish(event, **options)
    await author.publish(Opened(number=2))
    await author.commit()
    assert caught.value.code == code
    assert "hush" not in str(caught.value)
    assert [envelope.data["number"] for envelope in await logged(reader)] == [2]


async def test_inside_a_handler_correlation_and_causation_follow_by_themselves(author, reader):
    with cause(Cause("story", "event-1")):
        await author.publish(Opened(number=1))
    await author.commit()
    (envelope,) = await logged(reader)
    assert (envelope.correlation_id, envelope.causation_id) == ("story", "event-1")


async def test_the_clock_is_an_argument(author, reader):
    clock = ManualClock(at=datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC))
    await author.do(within(author.connection, clock=clock).publish(Opened(number=1)))
    await author.commit()
    (envelope,) = await logged(reader)
    assert envelope.time == envelope.recorded == clock.at


@pytest.mark.parametrize("rows", [namedtuple_row, class_row(Undeclared)])
async def test_the_connections_own_factories_do_not_matter(author, reader, rows):
    author.connection.row_factory = rows
    if isinstance(author.connection, psycopg.Connection):
        author.connection.cursor_factory = psycopg.ClientCursor
    else:
        author.connection.cursor_factory = psycopg.AsyncClientCursor
    await author.publish(Opened(number=1))
    await author.commit()
    assert len(await logged(reader)) == 1


async def test_a_connection_of_the_other_driver_is_sent_to_its_door(author_url):
    other = await asyncpg.connect(author_url)
    with pytest.raises(UsageError, match=r"not asyncpg\.connection\.Connection; its door is postroad\.asyncpg\.within"):
        within(other)
    await other.close()


async def test_a_pool_is_no_connection_but_what_it_lends_is(author_url, reader):
    with psycopg_pool.ConnectionPool(author_url, min_size=1, open=False) as pool:
        with pytest.raises(
            UsageError,
            match=r"takes a psycopg connection, not psycopg_pool\.pool\.ConnectionPool; .* \[PR107\]",
        ):
            within(pool)
        with pool.connection() as lent:
            within(lent).publish(Opened(number=1))
    assert len(await logged(reader)) == 1


def test_each_kind_of_connection_has_its_door(author_url):
    with psycopg.connect(author_url) as connection:
        assert type(within(connection)) is Within


async def test_an_asynchronous_connection_has_its_own(author_url):
    async with await psycopg.AsyncConnection.connect(author_url) as connection:
        assert type(within(connection)) is AsyncWithin
        await asyncio.create_task(within(connection).publish(Opened(number=1)))


async def test_a_forgotten_await_is_reported(author_url, reader):
    def forget(connection):
        within(connection).publish(Opened(number=1))
        gc.collect()

    heard = []
    remove = DROPPED.subscribe(heard.append)
    async with await psycopg.AsyncConnection.connect(author_url) as connection:
        with pytest.warns(UnawaitedPublish, match=r"gates.gate.opened was never awaited"):
            forget(connection)
    remove()
    assert heard == [PublishDropped("gates.gate.opened")]
    assert await logged(reader) == []


def test_a_blocking_publish_needs_no_await(author_url):
    with warnings.catch_warnings(record=True) as caught, psycopg.connect(author_url) as connection:
        warnings.simplefilter("always")
        within(connection).publish(Opened(number=1))
        gc.collect()
    assert caught == []


def test_the_door_needs_its_driver_and_nothing_else():
    needed = _imported("import postroad.psycopg")
    assert "psycopg" in needed
    assert not needed & {"asyncpg", "psycopg_pool", "pika", "typer", "rich", "prometheus_client", "cronsim", "uvloop"}


def test_nothing_else_needs_the_driver():
    needed = _imported("from postroad import App, consumer, Producer; import postroad.asyncpg, postroad.cli")
    assert not needed & {"psycopg", "psycopg_pool"}


def _imported(code):
    code = f"{code}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    return set(done.stdout.split())
