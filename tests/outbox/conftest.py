"""Fixtures of the dispatcher's tests; what they give lies in `dispatching`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from dispatching import SCHEMA, Author, MemoryBroker, Process, RealBroker
from postroad.sql.manager import Manager
from postroad.testing.servers import RabbitNode
from support import pooled

if TYPE_CHECKING:
    from postroad.transport.base import Publisher

Start = Callable[..., Awaitable[Process]]


@pytest.fixture
def author(author_url: str) -> Author:
    return Author(author_url)


@pytest.fixture
async def database_rows(database: str) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection, to look."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def process(runtime_url: str) -> AsyncIterator[Start]:
    """Start a dispatcher with a publisher; everything is let go after the test."""
    async with AsyncExitStack() as stack:

        async def start(
            publisher: Publisher, *, shards: int | None = 16, url: str = runtime_url, **settings: Any
        ) -> Process:
            manager = await Manager.open(pooled(url), schema=SCHEMA, size=4)
            stack.push_async_callback(manager.close)
            process = Process(manager, url, publisher, **settings)
            stack.push_async_callback(process.end)
            await process.start(shards=shards)
            return process

        yield start


@pytest.fixture
async def real_broker() -> AsyncIterator[Callable[[str], Awaitable[RealBroker]]]:
    async with AsyncExitStack() as stack:

        async def start(url: str) -> RealBroker:
            broker = RealBroker(url)
            await broker.start()
            stack.push_async_callback(broker.stop)
            return broker

        yield start


@pytest.fixture
def limited_rabbit() -> Iterator[RabbitNode]:
    """A broker that takes no message over 100,000 bytes."""
    with RabbitNode(settings={"max_message_size": "100000"}) as node:
        yield node
