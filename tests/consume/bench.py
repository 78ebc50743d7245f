"""What the tests of the consume room share: a queue in memory, events to put there, and a process to consume it."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from pydantic import BaseModel, Field

from consume.kinds import as_def
from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.consume import Attempts, ConsumerService, EntrustedAttempts, Retries, consumer_of
from postroad.consume.collector import Collector
from postroad.events import Producer
from postroad.events.envelope import CONTENT_TYPE, encode
from postroad.events.event_type import event_type_of
from postroad.leases import Keeper, Leases
from postroad.retry import Backoff
from postroad.runtime.executor import Tasks
from postroad.signals import Signals
from postroad.signals.catalog import DeliverySettled
from postroad.sql.manager import Manager
from postroad.sql.threaded import PsycopgTransactions
from postroad.sql.transactions import AsyncpgTransactions, AsyncpgUnit
from postroad.transport.base import Incoming, Tag
from postroad.work.claimer import Claimer
from postroad.work.settings import WorkSettings
from support import Recorder, pooled

SCHEMA = "postroad"
QUICK = WorkSettings(
    lease=seconds(3), busy=seconds(0.005), idle=seconds(0.05), rescan=seconds(0.2), sweep=seconds(0.05),
    repair=seconds(0.3), gauges=seconds(0.2), let_go=seconds(2),
)  # fmt: skip
AT_ONCE = Backoff(first=seconds(0.02), most=seconds(0.1), attempts=5)

orders = Producer("orders")


@orders.event("order.placed", version=1)
class OrderPlaced(BaseModel):
    """Somebody ordered something."""

    order: str = Field(description="The number of the order")
    amount: int = Field(description="What it costs, in cents")


class Order(BaseModel):
    """What the consumers under test read of it."""

    order: str
    amount: int


def body(order: str = "A1", *, amount: int = 1, identity: UUID | None = None, **given: Any) -> bytes:
    now = datetime.now(UTC)
    return encode(
        event_type_of(OrderPlaced), OrderPlaced(order=order, amount=amount), id=identity or SYSTEM_CLOCK.new_id(),
        occurred=now, recorded=now, correlation=given.pop("correlation", "story-1"), **given,
    )  # fmt: skip


class Queue:
    """A queue in memory that keeps a broker's promises: what is not acked is delivered again, in its place."""

    def __init__(self) -> None:
        self._waiting: deque[dict[str, Any]] = deque()
        self._arrived = asyncio.Event()
        self.acked: list[Mapping[str, Any]] = []
        self.given_back = 0
        self.stale = 0

    def put(self, body: bytes, **given: Any) -> None:
        message = {
            "body": body, "content_type": CONTENT_TYPE, "headers": {}, "exchange": "orders.events",
            "routing_key": "orders.order.placed.v1", "redelivered": False,
        }  # fmt: skip
        self._waiting.append({**message, **given})
        self._arrived.set()

    def intake(self, *, prefetch: int = 64) -> MemoryIntake:
        return MemoryIntake(self, prefetch)

    def _again(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._waiting.extendleft({**message, "redelivered": True} for message in reversed(messages))
        self._arrived.set()


class MemoryIntake:
    """Implements `Intake` on a `Queue`."""

    def __init__(self, queue: Queue, prefetch: int) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._generation = 1
        self._number = 0
        self._owed: dict[Tag, Mapping[str, Any]] = {}
        self._standing = True
        self._stopped = False
        self.acks_are_lost = False
        self.resumed = 0

    async def take(self, most: int) -> Sequence[Incoming]:
        while True:
            room = min(most, self._prefetch - len(self._owed))
            waiting = self._queue._waiting
            if self._standing and room > 0 and waiting:
                return [self._deliver(waiting.popleft()) for _ in range(min(room, len(waiting)))]
            if self._stopped:
                return ()
            self._queue._arrived.clear()
            await self._queue._arrived.wait()

    def _deliver(self, message: Mapping[str, Any]) -> Incoming:
        self._number += 1
        tag = Tag(self._generation, self._number)
        self._owed[tag] = message
        return Incoming(tag=tag, **message)

    def _settle(self, tags: Sequence[Tag]) -> list[Mapping[str, Any]]:
        found = [self._owed.pop(tag) for tag in tags if tag in self._owed]
        self._queue.stale += len(tags) - len(found)
        self._queue._arrived.set()
        return found

    def ack(self, tags: Sequence[Tag]) -> None:
        if not self.acks_are_lost:
            self._queue.acked += self._settle(tags)

    def give_back(self, tags: Sequence[Tag]) -> None:
        back = self._settle(tags)
        self._queue.given_back += len(back)
        self._queue._again(back)

    def drop(self) -> None:
        """The connection is lost: everything unacked is delivered again, and its tags are stale."""
        lost = [*self._owed.values()]
        self._owed.clear()
        self._generation += 1
        self._queue._again(lost)

    async def pause(self) -> None:
        self._standing = False

    async def resume(self) -> None:
        self._standing = True
        self.resumed += 1
        self._queue._arrived.set()

    async def stop(self) -> None:
        self._stopped, self._standing = True, False
        self.drop()


class Ready:
    """A Readiness that a test can read."""

    def __init__(self) -> None:
        self.reason = "not said"

    def up(self) -> None:
        self.reason = ""

    def down(self, reason: str) -> None:
        self.reason = reason


class Counted:
    """The App's transactions, counting what goes over the wire: the first word of each statement."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self.statements: list[str] = []

    def _note(self, record: Any) -> None:
        lines = [line for line in record.query.splitlines() if line and not line.startswith("--")]
        if lines:
            self.statements.append(lines[0].split()[0])

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncpgUnit]:
        async with self._manager.connection() as connection:
            with connection.query_logger(self._note):
                async with connection.transaction():
                    yield AsyncpgUnit(connection)


class Process:
    """One process that consumes: its pool, its signals, and the services it runs."""

    def __init__(self, manager: Manager, signals: Signals, url: str, *, kind: str) -> None:
        self.manager = manager
        self.signals = signals
        self.heard = Recorder(signals)
        self.owner = Tasks(signals)
        self.ready = Ready()
        self.stop = asyncio.Event()
        self.resources: dict[type[Any], Any] = {}
        self.leases: Leases | None = None
        self.service: ConsumerService | None = None
        self.run: asyncio.Task[None] | None = None
        self._url = url
        self._kind = kind

    def attempts(self, function: Any, *, transactions: Any = None) -> Attempts:
        consumer, custody = consumer_of(function), None
        if self._kind == "def":
            consumer = consumer if consumer.threaded else as_def(consumer)
            size, name = consumer.concurrency, consumer.name
            transactions = transactions or PsycopgTransactions(pooled(self._url), self.owner, size=size, name=name)
            custody = PsycopgTransactions(pooled(self._url), self.owner, size=2, name="custody")
        return (EntrustedAttempts if consumer.effects else Attempts)(
            consumer, transactions=transactions or AsyncpgTransactions(self.manager), custody=custody, schema=SCHEMA,
            resources=self.resources, signals=self.signals, clock=SYSTEM_CLOCK, chance=random.random,
            leases=self.leases, manager=self.manager,
        )  # fmt: skip

    @asynccontextmanager
    async def consuming(
        self, function: Any, intake: Any, *, transactions: Any = None, retries: bool = False
    ) -> AsyncIterator[Attempts]:
        attempts = self.attempts(function, transactions=transactions)
        if not retries:
            async with self._service(attempts, intake, None):
                yield attempts
            return
        async with self._claimer(attempts) as claimer, self._service(attempts, intake, claimer):
            yield attempts

    @asynccontextmanager
    async def _service(self, attempts: Attempts, intake: Any, work: Any) -> AsyncIterator[None]:
        self.service = ConsumerService(
            attempts, intake=intake, database=self.manager, work=work, owner=self.owner, signals=self.signals,
            clock=SYSTEM_CLOCK, chance=random.random,
        )  # fmt: skip
        self.stop = asyncio.Event()
        self.run = asyncio.create_task(self.service.run(self.stop, self.ready))
        try:
            yield
        finally:
            await _ended(self.stop, self.run)

    @asynccontextmanager
    async def collecting(self, function: Any, intake: Any, *, ready: Ready | None = None) -> AsyncIterator[Collector]:
        collector = Collector(
            consumer_of(function), intake=intake, transactions=AsyncpgTransactions(self.manager), database=self.manager,
            schema=SCHEMA, owner=self.owner, signals=self.signals, clock=SYSTEM_CLOCK, chance=random.random,
        )  # fmt: skip
        stop = asyncio.Event()
        task = asyncio.create_task(collector.run(stop, ready or Ready()))
        try:
            yield collector
        finally:
            await _ended(stop, task)

    @asynccontextmanager
    async def _claimer(self, attempts: Attempts) -> AsyncIterator[Claimer]:
        keeper = Keeper(
            self._url, schema=SCHEMA, holder=uuid4(), clock=SYSTEM_CLOCK, signals=self.signals, owner=self.owner
        )
        await keeper.start()
        retries = Retries(attempts, signals=self.signals, clock=SYSTEM_CLOCK)
        claimer = Claimer(
            self.manager, keeper, handlers={retries.queue: retries}, signals=self.signals, clock=SYSTEM_CLOCK,
            owner=self.owner, settings=QUICK,
        )  # fmt: skip
        stop = asyncio.Event()
        task = asyncio.create_task(claimer.run(stop, Ready()))
        try:
            yield claimer
        finally:
            await _ended(stop, task)
            await keeper.stop()

    @asynccontextmanager
    async def leasing(self) -> AsyncIterator[Leases]:
        """Handlers may take leases."""
        keeper = Keeper(
            self._url, schema=SCHEMA, holder=uuid4(), clock=SYSTEM_CLOCK, signals=self.signals, owner=self.owner
        )
        await keeper.start()
        self.leases = Leases(
            keeper, self.manager, clock=SYSTEM_CLOCK, signals=self.signals, chance=random.random, shortest=seconds(0.25)
        )
        try:
            yield self.leases
        finally:
            await keeper.stop()

    async def settled(self, count: int = 1, **that: Any) -> list[DeliverySettled]:
        """The first `count` settled deliveries with these fields, now or soon."""

        def holds(signal: DeliverySettled) -> bool:
            return all(getattr(signal, name) == value for name, value in that.items())

        await self.heard.wait(DeliverySettled, holds, count=count)
        return [signal for signal in self.heard.all(DeliverySettled) if holds(signal)]


async def _ended(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
    stop.set()
    await asyncio.wait([task], timeout=10)
    if not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=5)
    if not task.cancelled() and (error := task.exception()):
        raise error


@asynccontextmanager
async def process(url: str, *, kind: str = "async def") -> AsyncIterator[Process]:
    signals = Signals()
    manager = await Manager.open(pooled(url), schema=SCHEMA, size=12)
    standing = Process(manager, signals, url, kind=kind)
    try:
        yield standing
    finally:
        await standing.owner.cancel()
        assert await standing.owner.join(within=seconds(10)) == ()
        await manager.close()
