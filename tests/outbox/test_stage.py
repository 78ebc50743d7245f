"""Staging: one statement leaves the rows of the log and the outbox, under the author's role."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from postroad.outbox.stage import QUERIES, StagedEvent, stage
from postroad.sql import authoring
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.drive import drive

NOW = datetime(2026, 5, 4, 3, 2, 1, 987_654, tzinfo=UTC)


def a_row(**changes) -> StagedEvent:
    row = StagedEvent(
        id=uuid4(),
        type="flights.flight.departed",
        version=2,
        key="UA-1",
        sequence=7,
        occurred=NOW - timedelta(hours=1),
        recorded=NOW,
        correlation="story",
        causation="cause",
        retention=90,
        envelope=b'{"a":1}',
        route="flights.flight.departed.v2",
        shard=5,
        key_hash=-11,
    )
    return row._replace(**changes)


@pytest.fixture
async def author(author_url):
    connection = await asyncpg.connect(author_url)
    yield connection
    await connection.close()


@pytest.fixture
async def reader(runtime_url):
    connection = await asyncpg.connect(runtime_url)
    yield connection
    await connection.close()


async def stage_all(connection, rows):
    seen = []
    with connection.query_logger(lambda record: seen.append(record.query)):
        async with connection.transaction():
            await drive(stage("postroad", rows), AsyncpgHand(connection))
    return [text for text in seen if "INSERT" in text]


async def log_rows(reader):
    return await reader.fetch("SELECT * FROM postroad.event ORDER BY seq")


async def outbox_rows(reader):
    return await reader.fetch("SELECT * FROM postroad.outbox ORDER BY place")


@pytest.mark.parametrize("count", [1, 3])
async def test_an_event_is_in_the_log_and_in_the_outbox_with_all_its_facts(author, reader, count):
    rows = [a_row() for _ in range(count)]
    assert len(await stage_all(author, rows)) == 1
    logged, waiting = await log_rows(reader), await outbox_rows(reader)
    for row, log, outbox in zip(rows, logged, waiting, strict=True):
        for name in ("id", "type", "version", "key", "sequence", "occurred", "recorded", "correlation", "causation"):
            assert log[name] == getattr(row, name)
        assert (log["retention"], log["envelope"]) == (90, row.envelope)
        assert (outbox["seq"], outbox["recorded"], outbox["retention"]) == (log["seq"], NOW, 90)
        assert (outbox["route"], outbox["shard"], outbox["key_hash"]) == (row.route, 5, -11)
        assert (outbox["available_at"], outbox["attempts"], outbox["target"]) == (None, 0, None)


async def test_events_without_a_key_are_spread_over_the_shards_by_their_number(author, reader):
    keyless = {"key": None, "sequence": None, "causation": None, "shard": None, "key_hash": None}
    await stage_all(author, [a_row(**keyless)])
    await stage_all(author, [a_row(**keyless) for _ in range(40)])
    waiting = await outbox_rows(reader)
    assert [row["shard"] for row in waiting] == [row["seq"] % 16 for row in waiting]
    assert {row["shard"] for row in waiting} == set(range(16))
    assert [(row["key"], row["sequence"], row["causation"]) for row in await log_rows(reader)] == [
        (None, None, None)
    ] * 41


async def test_many_events_keep_their_order_across_statements(author, reader, monkeypatch):
    monkeypatch.setattr(authoring, "MOST_ROWS", 40)
    rows = [a_row() for _ in range(100)]
    assert len(await stage_all(author, rows)) == 3
    assert [log["id"] for log in await log_rows(reader)] == [row.id for row in rows]
    ids = {log["seq"]: log["id"] for log in await log_rows(reader)}
    assert [ids[row["seq"]] for row in await outbox_rows(reader)] == [row.id for row in rows]


async def test_a_statement_is_bounded_by_bytes(author, reader, monkeypatch):
    monkeypatch.setattr(authoring, "MOST_BYTES", 1000)
    rows = [a_row(envelope=b"x" * size) for size in (900, 100, 1, 5000, 1)]
    assert len(await stage_all(author, rows)) == 4
    assert [len(log["envelope"]) for log in await log_rows(reader)] == [900, 100, 1, 5000, 1]


async def test_nothing_to_stage_sends_nothing(author):
    assert await stage_all(author, []) == []


@pytest.mark.parametrize("retention", [7, 30, 90, 400, 0])
async def test_a_day_without_a_partition_is_no_hindrance(author, reader, retention):
    await stage_all(author, [a_row(retention=retention, recorded=datetime(2031, 1, 1, tzinfo=UTC))])
    home = await reader.fetchval("SELECT tableoid::regclass::text FROM postroad.event")
    assert home == f"postroad.event_{retention or 'keep'}_rest"


async def test_what_is_rolled_back_was_never_staged(author, reader):
    transaction = author.transaction()
    await transaction.start()
    await drive(stage("postroad", [a_row()]), AsyncpgHand(author))
    await transaction.rollback()
    assert await log_rows(reader) == []
    assert await outbox_rows(reader) == []


async def test_staging_never_waits_for_an_open_writer(author, author_url, reader):
    other = await asyncpg.connect(author_url)
    try:
        transaction = other.transaction()
        await transaction.start()
        await drive(stage("postroad", [a_row()]), AsyncpgHand(other))
        await author.execute("SET lock_timeout = '50ms'")
        await stage_all(author, [a_row()])
        assert len(await outbox_rows(reader)) == 1
        await transaction.commit()
    finally:
        await other.close()
    assert len(await outbox_rows(reader)) == 2


async def test_the_authors_role_can_read_nothing(author):
    for text in ("SELECT seq FROM postroad.event", "DELETE FROM postroad.outbox", "SELECT FROM postroad.outbox"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await author.execute(text)


async def test_every_statement_can_be_prepared(author):
    for name in QUERIES:
        await author.prepare(QUERIES.text(name, "postroad"))
