"""The guard on handlers' connections: transaction control is refused, whatever it is wrapped in; savepoints are not."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO

import asyncpg
import pytest

from postroad.errors import UsageError
from postroad.sql import asyncpg as hand
from postroad.sql.guard import check, refused
from postroad.sql.manager import Manager


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("COMMIT", "COMMIT"),
        ("commit;", "COMMIT"),
        ("  \n\tCommit and chain", "COMMIT"),
        ("COMMIT PREPARED 'x'", "COMMIT"),
        ("BEGIN", "BEGIN"),
        ("begin isolation level serializable", "BEGIN"),
        ("START TRANSACTION", "START"),
        ("END", "END"),
        ("ABORT", "ABORT"),
        ("ROLLBACK", "ROLLBACK"),
        ("ROLLBACK WORK", "ROLLBACK"),
        ("ROLLBACK AND CHAIN", "ROLLBACK"),
        ("PREPARE TRANSACTION 'x'", "PREPARE TRANSACTION"),
        ("SET TRANSACTION READ ONLY", "SET TRANSACTION"),
        ("SET LOCAL TRANSACTION READ ONLY", "SET TRANSACTION"),
        ("SET SESSION TRANSACTION READ ONLY", "SET TRANSACTION"),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET SESSION CHARACTERISTICS"),
        ("SET transaction_isolation = 'serializable'", "SET TRANSACTION_ISOLATION"),
        ("SET LOCAL transaction_read_only TO on", "SET TRANSACTION_READ_ONLY"),
        ("SELECT 1; COMMIT", "COMMIT"),
        ("SELECT ';'; ROLLBACK", "ROLLBACK"),
        ("/* a */ -- b\n /* c /* d */ */ COMMIT", "COMMIT"),
        ("SELECT 1 /* ; */;--;\nEND", "END"),
        ("SELECT $$ $$; COMMIT", "COMMIT"),
        ("SELECT $a$ ; $$ $a$; COMMIT", "COMMIT"),
        (r"SELECT E'\';'; COMMIT", "COMMIT"),
        ('SELECT 1 AS ";"; COMMIT', "COMMIT"),
        (";;COMMIT", "COMMIT"),
    ],
)
def test_transaction_control_is_refused(text, what):
    assert refused(text) == what
    with pytest.raises(UsageError, match=what) as caught:
        check(text)
    assert caught.value.code == "PR111"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT 1",
        "SAVEPOINT here",
        "RELEASE SAVEPOINT here",
        "ROLLBACK TO here",
        "ROLLBACK TO SAVEPOINT here",
        "ROLLBACK WORK TO here",
        "rollback transaction to savepoint here",
        "SET LOCAL work_mem = '1MB'",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "SET SESSION search_path = a",
        "PREPARE p AS SELECT 1",
        "SELECT 'COMMIT'",
        "SELECT ';COMMIT'",
        "SELECT '''; COMMIT'",
        r"SELECT E'\'; COMMIT'",
        "SELECT $$; COMMIT$$",
        "SELECT $x$; COMMIT; $$ $x$",
        'SELECT "; COMMIT"',
        "-- COMMIT",
        "/* ; COMMIT */ SELECT 1",
        "/* /* */ ; COMMIT */ SELECT 1",
        "SELECT CASE WHEN true THEN 1 END",
        'INSERT INTO t (begin, "end") VALUES ($1, $2)',
        "DO $$ BEGIN PERFORM 1; END $$",
        "COPY t TO STDOUT",
    ],
)
def test_anything_else_passes(text):
    assert refused(text) is None


def test_a_quoted_name_is_no_keyword_that_is_refused_by_its_case():
    assert refused("commitment") is None
    assert refused("SELECT 1; commitments") is None


@pytest.fixture
async def manager(runtime_url):
    manager = await Manager.open(runtime_url, schema="postroad", size=1)
    yield manager
    await manager.close()


async def _copy(tx):
    await tx.copy_from_query("SELECT 1) TO STDOUT; COMMIT; --", output=BytesIO())


async def _prepare(tx):
    await tx.prepare("COMMIT")


async def _cursor(tx):
    async for _ in tx.cursor("COMMIT"):
        pass


WAYS = {
    "execute": lambda tx: tx.execute("COMMIT"),
    "executemany": lambda tx: tx.executemany("COMMIT", [()]),
    "fetch": lambda tx: tx.fetch("COMMIT"),
    "fetchval": lambda tx: tx.fetchval("COMMIT"),
    "fetchrow": lambda tx: tx.fetchrow("COMMIT"),
    "fetchmany": lambda tx: tx.fetchmany("COMMIT", [()]),
    "prepare": _prepare,
    "cursor": _cursor,
    "copy": _copy,
    "reset": lambda tx: tx.reset(),
}


@pytest.mark.parametrize("way", list(WAYS))
async def test_every_way_of_sending_sql_is_guarded(manager, way):
    async with manager.transaction() as tx:
        (mine,) = await tx.fetchrow("SELECT pg_current_xact_id()::text")
        with pytest.raises(UsageError, match="PR111"):
            await WAYS[way](tx)
        (still,) = await tx.fetchrow("SELECT pg_current_xact_id()::text")
    assert mine == still


@pytest.mark.sabotage
async def test_without_the_guard_a_commit_goes_through(manager, monkeypatch):
    monkeypatch.setattr(hand, "check", lambda _: None)
    async with manager.transaction() as tx:
        (mine,) = await tx.fetchrow("SELECT pg_current_xact_id()::text")
        await tx.execute("COMMIT")
        (still,) = await tx.fetchrow("SELECT pg_current_xact_id()::text")
    assert mine != still


async def test_a_nested_transaction_is_a_savepoint(manager):
    async with manager.transaction() as tx:
        await tx.execute("CREATE TEMP TABLE kept (n int) ON COMMIT DROP")
        await tx.execute("INSERT INTO kept VALUES (1)")
        with suppress(asyncpg.DivisionByZeroError):
            async with tx.transaction():
                await tx.execute("INSERT INTO kept VALUES (2)")
                await tx.execute("SELECT 1 / 0")
        async with tx.transaction():
            await tx.execute("INSERT INTO kept VALUES (3)")
        assert [row["n"] for row in await tx.fetch("SELECT n FROM kept")] == [1, 3]


async def test_a_handlers_transaction_is_read_committed_and_its_connection_free_again_after_it(manager):
    async with manager.transaction() as tx:
        assert await tx.fetchval("SHOW transaction_isolation") == "read committed"
    async with manager.connection() as connection:
        await connection.execute("BEGIN")
        await connection.execute("COMMIT")
