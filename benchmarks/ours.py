"""Postroad's side of the comparison: the product as it is run, timed by its own signals.

Usage: ours.py STAGE COUNT, with BENCH_DATABASE_URL and BENCH_BROKER_URL set; prints one JSON line {"rate": per second}.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import pika
import uvloop
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from postroad.asyncpg import Publish, within
from postroad.consume import Delivery, consumer
from postroad.events import Producer
from postroad.runtime import operations
from postroad.runtime.app import App
from postroad.signals.catalog import (
    ConsumerSubscribed,
    DeliveriesAcked,
    DeliveryDelayed,
    DeliveryQuarantined,
    OutboxCleared,
    ShardsHeld,
)
from postroad.sql.migrations import Roles, migrate
from postroad.sqlalchemy import AsyncSessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.signals import Signal, Sink

bench = Producer("bench")
CHUNK = 500
TABLES = """
DROP TABLE IF EXISTS effect; DROP TABLE IF EXISTS hot;
CREATE TABLE effect (id uuid PRIMARY KEY, n int);
CREATE TABLE hot (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO hot SELECT g, 0 FROM generate_series(0, 15) AS g;
"""

BACKLOG = """
WITH one AS (
    SELECT e.type, e.version, e.occurred, e.recorded, e.correlation, e.retention, e.envelope, o.route
    FROM postroad.event AS e JOIN postroad.outbox AS o USING (seq) LIMIT 1
), made AS (
    SELECT nextval('postroad.event_seq') AS seq, nextval('postroad.outbox_place') AS place, n, one.*
    FROM one, generate_series(1, $1::int) AS n
), logged AS (
    INSERT INTO postroad.event (seq, id, type, version, key, occurred, recorded, correlation, retention, envelope)
    SELECT seq, gen_random_uuid(), type, version, n::text, occurred, recorded, correlation, retention, envelope
    FROM made
)
INSERT INTO postroad.outbox (shard, place, seq, recorded, retention, route, key_hash)
SELECT n % 16, place, seq, recorded, retention, route, n
FROM made
"""


@bench.event("order.placed", version=1)
class OrderPlaced(BaseModel):
    """An order was placed."""

    order_id: str = Field(description="The order")
    note: str = Field(description="Filler, so that the body is as long as the rivals'")


@consumer(OrderPlaced, name="bench.queue")
async def handle(_event: OrderPlaced, delivery: Delivery[asyncpg.Connection[asyncpg.Record]]) -> None:
    await delivery.tx.execute("INSERT INTO effect VALUES ($1, 1)", UUID(delivery.id))


@consumer(OrderPlaced, name="bench.queue")
async def handle_hot(_event: OrderPlaced, delivery: Delivery[asyncpg.Connection[asyncpg.Record]]) -> None:
    await delivery.tx.execute("UPDATE hot SET n = n + 1 WHERE id = $1", int(delivery.key or 0) % 16)


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    n: Mapped[int]


def with_sessions() -> Callable[..., object]:
    """The same effect by an object of SQLAlchemy's, added to a session of the delivery's own."""
    url = os.environ["BENCH_DATABASE_URL"].replace("postgresql://", "postgresql+asyncpg://", 1)
    sessions = AsyncSessions(async_sessionmaker(create_async_engine(url, pool_size=10)))

    @consumer(OrderPlaced, name="bench.queue", on=sessions)
    async def add(_event: OrderPlaced, delivery: Delivery[AsyncSession]) -> None:
        delivery.tx.add(Effect(id=UUID(delivery.id), n=1))

    return add


class Stopwatch:
    """Times from the first signal of a kind until so many were counted, then ends the process in good order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done = 0
        self._started: float | None = None

    def begin(self) -> None:
        if self._started is None:
            self._started = time.perf_counter()

    def add(self, count: int) -> None:
        self._done += count
        if self._done >= self._count and self._started is not None:
            print(json.dumps({"rate": self._done / (time.perf_counter() - self._started)}), flush=True)
            self._started = None
            os.kill(os.getpid(), signal.SIGTERM)


def dispatch(count: int) -> None:
    watch = Stopwatch(count)

    def sink(heard: Signal) -> None:
        if isinstance(heard, ShardsHeld):
            watch.begin()
        elif isinstance(heard, OutboxCleared):
            watch.add(heard.deleted)

    App("bench", publishes=[bench], sinks=(sink,)).run(only=("dispatch",))


def dispatch_beside_a_writer(count: int) -> None:
    """The same, while another transaction has written and stays open: nothing that was deleted can be cleaned away."""
    open_now = threading.Event()

    async def hold() -> None:
        connection = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"])
        await connection.execute("BEGIN")
        await connection.execute("UPDATE hot SET n = n + 1 WHERE id = 0")
        open_now.set()
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(hold()), daemon=True).start()
    open_now.wait()
    dispatch(count)


def dispatch_and_weigh(count: int) -> None:
    """Dispatch so many; the "rate" is how many megabytes of memory the process then takes."""
    left = count

    def sink(heard: Signal) -> None:
        nonlocal left
        if isinstance(heard, OutboxCleared) and left > 0:
            left -= heard.deleted
            if left <= 0:
                print(json.dumps({"rate": resident()}), flush=True)
                os.kill(os.getpid(), signal.SIGTERM)

    App("bench", publishes=[bench], sinks=(sink,)).run(only=("dispatch",))


