"""One end of a transport, whichever it is: what the tests of the promise need beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.testing.servers import Rabbit, TcpProxy
from postroad.transport.base import Abilities, Incoming, Intake, Outgoing, Publisher, Settled
from postroad.transport.postgres import PostgresTransport
from postroad.transport.postgres.store import deliveries_of
from postroad.transport.topology import Topology
from postroad.work.claimer import Claimer
from support import Recorder, until
from transport.line import Line
from work.bench import QUICK, Process, Ready, process

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres
    from postroad.work.settings import WorkSettings

QUEUE = "billing"
SETTINGS = replace(QUICK, lease=seconds(20))  # Nobody waits for its end here, and a busy machine loses a short one.


@dataclass
class End:
    """A publisher and an intake of `QUEUE`, running."""

    abilities: Abilities
    publisher: Publisher
    intake: Intake
    heard: Recorder
    road: Any  # what the kind of end knows: `cut`, `disown`, `stop`
    settled: dict[int, Settled]

    async def send(self, *messages: Outgoing) -> list[Settled]:
        """Publish and wait until every one is settled."""
        self.publisher.publish(messages)
        await until(lambda: all(message.ticket in self.settled for message in messages))
        return [self.settled[message.ticket] for message in messages]

    async def take(self, count: int, *, within: float = 20) -> list[Incoming]:
        """Take exactly so many deliveries."""
        taken: list[Incoming] = []
        async with asyncio.timeout(within):
            while len(taken) < count:
                taken += await self.intake.take(count - len(taken))
        return taken


class Ends(Protocol):
    """Opens ends of one transport, on one road."""

    async def open(self, *, prefetch: int = 10) -> End:
        """A running end, as a process of its own would have."""
        ...

    async def waiting(self) -> int:
        """How many deliveries of `QUEUE` are ready: in nobody's hands."""
        ...


class Numbers:
    """Makes messages: numbers as bodies, so that order shows."""

    def __init__(self) -> None:
        self._tickets = 0

    def message(self, body: bytes = b"0", **fields: Any) -> Outgoing:
        self._tickets += 1
        given: dict[str, Any] = {
            "exchange": "shop.events", "routing_key": "shop.order.placed.v1", "message_id": str(uuid4()),
            "type": "shop.order.placed", "app_id": "shop", "correlation_id": "c-1",
            "content_type": "application/cloudevents+json",
        }  # fmt: skip
        return Outgoing(ticket=self._tickets, body=body, **{**given, **fields})

    def messages(self, count: int) -> list[Outgoing]:
        return [self.message(str(number).encode()) for number in range(count)]


TOPOLOGY = Topology.of(publishes=["shop"], consumers=[(QUEUE, ["shop.order.placed"]), ("stock", ["shop.order.placed"])])


def _end(road: Any, publisher: Publisher, intake: Intake, heard: Recorder, abilities: Abilities) -> End:
    settled: dict[int, Settled] = {}
    publisher.on_settled(lambda batch: settled.update({one.ticket: one for one in batch}))
    return End(abilities, publisher, intake, heard, road, settled)


# --- RabbitMQ -------------------------------------------------------------------------------------------------------


class AmqpRoad:
    """An end on RabbitMQ, behind a proxy."""

    def __init__(self, line: Line, proxy: TcpProxy) -> None:
        self.line = line
        self._proxy = proxy

    async def cut(self) -> None:
        """Cut its connections; it comes back by itself."""
        self._proxy.cut()
        self._proxy.heal()

    disown = cut  # A lost connection is how deliveries are taken from a process.

    async def stop(self) -> None:
        await self.line.stop()


