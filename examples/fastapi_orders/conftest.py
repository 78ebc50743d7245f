"""What is tested: the App, the tables that its database has, and a client of the web side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import orders
import pytest
import pytest_asyncio
from web import api

from postroad import App
from postroad.testing import Road


@pytest.fixture(scope="session")
def postroad_tables() -> Callable[[str], None]:
    return lambda url: asyncio.run(orders.create_tables(url))


@pytest.fixture
def postroad_app() -> App:
    return orders.app


@pytest_asyncio.fixture
async def client(road: Road) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(api)
    async with api.router.lifespan_context(api), httpx.AsyncClient(transport=transport, base_url="http://web") as http:
        yield http
