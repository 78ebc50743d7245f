"""Days of the log leave when their class says so: never while something needs them, and nobody who publishes waits."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from postroad.sql import retention
from postroad.sql.retention import Leaf, drop_expired, expire_rest

LOG = """
INSERT INTO postroad.event (seq, id, type, version, occurred, recorded, correlation, retention, envelope)
VALUES (nextval('postroad.event_seq'), $1, 'a.b.done', 1, now(), $2, 'c', $3, '\\x7b7d') RETURNING seq
"""
WAIT = """
INSERT INTO postroad.outbox (shard, place, seq, recorded, retention, route)
VALUES (0, nextval('postroad.outbox_place'), $1, $2, $3, 'a.b.done.v1')
"""
HOLD = """
INSERT INTO postroad.quarantine (kind, queue, key, digest, class, code, fingerprint, error_type, reason, body,
                                 content_type, seq, recorded, retention)
VALUES ('event', 'a.events', $1, '\\x00', 'quarantine', 'PR509', 'f', 'Refused', 'r', '\\x7b7d', 'x', $2, $3, $4)
"""

REPLAY = """
INSERT INTO postroad.replay (id, chosen, rate, state, cursor, last, oldest, newest, total, by, reason, keeps_until)
VALUES (gen_random_uuid(), '{}', 1, 'running', $1, $2, $3, $4, 1, 'ada', 'r', $5)
"""


def midday(days_ago: int) -> datetime:
    return datetime.combine(day(days_ago), datetime.min.time(), UTC).replace(hour=12)


def day(days_ago: int) -> date:
    return datetime.now(UTC).date() - timedelta(days=days_ago)


def leaf(parent: str, days_ago: int) -> str:
    return f"{parent}_{day(days_ago):%Y%m%d}"


@pytest.fixture
async def open_one(runtime_url):
    opened: list[asyncpg.Connection] = []

    async def connect(url: str = runtime_url) -> asyncpg.Connection:
        opened.append(await asyncpg.connect(url))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.terminate()


@pytest.fixture
async def runtime(open_one):
    connection = await open_one()
    for parent, days in (("event_7", 8), ("event_7", 7), ("event_90", 91), ("event_keep", 4000), ("finished", 8)):
        await connection.fetchval("SELECT postroad.make_partition($1, $2)", parent, day(days))
    return connection


async def standing(connection: asyncpg.Connection) -> set[str]:
    rows = await connection.fetch(
        "SELECT relname FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace"
        " WHERE nspname = 'postroad' AND relkind = 'r' AND relname ~ '_[0-9]{8}$'"
        f" AND right(relname, 8) < '{day(0):%Y%m%d}'"
    )
    return {row["relname"] for row in rows}


async def test_each_class_leaves_after_its_own_days_and_what_is_kept_for_ever_never(runtime) -> None:
    kept = await runtime.fetchval(LOG, uuid4(), midday(4000), 0)
    await runtime.fetchval(LOG, uuid4(), midday(8), 7)
    done = await drop_expired(runtime, schema="postroad")
    assert {one.name for one in done if one.why == "dropped"} == {
        leaf("event_7", 8), leaf("event_90", 91), leaf("finished", 8)
    }  # fmt: skip
    assert await standing(runtime) == {leaf("event_7", 7), leaf("event_keep", 4000)}
    assert [row["seq"] for row in await runtime.fetch("SELECT seq FROM postroad.event")] == [kept]
    assert await drop_expired(runtime, schema="postroad") == []


async def test_a_day_stays_while_the_outbox_needs_it(runtime) -> None:
    seq = await runtime.fetchval(LOG, uuid4(), midday(8), 7)
    await runtime.execute(WAIT, seq, midday(8), 7)
    assert Leaf(leaf("event_7", 8), "outbox") in await drop_expired(runtime, schema="postroad")
    await runtime.execute("DELETE FROM postroad.outbox")
    assert Leaf(leaf("event_7", 8), "dropped") in await drop_expired(runtime, schema="postroad")


@pytest.mark.parametrize("noted", [True, False])
async def test_a_day_stays_while_an_event_lies_open_in_quarantine(runtime, noted) -> None:
    seq = await runtime.fetchval(LOG, uuid4(), midday(8), 7)
    await runtime.execute(HOLD, "k", *((seq, midday(8), 7) if noted else (None, None, None)))
    done = await drop_expired(runtime, schema="postroad")
    assert Leaf(leaf("event_7", 8), "quarantine") in done
    elsewhere = "dropped" if noted else "quarantine"  # one that does not say where it lies keeps every day
    assert Leaf(leaf("event_90", 91), elsewhere) in done
    await runtime.execute("UPDATE postroad.quarantine SET resolved_at = now()")
    assert Leaf(leaf("event_7", 8), "dropped") in await drop_expired(runtime, schema="postroad")


FOR_EVER = datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cursor", "days", "keeps", "why"),
    [
        (-1, (8, 8), None, "replay"),
        (0, (8, 8), None, "dropped"),
        (-1, (7, 7), None, "dropped"),
        (-1, (8, 8), 1, "dropped"),
    ],
    ids=["needed", "read already", "of other days", "stopped a week ago"],
)
async def test_a_day_stays_while_a_replay_has_still_to_read_it(runtime, cursor, days, keeps, why) -> None:
    seq = await runtime.fetchval(LOG, uuid4(), midday(8), 7)
    until = FOR_EVER if keeps is None else datetime.now(UTC) - timedelta(days=keeps)
    await runtime.execute(REPLAY, seq + cursor, seq, midday(days[0]), midday(days[1]), until)
    assert Leaf(leaf("event_7", 8), why) in await drop_expired(runtime, schema="postroad")


async def test_what_a_replay_has_still_to_read_stays_in_the_default_partition(runtime) -> None:
    seqs = [await runtime.fetchval(LOG, uuid4(), midday(20), 7) for _ in range(3)]
    await runtime.execute(REPLAY, seqs[0], seqs[1], midday(20), midday(20), FOR_EVER)
    assert await expire_rest(runtime, schema="postroad") == 2
    assert [row["seq"] for row in await runtime.fetch("SELECT seq FROM postroad.event")] == [seqs[1]]


async def test_a_need_that_is_not_committed_yet_is_waited_for_and_seen(runtime, open_one, monkeypatch) -> None:
    monkeypatch.setattr(retention, "TRIES", 1)
    author = await open_one()
    transaction = author.transaction()
    await transaction.start()
    seq = await author.fetchval(LOG, uuid4(), midday(8), 7)
    await author.execute(WAIT, seq, midday(8), 7)
    assert Leaf(leaf("event_7", 8), "busy") in await drop_expired(runtime, schema="postroad")
    await transaction.commit()
    assert Leaf(leaf("event_7", 8), "outbox") in await drop_expired(runtime, schema="postroad")


async def test_failures_keep_their_day_of_finished_work_for_ninety_days(runtime) -> None:
    await runtime.execute("SELECT postroad.make_partition('finished', $1)", day(98))
    for days_ago in (8, 98):
        await runtime.execute(
            "INSERT INTO postroad.finished (id, queue, kind, outcome, attempt, created_at, finished_at)"
            " VALUES (1, 'q', 'job', 'failed', 1, now(), $1)",
            midday(days_ago),
        )
    done = {one.name: one.why for one in await drop_expired(runtime, schema="postroad")}
    assert done[leaf("finished", 8)] == "failures"
    assert done[leaf("finished", 98)] == "dropped"


# --- nobody waits ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def reader(open_one):
    """A long reader of the whole log, as pg_dump and a replay are."""
    connection = await open_one()
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetch("SELECT count(*) FROM postroad.event")
    yield connection
    await transaction.rollback()


async def published_during(act, author: asyncpg.Connection) -> float:
    """The slowest publish, in seconds, while `act` runs."""
    slowest, running = 0.0, asyncio.ensure_future(act)
    while not running.done():
        began = time.monotonic()
        for kept in (7, 90):
            await author.fetchval(LOG, uuid4(), midday(0), kept)
        slowest = max(slowest, time.monotonic() - began)
    await running
    return slowest


async def test_a_long_reader_of_the_log_makes_days_busy_and_no_publish_waits(runtime, reader, open_one) -> None:
    outcome: list[Leaf] = []

    async def act() -> None:
        outcome.extend(await drop_expired(runtime, schema="postroad"))

    slowest = await published_during(act(), await open_one())
    assert {one.name for one in outcome if one.why == "busy"} == {leaf("event_7", 8), leaf("event_90", 91)}
    assert slowest < 0.1 + 0.1, "two publishes, each behind one attempt of 50 ms at most; and a noisy machine"
    await reader.execute("ROLLBACK")
    assert {one.why for one in await drop_expired(runtime, schema="postroad")} == {"dropped"}


async def test_an_attempt_gives_up_within_its_fifty_milliseconds(runtime, reader) -> None:
    began = time.monotonic()
    with pytest.raises(asyncpg.LockNotAvailableError):
        await runtime.fetchval("SELECT postroad.drop_partition('event_7', $1)", day(8))
    assert 0.04 < time.monotonic() - began < 0.3


@pytest.mark.sabotage
async def test_without_the_lock_time_out_a_publish_waits_for_the_reader(runtime, reader, open_one, database) -> None:
    owner, author = await open_one(database), await open_one()
    await owner.execute("ALTER FUNCTION postroad.drop_partition(text, date) RESET lock_timeout")
    dropping = asyncio.ensure_future(runtime.fetchval("SELECT postroad.drop_partition('event_7', $1)", day(8)))
    while not await owner.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", runtime.get_server_pid()):
        pass
    await author.execute("SET lock_timeout = '500ms'")
    with pytest.raises(asyncpg.LockNotAvailableError):
        await author.fetchval(LOG, uuid4(), midday(0), 7)
    await reader.execute("ROLLBACK")
    assert await dropping == "dropped"


# --- the DEFAULT partitions -----------------------------------------------------------------------------------------


async def test_expired_events_in_the_default_partition_leave_in_batches_but_for_those_that_are_needed(
    runtime, monkeypatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    for _ in range(5):
        await runtime.fetchval(LOG, uuid4(), midday(20), 7)
    waits, held = [await runtime.fetchval(LOG, uuid4(), midday(20), 7) for _ in range(2)]
    young = await runtime.fetchval(LOG, uuid4(), midday(5), 7)
    kept = await runtime.fetchval(LOG, uuid4(), midday(5000), 0)
    await runtime.execute(WAIT, waits, midday(20), 7)
    await runtime.execute(HOLD, "k", held, midday(20), 7)
    assert await expire_rest(runtime, schema="postroad") == 5
    left = {row["seq"] for row in await runtime.fetch("SELECT seq FROM postroad.event")}
    assert left == {waits, held, young, kept}
    await runtime.execute("UPDATE postroad.quarantine SET seq = NULL, recorded = NULL")
    await runtime.execute("DELETE FROM postroad.outbox")
    assert await expire_rest(runtime, schema="postroad") == 0, "a row that does not say where its event lies keeps all"
    await runtime.execute("UPDATE postroad.quarantine SET resolved_at = now()")
    assert await expire_rest(runtime, schema="postroad") == 2
