"""What tests of the dispatcher share: authors, a broker in memory that answers as told, and whole dispatchers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pika

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.events.envelope import key_hash, shard_of
from postroad.leases import Keeper
from postroad.outbox.dispatcher import Dispatcher
from postroad.outbox.settings import DispatchSettings
from postroad.outbox.stage import StagedEvent, stage
from postroad.retry import Backoff
from postroad.signals import Signals
from postroad.signals.catalog import ShardsHeld
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.drive import drive
from postroad.transport.amqp import AmqpSettings, AmqpTransport
from postroad.transport.base import Outgoing, Publisher, Settled, Settlement
from postroad.transport.topology import Topology
from support import Recorder, ThreadOwner, pooled, until

if TYPE_CHECKING:
    from postroad.sql.manager import Manager

SCHEMA = "postroad"
QUICK = {
    "shard_ttl": seconds(1.5),
    "balance": seconds(0.1),
    "refused": Backoff(first=seconds(0.1), most=seconds(0.4)),
    "unknown_pause": seconds(0.05),
    "retry_check": seconds(0.05),
    "gauge": seconds(0.2),
}


def an_event(key: str | None = "UA-1", **changes: Any) -> StagedEvent:
    hashed = None if key is None else key_hash(key)
    now = datetime.now(UTC)
    given = {
        "id": uuid4(), "type": "flights.flight.departed", "version": 1, "key": key, "sequence": None,
        "occurred": now, "recorded": now, "correlation": "story", "causation": None, "retention": 90,
        "envelope": b'{"n": 1}', "route": "flights.flight.departed.v1",
        "shard": None if hashed is None else shard_of(hashed), "key_hash": hashed,
    }  # fmt: skip
    return StagedEvent(**{**given, **changes})


class Author:
    """Stages events under the author's role."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def stage(self, *events: StagedEvent) -> list[str]:
        """Stage and commit; the ids."""
        async with self.open() as connection:
            await self.stage_on(connection, *events)
        return [str(event.id) for event in events]

    async def stage_on(self, connection: asyncpg.Connection, *events: StagedEvent) -> None:
        await drive(stage(SCHEMA, events), AsyncpgHand(connection))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection with an open transaction: leaving the block commits."""
        connection = await asyncpg.connect(pooled(self._url), statement_cache_size=0)  # As poolers need it.
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()


class MemoryBroker(Publisher):
    """A publisher that answers as told: by a rule, at once or when asked to."""

    def __init__(self) -> None:
        self.up = True
        self.at_once = True
        self.rule: Callable[[Outgoing], Settled] = lambda message: Settled(message.ticket, Settlement.CONFIRMED)
        self.seen: list[Outgoing] = []
        self.unanswered: list[Outgoing] = []
        self._settled: Callable[[Sequence[Settled]], None] = lambda _: None
        self._writable: Callable[[], None] = lambda: None

    @property
    def writable(self) -> bool:
        return self.up

    def publish(self, batch: Sequence[Outgoing]) -> None:
        self.seen += batch
        self.unanswered += batch
        if self.at_once:
            asyncio.get_running_loop().call_soon(self.answer)

    def answer(self, settlement: Settlement | None = None) -> None:
        """Settle what is unanswered: by the rule, or all alike."""
        waiting, self.unanswered = self.unanswered, []
        if waiting and settlement is None:
            self._settled([self.rule(message) for message in waiting])
        elif waiting and settlement is not None:
            self._settled([Settled(message.ticket, settlement, "as told") for message in waiting])

    def turn(self, *, up: bool) -> None:
        self.up = up
        self._writable()

    def on_settled(self, hear: Callable[[Sequence[Settled]], None]) -> None:
        self._settled = hear

    def on_writable(self, hear: Callable[[], None]) -> None:
        self._writable = hear

    def ids(self) -> list[str]:
        return [message.message_id for message in self.seen]


class Process:
    """A dispatcher with all that it stands on, as one process has it."""

    def __init__(self, manager: Manager, direct: str, publisher: Publisher, **settings: Any) -> None:
        self.signals = Signals()
        self.heard = Recorder(self.signals)
        self.owner = ThreadOwner(self.signals)
        self.manager = manager
        self.publisher = publisher
        optional, permit = settings.pop("optional", ()), settings.pop("permit", None)
        self.keeper = Keeper(
            direct, schema=SCHEMA, holder=uuid4(), clock=SYSTEM_CLOCK, signals=self.signals, owner=self.owner
        )
        self.dispatcher = Dispatcher(
            manager, self.keeper, publisher, owner=self.owner, signals=self.signals, clock=SYSTEM_CLOCK,
            chance=random.random, settings=DispatchSettings(**{**QUICK, **settings}), optional=optional, permit=permit,
        )  # fmt: skip
        self.ready = False
        self.reason = ""
        self._stop = asyncio.Event()
        self.running: asyncio.Task[None] | None = None

    def up(self) -> None:
        self.ready, self.reason = True, ""

    def down(self, reason: str) -> None:
        self.ready, self.reason = False, reason

    @property
    def held(self) -> tuple[int, ...]:
        told = self.heard.all(ShardsHeld)
        return told[-1].shards if told else ()

    async def start(self, *, shards: int | None = 16) -> None:
        await self.keeper.start()
        self.running = self.owner.task(self.dispatcher.run(self._stop, self), name="dispatcher")
        if shards is not None:
            await until(lambda: len(self.held) == shards)

    async def stop(self, *, within: float = 10) -> None:
        self._stop.set()
        assert self.running is not None
        await asyncio.wait_for(self.running, within)

    async def end(self) -> None:
        """Let go, whatever the state."""
        if self.running is not None and not self.running.done():
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
        await self.keeper.stop()


class RealBroker:
    """The transport's publisher, running against RabbitMQ, with one queue bound to what the tests stage."""

    def __init__(self, url: str) -> None:
        self.signals = Signals()
        self.heard = Recorder(self.signals)
        self.owner = ThreadOwner(self.signals)
        self.transport = AmqpTransport(
            url, owner=self.owner, signals=self.signals, clock=SYSTEM_CLOCK, chance=random.random,
            settings=AmqpSettings(first=seconds(0.05), most=seconds(0.2)),
        )  # fmt: skip
        self.publisher = self.transport.publisher()
        self.intake = self.transport.intake("board", prefetch=1000)
        self.received: Counter[str] = Counter()
        self.order: list[str] = []
        self._stop = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    def up(self) -> None: ...

    def down(self, reason: str) -> None: ...

    async def start(self) -> None:
        await self.transport.apply(
            Topology.of(publishes=["flights"], consumers=[("board", ["flights.flight.departed"])])
        )
        self._running = [
            self.owner.task(self.transport.service().run(self._stop, self), name="transport"),
            self.owner.task(self._take(), name="take"),
        ]
        await until(lambda: self.publisher.writable)

    async def _take(self) -> None:
        while not self._stop.is_set():
            taken = await self.intake.take(1000)
            for incoming in taken:
                if incoming.message_id not in self.received:
                    self.order.append(str(incoming.message_id))
                self.received[str(incoming.message_id)] += 1
            self.intake.ack([incoming.tag for incoming in taken])

    async def stop(self) -> None:
        self._stop.set()
        await self.intake.stop()
        await asyncio.wait_for(asyncio.gather(*self._running), 15)


async def at_the_broker(url: str, act: Any) -> Any:
    """Run `act` with a channel of pika's own blocking connection."""

    def run() -> Any:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        try:
            return act(connection.channel())
        finally:
            connection.close()

    return await asyncio.to_thread(run)
