"""Jobs enqueued by a handler: with its effect and its cause, or not at all."""

from __future__ import annotations

import json

import pytest

from consume.bench import AT_ONCE, Order, body
from consume.kinds import BOTH, Tx
from postroad import asyncpg as asyncpg_door
from postroad import psycopg as psycopg_door
from postroad.consume import consumer
from postroad.events import Subscription
from postroad.events.cause import current_cause
from postroad.failures import Quarantine
from postroad.signals.catalog import DeliveryResult
from postroad.work.job import job

Placed = Subscription("orders.order.placed", version=1, model=Order)


@job("orders.invoice")
async def invoice(request: str, run: object) -> None: ...


async def enqueue(delivery, request):
    if isinstance(delivery.tx, Tx):
        return psycopg_door.within(delivery.tx.connection).enqueue(invoice, request, unique=request)
    return await asyncpg_door.within(delivery.tx).enqueue(invoice, request, unique=request)


@pytest.mark.parametrize("kind", BOTH, indirect=True)
async def test_a_handlers_jobs_commit_with_its_effect_and_carry_its_cause(here, queue, sql):
    causes = {}

    @consumer(Placed, name="billing.orders", retry=AT_ONCE)
    async def bill(event, delivery):
        await delivery.tx.execute("INSERT INTO public.effect VALUES ($1, 1, $2)", event.order, delivery.attempt)
        assert (await enqueue(delivery, event.order)).new
        causes[event.order] = current_cause()
        if event.order == "A13":
            raise Quarantine("not this one")

    async with here.consuming(bill, queue.intake()):
        for number in range(20):
            queue.put(body(f"A{number}"))
        await here.settled(19, result=DeliveryResult.OK)
        await here.settled(1, result=DeliveryResult.QUARANTINE)
    rows = await sql.fetch("SELECT convert_from(body, 'UTF8') AS request, headers FROM work WHERE kind = 'job'")
    assert {row["request"] for row in rows} == {f'"A{number}"' for number in range(20) if number != 13}
    for row in rows:
        cause = causes[json.loads(row["request"])]
        assert json.loads(row["headers"]) == {"correlation": cause.correlation, "causation": cause.causation}
    assert await sql.fetchval("SELECT count(*) FROM public.effect") == 19
