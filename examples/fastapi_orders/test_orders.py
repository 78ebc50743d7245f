from __future__ import annotations

import asyncio

import httpx
import pytest
from orders import OrderPlaced, app, write_invoice

from postroad.errors import Overloaded
from postroad.testing import DeliveryResult, Road

pytestmark = pytest.mark.asyncio

ORDER = {"number": "A-1", "cents": 1999}


async def test_an_order_leads_to_an_invoice(client: httpx.AsyncClient, road: Road) -> None:
    answer = await client.post("/orders", json=ORDER, headers={"X-Correlation-ID": "basket-7"})
    assert answer.status_code == 201
    assert answer.headers["X-Correlation-ID"] == "basket-7"
    assert (await client.get("/orders/A-1/invoice")).status_code == 404  # A web worker dispatches nothing.

    [placed] = await road.published(OrderPlaced)
    assert placed.event == OrderPlaced(number="A-1", cents=1999)
    assert placed.envelope.correlation_id == "basket-7"

    await road.drain()
    assert (await client.get("/orders/A-1/invoice")).json() == 1999


async def test_an_order_that_cannot_be_written_is_not_published(client: httpx.AsyncClient, road: Road) -> None:
    await client.post("/orders", json=ORDER)
    assert (await client.post("/orders", json=ORDER)).status_code == 409
    assert len(await road.published(OrderPlaced)) == 1


async def test_an_invoice_is_written_once(road: Road) -> None:
    placed = OrderPlaced(number="A-1", cents=1999)
    assert await road.deliver(placed, to=write_invoice, twice=True) == [DeliveryResult.OK, DeliveryResult.DUPLICATE]


async def test_labels_are_refused_while_too_many_wait(client: httpx.AsyncClient) -> None:
    assert "<svg" in (await client.get("/orders/A-1/label")).text
    full, free = False, asyncio.Event()
    while not full:
        try:
            app.executor.submit(free.wait)
        except Overloaded:
            full = True
    assert (await client.get("/orders/A-1/label")).status_code == 503
    free.set()
