"""Partitions are made ahead, and no author ever waits for them or fails without them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from postroad.sql import partitions
from postroad.sql.partitions import days_ahead, make_ahead

PARENTS = ["event_30", "event_400", "event_7", "event_90", "event_keep", "finished"]
LOG = """
INSERT INTO postroad.event (seq, id, type, version, occurred, recorded, correlation, retention, envelope)
VALUES (nextval('postroad.event_seq'), $1, 'a.b.done', 1, now(), $2, 'c', 90, '\\x7b7d')
"""


@pytest.fixture
async def open_one(author_url, runtime_url):
    opened: list[asyncpg.Connection] = []

    async def connect(url: str = runtime_url) -> asyncpg.Connection:
        opened.append(await asyncpg.connect(url))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.terminate()


async def where(connection: asyncpg.Connection) -> set[str]:
    rows = await connection.fetch("SELECT DISTINCT tableoid::regclass::text AS place FROM postroad.event")
    return {row["place"] for row in rows}


def midday(days: int) -> datetime:
    return datetime.combine(datetime.now(UTC).date() + timedelta(days=days), datetime.min.time(), UTC).replace(hour=12)


async def test_every_table_gets_its_days_and_running_again_makes_none(open_one) -> None:
    runtime = await open_one()
    first = await make_ahead(runtime, schema="postroad", days=4)
    assert (first["made"], first["kept"], first["busy"]) == (6 * 2, 0, 0), "the fixture made today and two days"
    assert await days_ahead(runtime, schema="postroad") == 5
    again = await make_ahead(runtime, schema="postroad", days=4)
    assert again["made"] == 0


async def test_rows_go_to_their_day(open_one, author_url) -> None:
    runtime, author = await open_one(), await open_one(author_url)
    await author.execute(LOG, uuid4(), midday(1))
    assert await where(runtime) == {f"postroad.event_90_{midday(1):%Y%m%d}"}


async def test_days_are_utc_wherever_the_session_lives(open_one) -> None:
    runtime = await open_one()
    await runtime.execute("SET timezone = 'Pacific/Kiritimati'")
    day = date(2099, 3, 1)
    assert await runtime.fetchval("SELECT postroad.make_partition('event_90', $1)", day) == "made"
    for moment in (datetime(2099, 3, 1, tzinfo=UTC), datetime(2099, 3, 1, 23, 59, 59, tzinfo=UTC)):
        await runtime.execute(LOG, uuid4(), moment)
    assert await where(runtime) == {"postroad.event_90_20990301"}


async def test_without_a_partition_an_authors_row_lands_in_the_default_and_its_day_is_kept_there(
    open_one, author_url
) -> None:
    runtime, author = await open_one(), await open_one(author_url)
    await author.execute(LOG, uuid4(), midday(6))
    assert await where(runtime) == {"postroad.event_90_rest"}
    outcome = await make_ahead(runtime, schema="postroad", days=7)
    assert outcome["kept"] == 1
    assert outcome["made"] == 6 * 5 - 1
    await author.execute(LOG, uuid4(), midday(6))
    await author.execute(LOG, uuid4(), midday(7))
    assert await where(runtime) == {"postroad.event_90_rest", f"postroad.event_90_{midday(7):%Y%m%d}"}


async def test_an_open_transaction_on_the_default_makes_days_busy_and_blocks_no_author(open_one, author_url) -> None:
    runtime, holder, author = await open_one(), await open_one(author_url), await open_one(author_url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(LOG, uuid4(), midday(300))  # in the DEFAULT, for another day
    began = time.monotonic()
    making = asyncio.ensure_future(make_ahead(runtime, schema="postroad", days=4))
    slowest, staged = 0.0, 0
    while not making.done():
        before = time.monotonic()
        await author.execute(LOG, uuid4(), midday(1))
        await author.execute(LOG, uuid4(), midday(301))
        slowest, staged = max(slowest, time.monotonic() - before), staged + 1
    outcome = await making
    assert outcome["busy"] == 2, "of the table with the open transaction, and only of it"
    assert outcome["made"] == 5 * 2
    assert staged > 0
    assert slowest < 1, "an author waits for one attempt at most"
    assert time.monotonic() - began < 10
    await transaction.commit()
    assert (await make_ahead(runtime, schema="postroad", days=4))["made"] == 2


SLOW = """
CREATE OR REPLACE FUNCTION postroad.make_partition(parent text, day date) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF parent = 'event_90' THEN
        LOCK TABLE postroad.event_90_rest IN ACCESS EXCLUSIVE MODE;
        PERFORM pg_sleep(3);
    END IF;
    RETURN 'made';
