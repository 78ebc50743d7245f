"""Behind a real pgbouncer in transaction mode: what it is known for, and what goes wrong where it is not."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest

from matrix.pgbouncer import Pgbouncer, version
from postroad.errors import SettingsError
from postroad.runtime.operations import refuse_pooler
from postroad.runtime.settings import Settings
from postroad.sql import Statement, pooler
from postroad.sql.manager import Manager
from postroad.sql.pooler import Between

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from postroad.testing.servers import Postgres

PROGRAM = os.environ.get("POSTROAD_TEST_PGBOUNCER", "pgbouncer")
KEEPS = tuple(map(int, version(PROGRAM).split(".")[:2])) >= (1, 21)  # Its first release that keeps them.
FEW = "default_pool_size = 3"


@pytest.fixture
def few(postgres: Postgres, runtime_url: str) -> Iterator[str]:
    """The database through a pooler with fewer backends than there will be clients."""
    with Pgbouncer(postgres, PROGRAM, more=FEW) as started:
        yield started.url(runtime_url)


@asynccontextmanager
async def pool(url: str) -> AsyncIterator[Manager]:
    manager = await Manager.open(url, schema="postroad", size=8)
    try:
        yield manager
    finally:
        await manager.close()


async def found(url: str) -> Between:
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        return await pooler.ask(connection, url)
    finally:
        await connection.close()


async def test_a_transaction_pooler_is_known_when_nobody_else_is_there_too(few: str) -> None:
    for _ in range(5):
        assert await found(few) == Between(pooler=True, shares=True, keeps=KEEPS)


async def test_a_transaction_pooler_is_known_while_others_are_at_work(few: str) -> None:
    async with pool(few) as manager:
        busy = asyncio.create_task(at_once(manager))
        seen = [await found(few) for _ in range(5)]
        assert await busy == 0
    assert all(one.shares for one in seen)


async def test_a_pooler_that_lends_a_backend_for_a_session_is_none_to_refuse(
    postgres: Postgres, runtime_url: str
) -> None:
    with Pgbouncer(postgres, PROGRAM, more="pool_mode = session") as started:
        url = started.url(runtime_url)
        assert await found(url) == Between(pooler=True, keeps=False)
        await refuse_pooler(Settings(database_url=url, direct_url=url))


async def test_heartbeats_through_a_transaction_pooler_are_refused_at_the_start(few: str) -> None:
    with pytest.raises(SettingsError, match="POSTROAD_DIRECT_URL leads through a transaction pooler"):
        await refuse_pooler(Settings(database_url=few, direct_url=few))


@pytest.mark.sabotage
async def test_asking_one_quiet_client_twice_would_not_see_it(few: str) -> None:
    connection = await asyncpg.connect(few, statement_cache_size=0)
    seen = {await connection.fetchval("SELECT pg_backend_pid()") for _ in range(10)}
    await connection.close()
    assert len(seen) == 1


async def at_once(manager: Manager) -> int:
    """How many of many statements, by more clients than there are backends, did not get their own answer."""

    async def one(client: int) -> int:
        wrong = 0
        for turn in range(50):
            try:
                [row] = await manager.fetch(Statement(f"SELECT $1::int + {client * 1000} AS sum", (turn,)))
                wrong += row["sum"] != client * 1000 + turn
            except asyncpg.PostgresError:
                wrong += 1
        return wrong

    return sum(await asyncio.gather(*(one(client) for client in range(8))))


async def test_statements_of_many_clients_each_get_their_own_answer(few: str) -> None:
    async with pool(few) as manager:
        assert await at_once(manager) == 0


@pytest.mark.sabotage
async def test_with_a_statement_cache_that_the_pooler_does_not_know_of_they_get_none(
    few: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def believe(*_: object) -> Between:
        return Between()

    monkeypatch.setattr("postroad.sql.pooler.ask", believe)
    async with pool(few) as manager:
        assert (await at_once(manager) > 0) == (not KEEPS)
