"""The author's door for asyncpg: published with the author's own state, or not at all."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import asyncpg
import psycopg
import pytest
from pydantic import BaseModel, Field

from postroad.asyncpg import Publish, UnawaitedPublish, within
from postroad.clock import ManualClock
from postroad.errors import AccessRefused, SchemaError, UsageError
from postroad.events import Producer
from postroad.events.cause import Cause, cause
from postroad.events.envelope import CONTENT_TYPE, decode, key_hash
from postroad.outbox.publish import default_schema
from postroad.outbox.unawaited import DROPPED
from postroad.signals.catalog import PublishDropped

doors = Producer("doors")
elsewhere = Producer("elsewhere", schema="other")


@doors.event("door.opened", version=3)
class Opened(BaseModel):
    """A door was opened."""

    number: int = Field(description="Its number.")


@doors.event("door.closed", version=1, max_bytes=100)
class Closed(BaseModel):
    """A door was closed."""

    note: str = Field(default="", description="Why.")


@elsewhere.event("door.moved", version=1)
class Moved(BaseModel):
    """A door was moved."""


class Undeclared(BaseModel):
    number: int = 1


@pytest.fixture
async def author(author_url, postgres, database):
    postgres.execute("CREATE TABLE own (id int); GRANT ALL ON own TO pr_author", database=database.rpartition("/")[2])
    connection = await asyncpg.connect(author_url)
    yield connection
    await connection.close()


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
    async with author.transaction():
        await author.execute("INSERT INTO own VALUES (1)")
        identity = await within(author).publish(Opened(number=7), key="UA-1", sequence=3, occurred_at=left)
    (envelope,) = await logged(reader)
    assert isinstance(identity, UUID)
    assert identity.version == 7
    assert envelope.id == str(identity)
    assert (envelope.type, envelope.version, envelope.data) == ("doors.door.opened", 3, {"number": 7})
    assert (envelope.key, envelope.sequence, envelope.time) == ("UA-1", 3, left)
    assert envelope.recorded is not None
    row = await reader.fetchrow("SELECT * FROM postroad.outbox")
    assert (row["route"], row["key_hash"]) == ("doors.door.opened.v3", key_hash("UA-1"))
    assert row["shard"] == key_hash("UA-1") % 16
    assert await reader.fetchval("SELECT recorded FROM postroad.event") == envelope.recorded


async def test_a_rolled_back_transaction_published_nothing(author, reader):
    transaction = author.transaction()
    await transaction.start()
    await author.execute("INSERT INTO own VALUES (1)")
    await within(author).publish(Opened(number=7))
    await transaction.rollback()
    assert await author.fetchval("SELECT count(*) FROM own") == 0
    assert await logged(reader) == []


async def test_a_savepoint_takes_its_publish_back(author, reader):
    async with author.transaction():
        await within(author).publish(Opened(number=1))
        savepoint = author.transaction()
        await savepoint.start()
        await within(author).publish(Opened(number=2))
        await savepoint.rollback()
    assert [envelope.data["number"] for envelope in await logged(reader)] == [1]


async def test_a_publish_outside_a_transaction_is_refused_at_the_call(author, reader):
    with pytest.raises(UsageError, match="PR105"):
        within(author).publish(Opened(number=1))
    with pytest.raises(UsageError, match="PR105"):
        within(author).publish_many([])
    assert await logged(reader) == []


async def test_a_publish_awaited_after_its_transaction_is_refused(author, reader):
    async with author.transaction():
        late = within(author).publish(Opened(number=1))
    with pytest.raises(UsageError, match="PR105"):
        await late
    assert await logged(reader) == []


@pytest.mark.parametrize("count", [1, 500])
async def test_publishing_takes_one_round_trip(author, count):
    seen = []
    async with author.transaction():
        await within(author).publish_many([Opened(number=0)] * count)  # asyncpg learns the types once per connection.
        with author.query_logger(lambda record: seen.append(record.query)):
            await within(author).publish_many([Opened(number=number) for number in range(count)])
    assert len(seen) == 1


async def test_many_events_keep_order_and_options(author, reader):
    async with author.transaction():
        identities = await within(author).publish_many(
            [Opened(number=1), Publish(Closed(note="draught"), key="d", sequence=0, correlation="c"), Opened(number=3)]
        )
        assert await within(author).publish_many([]) == []
    envelopes = await logged(reader)
    assert [envelope.id for envelope in envelopes] == [str(identity) for identity in identities]
    assert [envelope.type for envelope in envelopes] == ["doors.door.opened", "doors.door.closed", "doors.door.opened"]
    assert (envelopes[1].key, envelopes[1].sequence, envelopes[1].correlation_id) == ("d", 0, "c")


async def test_one_wrong_event_of_many_sends_none(author, reader):
    async with author.transaction():
        with pytest.raises(UsageError, match="PR109"):
            within(author).publish_many([Opened(number=1), Undeclared()])
    assert await logged(reader) == []


@pytest.mark.parametrize(
    ("event", "options", "code"),
    [
        (Undeclared(), {}, "PR109"),
        ("text", {}, "PR109"),
        (Closed(note="x" * 200), {}, "PR106"),
        (Opened.model_construct(number="hush"), {}, "PR107"),
        (Opened(number=1), {"occurred_at": datetime(2026, 1, 1)}, "PR107"),  # noqa: DTZ001
        (Opened(number=1), {"occurred_at": "2026-01-01T00:00:00Z"}, "PR107"),
        (Opened(number=1), {"key": ""}, "PR107"),
        (Opened(number=1), {"key": "a\x00b"}, "PR107"),
        (Opened(number=1), {"key": "é" * 128}, "PR107"),
        (Opened(number=1), {"key": 5}, "PR107"),
        (Opened(number=1), {"sequence": -1}, "PR107"),
        (Opened(number=1), {"sequence": 2**63}, "PR107"),
        (Opened(number=1), {"sequence": True}, "PR107"),
        (Opened(number=1), {"correlation": "x" * 256}, "PR107"),
    ],
)
async def test_a_wrong_publish_is_refused_before_anything_is_sent(author, reader, event, options, code):
    async with author.transaction():
        with pytest.raises(UsageError) as caught:
            within(author).publish(event, **options)
        await within(author).publish(Opened(number=2))
    assert caught.value.code == code
    assert "hush" not in str(caught.value)
    assert [envelope.data["number"] for envelope in await logged(reader)] == [2]


async def test_inside_a_handler_correlation_and_causation_follow_by_themselves(author, reader):
    with cause(Cause("story", "event-1")):
        async with author.transaction():
            await within(author).publish(Opened(number=1))
            await within(author).publish(Opened(number=2), correlation="another")
    first, second = await logged(reader)
    assert (first.correlation_id, first.causation_id) == ("story", "event-1")
    assert (second.correlation_id, second.causation_id) == ("another", "event-1")


async def test_outside_of_handlers_an_event_begins_its_own_story(author, reader):
    async with author.transaction():
        identity = await within(author).publish(Opened(number=1))
    (envelope,) = await logged(reader)
    assert (envelope.correlation_id, envelope.causation_id) == (str(identity), None)


async def test_the_clock_is_an_argument(author, reader):
    clock = ManualClock(at=datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC))
    async with author.transaction():
        await within(author, clock=clock).publish(Opened(number=1))
    (envelope,) = await logged(reader)
    assert envelope.time == envelope.recorded == clock.at


async def test_a_producers_schema_wins(author):
    async with author.transaction():
        with pytest.raises(SchemaError, match="schema 'other' is missing"):
            await within(author).publish(Moved())


@pytest.mark.parametrize("count", [1, 2])
async def test_a_publish_where_nothing_was_migrated_says_what_to_run(empty_database, count):
    connection = await asyncpg.connect(empty_database)
    with pytest.raises(SchemaError, match=r"^schema 'postroad' is missing .*`postroad migrate`.* \[PR202\]$") as caught:
        async with connection.transaction():
            await within(connection).publish_many([Opened(number=1)] * count)
    assert isinstance(caught.value.__cause__, asyncpg.UndefinedTableError)
    await connection.close()


async def test_a_publish_without_the_right_says_who_gives_it(database, postgres):
    postgres.add_role("pr_nobody")
    connection = await asyncpg.connect(postgres.url(database.rpartition("/")[2], "pr_nobody"))
    with pytest.raises(AccessRefused, match=r"may not publish in schema .*--author-role.* \[PR303\]$") as caught:
        async with connection.transaction():
            await within(connection).publish(Opened(number=1))
    assert isinstance(caught.value.__cause__, asyncpg.InsufficientPrivilegeError)
    await connection.close()


async def test_other_errors_of_the_database_come_out_as_they_are(author):
    transaction = author.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.UndefinedTableError):
        await author.execute("SELECT * FROM nowhere")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await within(author).publish(Opened(number=1))
    await transaction.rollback()


async def test_a_closed_connection_is_named_as_what_is_wrong(author_url):
    connection = await asyncpg.connect(author_url)
    await connection.close()
    with pytest.raises(UsageError, match=r"the connection is closed: acquire another \[PR105\]"):
        within(connection).publish(Opened(number=1))


def test_the_environment_names_the_schema_of_other_producers(monkeypatch):
    default_schema.cache_clear()
    monkeypatch.setenv("POSTROAD_SCHEMA", "mail")
    assert default_schema() == "mail"
    monkeypatch.delenv("POSTROAD_SCHEMA")
    assert default_schema() == "mail"
    default_schema.cache_clear()
    assert default_schema() == "postroad"


def test_a_connection_of_the_other_driver_is_sent_to_its_door(author_url):
    with (
        psycopg.connect(author_url) as other,
        pytest.raises(UsageError, match=r"not psycopg\.Connection; its door is postroad\.psycopg\.within"),
    ):
        within(other)


async def test_a_pool_is_no_connection_but_what_it_lends_is(author_url, reader):
    async with asyncpg.create_pool(author_url, min_size=1, max_size=1) as pool:
        with pytest.raises(UsageError, match=r"takes an asyncpg connection, not asyncpg\.pool\.Pool; .* \[PR107\]"):
            within(pool)
        async with pool.acquire() as lent, lent.transaction():
            await within(lent).publish(Opened(number=1))
    assert len(await logged(reader)) == 1


async def test_a_publish_can_run_as_a_task_and_under_a_time_limit(author, reader):
    async with author.transaction():
        await asyncio.create_task(within(author).publish(Opened(number=1)))
        await asyncio.wait_for(within(author).publish(Opened(number=2)), 10)
    assert [envelope.data["number"] for envelope in await logged(reader)] == [1, 2]


async def test_a_forgotten_await_is_reported(author, reader):
    def forget():
        within(author).publish(Opened(number=1))
        gc.collect()

    heard = []
    remove = DROPPED.subscribe(heard.append)
    async with author.transaction():
        with pytest.warns(UnawaitedPublish, match=r"doors.door.opened was never awaited"):
            forget()
    remove()
    assert heard == [PublishDropped("doors.door.opened")]
    assert await logged(reader) == []


async def test_an_awaited_or_closed_publish_is_not_reported(author):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with author.transaction():
            await within(author).publish(Opened(number=1))
            within(author).publish(Opened(number=2)).close()
            with pytest.raises(ValueError, match="no"):
                within(author).publish(Opened(number=3)).throw(ValueError("no"))
        gc.collect()
    assert caught == []


async def test_a_publish_is_awaited_once(author):
    async with author.transaction():
        once = within(author).publish(Opened(number=1))
        await once
        with pytest.raises(RuntimeError, match="already awaited"):
            await once


def test_the_door_needs_its_driver_and_nothing_else():
    needed = _imported("import postroad.asyncpg")
    assert "asyncpg" in needed
    assert not needed & {"pika", "typer", "rich", "prometheus_client", "cronsim", "uvloop"}


def test_declaring_and_staging_need_the_core_alone():
    needed = _imported("import postroad.outbox.publish, postroad.outbox.unawaited; from postroad import Producer, Keep")
    assert not needed & {"asyncpg", "pika", "typer", "rich", "prometheus_client", "cronsim", "uvloop"}


def _imported(code):
    code = f"{code}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    return set(done.stdout.split())
