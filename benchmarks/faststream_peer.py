"""FastStream as a user would pick it: its RabbitMQ broker, persistent publishes, each confirmed and routed.

It publishes the same bodies from memory: no outbox is read and nothing is deleted, which is in its favour. It consumes
with an inbox written by hand and the same effect, a transaction per message. Usage: faststream_peer.py STAGE COUNT,
with BENCH_DATABASE_URL and BENCH_BROKER_URL set; prints one JSON line {"rate": per second}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from uuid import uuid4

import asyncpg
import uvloop
from faststream.rabbit import Channel, ExchangeType, QueueType, RabbitBroker, RabbitExchange, RabbitQueue
from faststream.rabbit.annotations import RabbitMessage  # noqa: TC002 - FastStream reads it at run time
from pydantic import BaseModel

BODY = {"order_id": "x" * 36, "note": "b" * 380}
AT_ONCE, CONNECTIONS, PREFETCH = 200, 4, 64
EXCHANGE = RabbitExchange("peer.events", type=ExchangeType.TOPIC, durable=True)
QUEUE = RabbitQueue("peer.queue", durable=True, queue_type=QueueType.QUORUM, routing_key="peer.order.placed.v1")
TABLES = """
DROP SCHEMA IF EXISTS peer CASCADE;
CREATE SCHEMA peer;
CREATE TABLE peer.inbox (consumer text, id uuid, at timestamptz DEFAULT now(), PRIMARY KEY (consumer, id));
CREATE TABLE peer.effect (id uuid PRIMARY KEY, n int);
"""
CLAIM = "INSERT INTO peer.inbox (consumer, id) VALUES ('c', $1) ON CONFLICT DO NOTHING RETURNING 1"


class Order(BaseModel):
    order_id: str
    note: str


async def setup() -> None:
    connection = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"])
    await connection.execute(TABLES)
    await connection.close()


async def publish(count: int, *, keep: bool) -> float:
    """Publish `count` messages into an emptied queue; how many per second."""
    broker = RabbitBroker(os.environ["BENCH_BROKER_URL"])
    await broker.connect()
    declared = await broker.declare_queue(QUEUE)
    await declared.bind(await broker.declare_exchange(EXCHANGE), routing_key=QUEUE.routing_key)
    await declared.purge()
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with gate:
            await broker.publish(
                BODY, exchange=EXCHANGE, routing_key="peer.order.placed.v1", persist=True, mandatory=True,
                message_id=str(uuid4()),
            )  # fmt: skip

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    rate = count / (time.perf_counter() - started)
    if not keep:
        await declared.purge()
    await broker.stop()
    return rate


async def consume(count: int) -> float:
    """Handle `count` messages, each with its inbox and effect in a transaction, then ack; how many per second."""
    broker = RabbitBroker(os.environ["BENCH_BROKER_URL"], default_channel=Channel(prefetch_count=PREFETCH))
    pool = await asyncpg.create_pool(os.environ["BENCH_DATABASE_URL"], min_size=CONNECTIONS, max_size=CONNECTIONS)
    done = asyncio.Event()
    handled = 0

    @broker.subscriber(QUEUE, EXCHANGE)
    async def handle(_order: Order, message: RabbitMessage) -> None:
        nonlocal handled
        async with pool.acquire() as connection, connection.transaction():
            if await connection.fetchval(CLAIM, message.message_id):
                await connection.execute("INSERT INTO peer.effect VALUES ($1, 1)", message.message_id)
        handled += 1
        if handled >= count:
            done.set()

    started = time.perf_counter()
    await broker.start()
    await done.wait()
    rate = count / (time.perf_counter() - started)
    await broker.stop()
    await pool.close()
    return rate


async def main(stage: str, count: int) -> None:
    if stage == "setup":
        await setup()
    elif stage == "fill":
        await publish(count, keep=True)
    else:
        rate = await (consume(count) if stage == "consume" else publish(count, keep=False))
        print(json.dumps({"rate": rate}))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
