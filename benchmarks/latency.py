"""How long an event takes from its commit to the commit of its effect, at 200 a second, with polling alone.

Each is staged by a transaction that stays open for 30 ms after it, so that places appear out of commit order. Usage:
latency.py median|p99 COUNT, with BENCH_DATABASE_URL and BENCH_BROKER_URL set; prints one JSON line {"rate": per
second}: the reciprocal of the latency, so that more is better as everywhere here. median-postgres and p99-postgres go
without the broker, over the PostgreSQL transport.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
from ours import OrderPlaced, bench

from postroad.asyncpg import Publish, within
from postroad.consume import Delivery, consumer
from postroad.runtime.app import App
from postroad.signals.catalog import ConsumerSubscribed, DeliveriesCommitted, ShardsHeld

if TYPE_CHECKING:
    from postroad.signals import Signal

PER_SECOND, OPEN_SECONDS, WRITERS, KEYS = 200, 0.03, 16, 50
committed: dict[str, float] = {}
handled: deque[str] = deque()
taken: list[float] = []
subscribed, dispatching = threading.Event(), threading.Event()


@consumer(OrderPlaced, name="bench.queue")
async def handle(event: OrderPlaced, delivery: Delivery[asyncpg.Connection[asyncpg.Record]]) -> None:
    await delivery.tx.execute("INSERT INTO effect VALUES ($1, 1)", UUID(delivery.id))
    handled.append(event.order_id)


def sink(heard: Signal) -> None:
    if isinstance(heard, ConsumerSubscribed) and heard.consumer == "bench.queue":
        subscribed.set()
    elif isinstance(heard, ShardsHeld):
        dispatching.set()
    elif isinstance(heard, DeliveriesCommitted):
        now = time.perf_counter()
        taken.extend(now - committed.pop(handled.popleft()) for _ in range(heard.count))


async def author(pool: asyncpg.Pool[asyncpg.Record], number: int) -> None:
    order = f"{number:036}"
    event = Publish(OrderPlaced(order_id=order, note="b" * 380), key=f"{number % KEYS}", occurred_at=datetime.now(UTC))
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await within(connection).publish_many([event])
        await asyncio.sleep(OPEN_SECONDS)
        committed[order] = time.perf_counter()
        await transaction.commit()


async def authors(count: int) -> None:
    async with asyncpg.create_pool(os.environ["BENCH_DATABASE_URL"], min_size=WRITERS, max_size=WRITERS) as pool:
        writing, began = set[asyncio.Task[None]](), time.perf_counter()
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / PER_SECOND - time.perf_counter()))
            writing.add(asyncio.create_task(author(pool, number)))
        await asyncio.gather(*writing)
    while len(taken) < count:  # noqa: ASYNC110 - another thread counts
        await asyncio.sleep(0.01)


def publish(kind: str, count: int) -> None:
    subscribed.wait()
    dispatching.wait()
    asyncio.run(authors(count))
    latency = statistics.median(taken) if kind.startswith("median") else statistics.quantiles(taken, n=100)[98]
    print(json.dumps({"rate": 1 / latency}), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    if sys.argv[1].endswith("-postgres"):
        os.environ["POSTROAD_BROKER_URL"] = "postgres:"
        subscribed.set()  # It was before the App starts: a row in a table.
    threading.Thread(target=publish, args=(sys.argv[1], int(sys.argv[2])), daemon=True).start()
    App("bench", publishes=[bench], consumers=[handle], sinks=[sink]).run(only=("dispatch", "consume", "work"))