class AmqpEnds:
    """On a virtual host of the run's node."""

    def __init__(self, stack: AsyncExitStack, rabbit: Rabbit, vhost: str) -> None:
        self._stack = stack
        self._rabbit = rabbit
        self._vhost = vhost

    async def open(self, *, prefetch: int = 10) -> End:
        proxy = self._stack.enter_context(TcpProxy(self._rabbit.port))
        line = Line(self._rabbit.url(urlsplit(self._vhost).path[1:], port=proxy.port))
        await line.transport.apply(TOPOLOGY)
        intake = line.transport.intake(QUEUE, prefetch=prefetch)
        made = _end(AmqpRoad(line, proxy), line.publisher, intake, line.heard, line.transport.abilities)
        await line.start()
        self._stack.push_async_callback(line.stop)
        self._line = line
        return made

    async def waiting(self) -> int:
        return (await self._line.transport.depths([QUEUE]))[QUEUE]


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


class PostgresRoad:
    """An end on PostgreSQL: a transport, and a claimer that runs its deliveries."""

    def __init__(self, here: Process, transport: PostgresTransport, claimer: Claimer, database: str) -> None:
        self._here = here
        self._database = database
        self._services = [transport.service(), claimer]
        self._stops: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for service in self._services:
            stop, ready = asyncio.Event(), Ready()
            self._stops.append(stop)
            self._tasks.append(asyncio.create_task(service.run(stop, ready)))
            await until(lambda ready=ready: ready.reason == "")  # type: ignore[misc]

    async def cut(self) -> None:
        """End its sessions but for the keeper's: the pool opens others."""
        await self._execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'postroad'"
        )

    async def disown(self) -> None:
        """Fence its worker lease, as whoever takes it for dead does."""
        await self._execute("UPDATE postroad.lease SET token = token + 1, holder = NULL WHERE name LIKE 'worker:%'")

    async def stop(self) -> None:
        """In the order of a process: what takes work in first, what it stands on after it."""
        for stop, task in reversed(list(zip(self._stops, self._tasks, strict=True))):
            stop.set()
            await asyncio.wait_for(task, 15)
        self._tasks.clear()
        self._stops.clear()

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self._database)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


class PostgresEnds:
    """In a database of the run's server."""

    def __init__(self, stack: AsyncExitStack, postgres: Postgres, database: str, url: str) -> None:
        self._stack = stack
        self._postgres = postgres
        self._database = database
        self._url = url

    async def open(self, *, prefetch: int = 10, settings: WorkSettings = SETTINGS) -> End:
        here = await self._stack.enter_async_context(process(self._url))
        heard = Recorder(here.signals)
        transport = PostgresTransport(here.manager, owner=here.owner, signals=here.signals, chance=lambda: 0.5)
        await transport.apply(TOPOLOGY)
        intake = transport.intake(QUEUE, prefetch=prefetch)
        claimer = Claimer(
            here.manager, here.keeper, handlers=transport.handlers(), signals=here.signals, clock=SYSTEM_CLOCK,
            owner=here.owner, settings=settings,
        )  # fmt: skip
        transport.attach(claimer)
        road = PostgresRoad(here, transport, claimer, self._database)
        made = _end(road, transport.publisher(), intake, heard, transport.abilities)
        await road.start()
        self._stack.push_async_callback(self._end_of, made, road)
        return made

    @staticmethod
    async def _end_of(made: End, road: PostgresRoad) -> None:
        await made.intake.stop()
        await road.stop()

    async def waiting(self) -> int:
        name = urlsplit(self._database).path[1:]
        sql = f"SELECT count(*) FROM postroad.work WHERE queue = '{deliveries_of(QUEUE)}' AND state = 'ready'"
        rows = await asyncio.to_thread(self._postgres.execute, sql, database=name)
        return int(rows[0][0])


@asynccontextmanager
async def holds(ends: Ends, count: int) -> AsyncIterator[None]:
    """Wait until so many are ready; what is given back is so a little later."""
    async with asyncio.timeout(20):
        while await ends.waiting() != count:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.02)
    yield


def bodies(deliveries: Sequence[Incoming]) -> list[int]:
    return [int(delivery.body) for delivery in deliveries]
