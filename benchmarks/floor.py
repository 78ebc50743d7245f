"""The floor: what a careful engineer writes by hand on asyncpg and pika, with no framework.

It has Postroad's shape (a log, a narrow table of what is pending, an inbox) and none of its safety: no leases, no
fence, no floor under late commits, no backoff, no reconnect, one process. Usage: floor.py STAGE COUNT, with
BENCH_DATABASE_URL and BENCH_BROKER_URL set; prints one JSON line {"rate": per second}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import pika
import uvloop
from pika.adapters.asyncio_connection import AsyncioConnection
from pydantic import BaseModel

EXCHANGE, QUEUE, ROUTE = "floor.events", "floor.queue", "floor.order.placed.v1"
PAGE, WINDOW, CONNECTIONS, PREFETCH = 500, 1500, 4, 1000
BODY = json.dumps({"order_id": "x" * 36, "note": "b" * 380})
TABLES = """
DROP SCHEMA IF EXISTS floor CASCADE;
CREATE SCHEMA floor;
CREATE TABLE floor.log (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL, type text NOT NULL, key text,
    headers jsonb, body text NOT NULL, at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE floor.same (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL, type text NOT NULL, version int NOT NULL,
    key text, sequence bigint, occurred timestamptz NOT NULL, recorded timestamptz NOT NULL, correlation text NOT NULL,
    causation text, retention smallint NOT NULL, envelope bytea NOT NULL
);
CREATE TABLE floor.pending (seq bigint PRIMARY KEY, attempts int NOT NULL DEFAULT 0) WITH (fillfactor = 90);
CREATE TABLE floor.inbox (consumer text, id uuid, at timestamptz DEFAULT now(), PRIMARY KEY (consumer, id));
CREATE TABLE floor.effect (id uuid PRIMARY KEY, n int);
CREATE TABLE floor.hot (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO floor.hot SELECT g, 0 FROM generate_series(0, 15) AS g;
"""
FILL = """
WITH logged AS (
    INSERT INTO floor.log (id, type, key, body)
    SELECT gen_random_uuid(), $3, g::text, $2 FROM generate_series(1, $1::int) AS g RETURNING seq
)
INSERT INTO floor.pending (seq) SELECT seq FROM logged
"""
ROW = """
INSERT INTO floor.same (id, type, version, key, sequence, occurred, recorded, correlation, causation, retention,
                        envelope)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
READ = """
SELECT p.seq, l.id, l.type, l.key, l.body FROM floor.pending p JOIN floor.log l USING (seq)
 WHERE p.seq > $1 ORDER BY p.seq LIMIT $2
"""
DELETE = "DELETE FROM floor.pending WHERE seq = ANY($1::bigint[])"
CLAIM = "INSERT INTO floor.inbox (consumer, id) VALUES ('c', $1) ON CONFLICT DO NOTHING RETURNING 1"
EFFECT = "INSERT INTO floor.effect VALUES ($1, 1)"
HOT = "UPDATE floor.hot SET n = n + 1 WHERE id = $1"


class Order(BaseModel):
    """What Postroad's side stages, too."""

    order_id: str
    note: str


class Channel:
    """One pika channel whose calls can be awaited."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def open(self, url: str) -> None:
        opened: asyncio.Future[Any] = self.loop.create_future()
        self.connection = AsyncioConnection(
            pika.URLParameters(url),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(error),
            custom_ioloop=self.loop,
        )
        await opened
        ready: asyncio.Future[Any] = self.loop.create_future()
        self.channel = self.connection.channel(on_open_callback=ready.set_result)
        await ready
        await self.call(self.channel.exchange_declare, EXCHANGE, "topic", durable=True)
        await self.call(self.channel.queue_declare, QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        await self.call(self.channel.queue_bind, QUEUE, EXCHANGE, ROUTE)

    async def call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        answered: asyncio.Future[Any] = self.loop.create_future()
        function(*arguments, callback=answered.set_result, **named)
        return await answered

    def publish(self, row: Any) -> None:
        properties = pika.BasicProperties(
            delivery_mode=2, message_id=str(row["id"]), content_type="application/json", type=row["type"],
            headers={"key": row["key"]},
        )  # fmt: skip
        self.channel.basic_publish(EXCHANGE, ROUTE, row["body"].encode(), properties, mandatory=True)


class Confirms:
    """How many publishes the broker has confirmed."""

    def __init__(self) -> None:
        self.acked = 0
        self._changed = asyncio.Event()

    def hear(self, frame: Any) -> None:
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            raise SystemExit("the broker refused a publish")
        self.acked = frame.method.delivery_tag if frame.method.multiple else self.acked + 1
        self._changed.set()

    async def reach(self, count: int) -> None:
        while self.acked < count:
            self._changed.clear()
            await self._changed.wait()


async def dispatch(pool: asyncpg.Pool[asyncpg.Record], channel: Channel) -> int:
    confirms = Confirms()
    await channel.call(channel.channel.confirm_delivery, confirms.hear)
    waiting: deque[tuple[int, list[int]]] = deque()
    sent, cursor = 0, 0
    following = asyncio.ensure_future(pool.fetch(READ, 0, PAGE))
    while rows := await following:
        cursor = rows[-1]["seq"]
        following = asyncio.ensure_future(pool.fetch(READ, cursor, PAGE))
        for row in rows:
            channel.publish(row)
        sent += len(rows)
        waiting.append((sent, [row["seq"] for row in rows]))
        await confirms.reach(sent - WINDOW)
        while waiting and waiting[0][0] <= confirms.acked:
            await pool.execute(DELETE, waiting.popleft()[1])
    await confirms.reach(sent)
    for _, seqs in waiting:
        await pool.execute(DELETE, seqs)
    return sent


async def consume(pool: asyncpg.Pool[asyncpg.Record], channel: Channel, count: int, *, hot: bool) -> int:
    arrived: asyncio.Queue[tuple[int, str, bytes]] = asyncio.Queue()
    channel.channel.basic_qos(prefetch_count=PREFETCH)
    channel.channel.basic_consume(
        QUEUE,
        lambda _, method, properties, body: arrived.put_nowait((method.delivery_tag, properties.message_id, body)),
    )
    done = asyncio.Event()
    handled = 0

    async def handle() -> None:
        nonlocal handled
        async with pool.acquire() as connection:
            while True:
                tag, message, body = await arrived.get()
                json.loads(body)
                async with connection.transaction():
                    if await connection.fetchval(CLAIM, message):
                        await (connection.execute(HOT, tag % 16) if hot else connection.execute(EFFECT, message))
                channel.channel.basic_ack(tag)
                handled += 1
                if handled >= count:
                    done.set()

    workers = [asyncio.ensure_future(handle()) for _ in range(CONNECTIONS)]
    await done.wait()
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return handled


def row_of(order: Order, key: str) -> tuple[Any, ...]:
    """Postroad's row of the log, made by hand."""
    identity, now = uuid4(), datetime.now(UTC)
    envelope = {
        "specversion": "1.0", "id": str(identity), "time": now.isoformat(), "recordedtime": now.isoformat(),
        "source": "urn:floor", "type": "floor.order.placed", "schemaversion": 1, "datacontenttype": "application/json",
        "correlationid": str(identity), "partitionkey": key, "data": order.model_dump(mode="json"),
    }  # fmt: skip
    body = json.dumps(envelope).encode()
    return identity, "floor.order.placed", 1, key, None, now, now, str(identity), None, 7, body


async def staging(pool: asyncpg.Pool[asyncpg.Record], count: int) -> float:
    """Seconds that such a row and a plain INSERT of it take in each of so many transactions, begin and commit apart."""
    taken = 0.0
    async with pool.acquire() as connection:
        for number in range(count):
            async with connection.transaction():
                order = Order(order_id="x" * 36, note="b" * 380)
                began = time.perf_counter()
                await connection.execute(ROW, *row_of(order, str(number)))
                taken += time.perf_counter() - began
    return taken


async def main(stage: str, count: int) -> None:
    pool = await asyncpg.create_pool(os.environ["BENCH_DATABASE_URL"], min_size=CONNECTIONS, max_size=8)
    channel = Channel()
    await channel.open(os.environ["BENCH_BROKER_URL"])
    if stage == "setup":
        await pool.execute(TABLES)
        await channel.call(channel.channel.queue_purge, QUEUE)
    elif stage == "fill":
        await pool.execute(FILL, count, BODY, ROUTE)
    elif stage == "staging":
        print(json.dumps({"rate": count / await staging(pool, count)}))
    else:
        started = time.perf_counter()
        hot = stage == "consume-hot"
        done = await (dispatch(pool, channel) if stage == "dispatch" else consume(pool, channel, count, hot=hot))
        print(json.dumps({"rate": done / (time.perf_counter() - started)}))
    channel.connection.close()
    await asyncio.sleep(0.1)
    pool.terminate()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