END $$;
GRANT ALL ON postroad.event_90_rest TO pr_runtime
"""


@pytest.mark.timeout(60)
async def test_a_default_that_takes_long_to_read_holds_up_an_author_once_and_shortly(
    open_one, author_url, database
) -> None:
    """Attaching reads the DEFAULT under its lock: here it takes three seconds a day, as over millions of rows."""
    owner, runtime, author = await open_one(database), await open_one(), await open_one(author_url)
    await owner.execute(SLOW)
    making = asyncio.ensure_future(make_ahead(runtime, schema="postroad", days=7))
    slowest = 0.0
    while not making.done():
        before = time.monotonic()
        await author.execute(LOG, uuid4(), midday(301))
        slowest = max(slowest, time.monotonic() - before)
    outcome = await making
    assert (outcome["made"], outcome["busy"]) == (5 * 5, 5), "the others go on"
    assert slowest < 1.5


@pytest.mark.sabotage
async def test_without_the_lock_time_out_an_author_waits_for_maintenance(open_one, author_url, database) -> None:
    runtime, holder, author = await open_one(), await open_one(author_url), await open_one(author_url)
    watcher = await open_one(database)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(LOG, uuid4(), midday(300))
    making = asyncio.ensure_future(runtime.fetchval("SELECT postroad.make_partition('event_90', $1)", midday(4).date()))
    while not await watcher.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", runtime.get_server_pid()):
        pass
    await author.execute("SET lock_timeout = '500ms'")
    with pytest.raises(asyncpg.LockNotAvailableError):
        await author.execute(LOG, uuid4(), midday(301))
    await transaction.rollback()
    assert await making == "made"


async def test_a_row_that_comes_between_the_look_and_the_attaching_keeps_its_day(open_one, monkeypatch) -> None:
    """The function looks, an author's open row for that very day commits, and the attaching then finds it."""
    runtime, holder = await open_one(), await open_one()
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(LOG, uuid4(), midday(4))

    class Slow:
        """Gives the commit its moment, which is shorter than the lock's time-out in real life."""

        def transaction(self):
            return runtime.transaction()

        async def execute(self, text: str):
            await runtime.execute(text.replace("50ms", "10s"))

        async def fetchval(self, text: str, *args: object):
            asking = asyncio.ensure_future(runtime.fetchval(text, *args))
            watcher = await open_one()
            while not await watcher.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", runtime.get_server_pid()):
                pass
            await transaction.commit()
            return await asking

    assert await partitions._make(Slow(), "postroad", "event_90", midday(4).date()) == "kept"


async def test_several_at_once_make_each_partition_once(open_one) -> None:
    runs = [make_ahead(await open_one(), schema="postroad", days=5) for _ in range(3)]
    outcomes = await asyncio.gather(*runs)
    made = sum(outcome["made"] for outcome in outcomes)
    left = await make_ahead(await open_one(), schema="postroad", days=5)
    assert made + left["made"] == 6 * 3
    assert await days_ahead(await open_one(), schema="postroad") == 6


async def test_without_todays_partition_nothing_lies_ahead(open_one, database) -> None:
    owner = await open_one(database)
    for parent in PARENTS[:1]:
        await owner.execute(f"DROP TABLE postroad.{parent}_{midday(0):%Y%m%d}")
    assert await days_ahead(await open_one(), schema="postroad") == 0