def resident() -> float:
    """Megabytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def consume(count: int, *, handler: Callable[..., object]) -> None:
    watch = Stopwatch(count)

    def sink(heard: Signal) -> None:
        if isinstance(heard, ConsumerSubscribed) and heard.consumer == "bench.queue":
            watch.begin()
        elif isinstance(heard, DeliveriesAcked):
            watch.add(heard.count)

    consumer_app(sink, handler=handler).run(only=("consume", "work"))


def consume_beside_another() -> None:
    """One of the processes of `consume_in_two`: until it is told to stop; a charged attempt is an error."""
    charged = 0

    def sink(heard: Signal) -> None:
        nonlocal charged
        charged += isinstance(heard, DeliveryDelayed | DeliveryQuarantined)

    consumer_app(sink, handler=handle_hot).run(only=("consume", "work"))
    sys.exit(f"{charged} attempts were charged" if charged else 0)


def consume_in_two(count: int) -> None:
    """Two processes on the same 16 hot rows, timed from the first effects to the last, as the database shows them."""
    processes = [subprocess.Popen([sys.executable, __file__, "consume-beside", "0"]) for _ in range(2)]
    done, rate = asyncio.run(effects(count, while_=lambda: all(process.poll() is None for process in processes)))
    for process in processes:
        process.terminate()
    codes = [process.wait() for process in processes]
    if any(codes) or done != count:
        sys.exit(f"two processes: {done} effects of {count} messages, or an attempt was charged")
    print(json.dumps({"rate": rate}), flush=True)


async def effects(count: int, *, while_: Callable[[], bool]) -> tuple[int, float]:
    """Watch the hot rows from outside until they count so many; the count, and the effects per second."""
    connection = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"])
    began, first, done = 0.0, 0, 0
    while done < count and while_():
        await asyncio.sleep(0.05)  # Nobody tells us.
        done = await connection.fetchval("SELECT sum(n) FROM hot")
        if done and not began:
            began, first = time.perf_counter(), done
    await connection.close()
    return done, (done - first) / (time.perf_counter() - began)


def consumer_app(*sinks: Sink, handler: Callable[..., object] = handle) -> App:
    return App("bench-consumer", consumers=[handler], sinks=sinks)


async def setup() -> None:
    url = os.environ["BENCH_DATABASE_URL"]
    await migrate(url, schema="postroad", roles=Roles(), days_ahead=2)
    connection = await asyncpg.connect(url)
    await connection.execute(TABLES)
    await connection.execute("TRUNCATE postroad.outbox, postroad.event, postroad.inbox")
    await connection.close()
    await operations.apply_topology(operations.topology_settings(), consumer_app().topology, by="bench")
    broker = pika.BlockingConnection(pika.URLParameters(os.environ["BENCH_BROKER_URL"]))
    broker.channel().queue_purge("bench.queue")
    broker.close()


async def fill(count: int) -> None:
    connection = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"])
    for first in range(0, count, CHUNK):
        events = [
            Publish(OrderPlaced(order_id="x" * 36, note="b" * 380), key=str(number), occurred_at=datetime.now(UTC))
            for number in range(first, min(first + CHUNK, count))
        ]
        async with connection.transaction():
            await within(connection).publish_many(events)
    await connection.execute("VACUUM ANALYZE postroad.outbox, postroad.event")
    await connection.close()


async def staging(count: int) -> None:
    """How many events a second stage within their authors' transactions, begin and commit not counted."""
    connection, taken = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"]), 0.0
    for number in range(count):
        async with connection.transaction():
            event = OrderPlaced(order_id="x" * 36, note="b" * 380)
            began = time.perf_counter()
            await within(connection).publish(event, key=str(number))
            taken += time.perf_counter() - began
    print(json.dumps({"rate": count / taken}), flush=True)


async def backlog(count: int) -> None:
    """As fill, but within the server, for very many; the bodies are alike."""
    connection = await asyncpg.connect(os.environ["BENCH_DATABASE_URL"])
    async with connection.transaction():
        event = Publish(OrderPlaced(order_id="x" * 36, note="b" * 380), key="0", occurred_at=datetime.now(UTC))
        await within(connection).publish_many([event])
    await connection.execute(BACKLOG, count - 1)
    await connection.execute("VACUUM ANALYZE postroad.outbox, postroad.event")
    await connection.execute("CHECKPOINT")
    await connection.close()


if __name__ == "__main__":
    stage, amount = sys.argv[1], int(sys.argv[2])
    match stage:
        case "setup":
            asyncio.run(setup())
        case "fill":
            asyncio.run(fill(amount))
        case "backlog":
            asyncio.run(backlog(amount))
        case "million":
            asyncio.run(backlog(1_000_000))
        case "staging":
            uvloop.run(staging(amount))
        case "dispatch":
            dispatch(amount)
        case "consume-two":
            consume_in_two(amount)
        case "consume-beside":
            consume_beside_another()
        case "dispatch-held":
            dispatch_beside_a_writer(amount)
        case "memory":
            dispatch_and_weigh(amount)
        case "consume-sessions":
            consume(amount, handler=with_sessions())
        case _:
            consume(amount, handler=handle_hot if stage == "consume-hot" else handle)
