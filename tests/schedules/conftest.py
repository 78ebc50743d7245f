"""Fixtures of the scheduler: two processes' furniture, and a connection to look with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from work.bench import Process, process


@pytest.fixture
async def here(runtime_url: str) -> AsyncIterator[Process]:
    async with process(runtime_url) as standing:
        yield standing


@pytest.fixture
async def there(runtime_url: str) -> AsyncIterator[Process]:
    async with process(runtime_url) as standing:
        yield standing


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A superuser's connection, to look with."""
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path = postroad")
    yield connection
    await connection.close()
