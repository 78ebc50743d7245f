"""Fixtures of the consume room: processes that consume, a queue in memory, and a connection to look with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from consume.bench import Process, Queue, process


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A superuser's connection, with a table for the handlers' effects: no constraint, so that doubling shows."""
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path = postroad")
    await connection.execute("CREATE TABLE public.effect (name text, amount int, attempt int)")
    await connection.execute("GRANT ALL ON public.effect TO pr_runtime")
    yield connection
    await connection.close()


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """How handlers run: ``async def``, unless a test is parametrized with `BOTH`, indirectly."""
    return str(getattr(request, "param", "async def"))


@pytest.fixture
async def here(runtime_url: str, sql: object, kind: str) -> AsyncIterator[Process]:
    async with process(runtime_url, kind=kind) as standing:
        yield standing


@pytest.fixture
async def there(runtime_url: str, sql: object, kind: str) -> AsyncIterator[Process]:
    async with process(runtime_url, kind=kind) as standing:
        yield standing


@pytest.fixture
async def queue() -> Queue:
    return Queue()
