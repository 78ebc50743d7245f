"""The roles: an author may stage and nothing else; Postroad's processes change rows and no tables."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

DENIED = asyncpg.InsufficientPrivilegeError
STAGE = """
WITH taken AS MATERIALIZED (SELECT nextval('postroad.event_seq') AS seq),
logged AS (
    INSERT INTO postroad.event (seq, id, type, version, occurred, recorded, correlation, retention, envelope)
    SELECT seq, $1, 'a.b.done', 1, now(), now(), 'c', 90, '\\x7b7d' FROM taken
)
INSERT INTO postroad.outbox (shard, place, seq, recorded, retention, route)
SELECT 0, nextval('postroad.outbox_place'), seq, now(), 90, 'a.b.done.v1' FROM taken
"""


@pytest.fixture
async def author(postgres, standing):
    connection = await asyncpg.connect(postgres.url(standing, "pr_author"))
    yield connection
    await connection.close()


@pytest.fixture
async def runtime(postgres, standing):
    connection = await asyncpg.connect(postgres.url(standing, "pr_runtime"))
    yield connection
    await connection.close()


async def test_an_author_stages(author, runtime) -> None:
    await author.execute(STAGE, uuid4())
    assert await runtime.fetchval("SELECT count(*) FROM postroad.event JOIN postroad.outbox USING (seq)") == 1


@pytest.mark.parametrize("table", ["event", "outbox", "work", "inbox", "lease", "quarantine", "installation"])
async def test_an_author_reads_and_removes_nothing(author, table) -> None:
    for statement in (
        f"SELECT count(*) FROM postroad.{table}",
        f"DELETE FROM postroad.{table}",
        f"TRUNCATE postroad.{table}",
        f"DROP TABLE postroad.{table}",
    ):
        with pytest.raises(DENIED):
            await author.execute(statement)


@pytest.mark.parametrize(
    "table", ["lease", "inbox", "quarantine", "finished", "migration", "installation", "inbox_mark"]
)
async def test_an_author_writes_to_no_other_table(author, table) -> None:
    with pytest.raises(DENIED):
        await author.execute(f"INSERT INTO postroad.{table} DEFAULT VALUES")


@pytest.mark.parametrize(
    "act",
    [
        "make_partition('event_90', current_date + 20)", "drop_partition('event_7', current_date - 20)",
        "expire_rest('event_7', 1)", "kept_days('event_7')",
    ],
)  # fmt: skip
async def test_an_author_makes_and_drops_no_partitions(author, act) -> None:
    with pytest.raises(DENIED):
        await author.execute(f"SELECT postroad.{act}")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE postroad.mine (x int)",
        "ALTER TABLE postroad.outbox ADD COLUMN x int",
        "DROP TABLE postroad.event",
        "TRUNCATE postroad.event",
        "CREATE INDEX ON postroad.outbox (seq)",
        "DELETE FROM postroad.migration",
        "UPDATE postroad.migration SET serves = 99",
        "DROP SCHEMA postroad CASCADE",
    ],
)
async def test_the_runtime_changes_no_tables(runtime, statement) -> None:
    with pytest.raises(DENIED):
        await runtime.execute(statement)


async def test_the_runtime_makes_partitions_through_the_owners_function_and_no_other_tables(runtime) -> None:
    day = datetime.now(UTC).date().replace(year=2099)
    assert await runtime.fetchval("SELECT postroad.make_partition('event_90', $1)", day) == "made"
    assert await runtime.fetchval("SELECT postroad.make_partition('event_90', $1)", day) == "exists"
    for parent in ("outbox", "lease", "event_90_rest", "x; DROP TABLE y"):
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await runtime.fetchval("SELECT postroad.make_partition($1, $2)", parent, day)


async def test_the_owners_function_cannot_be_led_astray_by_the_search_path(runtime) -> None:
    await runtime.execute("CREATE TEMP TABLE pg_class (x int); SET search_path = pg_temp, public")
    day = datetime.now(UTC).date().replace(year=2098)
    assert await runtime.fetchval("SELECT postroad.make_partition('finished', $1)", day) == "made"


async def test_the_runtime_drops_through_the_owners_function_only_what_has_expired(runtime) -> None:
    today = datetime.now(UTC).date()
    refused = [
        ("event_7", today), ("event_7", today - timedelta(days=7)), ("event_400", today - timedelta(days=400)),
        ("finished", today - timedelta(days=7)), ("event_keep", date(2001, 1, 1)), ("outbox", date(2001, 1, 1)),
        ("x; DROP TABLE y", date(2001, 1, 1)), ("event_7", None), (None, date(2001, 1, 1)),
    ]  # fmt: skip
    for parent, day in refused:
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await runtime.fetchval("SELECT postroad.drop_partition($1, $2)", parent, day)
    for parent in ("event_keep", "finished", "outbox"):
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await runtime.fetchval("SELECT postroad.expire_rest($1, 10)", parent)
    long_ago = today - timedelta(days=8)
    assert await runtime.fetchval("SELECT postroad.drop_partition('event_7', $1)", long_ago) == "gone"
