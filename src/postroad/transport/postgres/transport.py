"""The transport without a broker: a service's own database carries its events to its own consumers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad.clock import seconds
from postroad.errors import AccessRefused, Unavailable, UsageError
from postroad.retry import full_jitter
from postroad.signals.catalog import TopologyMismatch
from postroad.transport.base import Abilities
from postroad.transport.postgres import store
from postroad.transport.postgres.intake import PostgresIntake
from postroad.transport.postgres.publisher import PostgresPublisher
from postroad.transport.topology import Difference
from postroad.work.store import give_back
from postroad.work.sweeper import at_once

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from postroad.owner import Owner, Readiness, Service
    from postroad.signals import Signals
    from postroad.sql.manager import Manager
    from postroad.transport.topology import Topology
    from postroad.work.claimer import Claimer

_MOST_PREFETCH: Final = 65_535
_FIRST_AWAY, _MOST_AWAY = seconds(0.05), seconds(2)
_STOP: Final = seconds(2)
_EVERY_VERSION: Final = ".*"
APPLY: Final = "run: postroad topology apply MODULE:APP"


class PostgresTransport:
    """Joins Apps that share one database and schema: see `Transport` for what it promises.

    A publish is one row of `work` for each consumer that subscribes; a delivery is such a row, claimed under the
    lease of its process. The claimer of the process has to run `handlers`, and be `attached`. Killed, a process loses
    its rows to others within its lease plus one sweep.
    """

    abilities = Abilities(dead_letters=False, blocks=False, requeue_keeps_order=True, tags_outlive_cut=True)

    def __init__(self, manager: Manager, *, owner: Owner, signals: Signals, chance: Callable[[], float]) -> None:
        """Carry in `manager`'s database; `chance` draws a number from 0 to 1 for jitter."""
        self._manager = manager
        self._owner = owner
        self._signals = signals
        self._chance = chance
        self._publisher: PostgresPublisher | None = None
        self._intakes: dict[str, PostgresIntake] = {}
        self._claimer: Claimer | None = None
        self._handed = asyncio.Event()  # publishes
        self._owed = asyncio.Event()  # acks, and what is given back
        self._quiet = asyncio.Event()

    # --- the promise --------------------------------------------------------------------------------------------

    def publisher(self) -> PostgresPublisher:
        """See `Transport.publisher`."""
        if self._publisher is None:
            self._publisher = PostgresPublisher(self._manager, wake=self._wake, changed=self._handed.set)
        return self._publisher

    def intake(self, queue: str, *, prefetch: int) -> PostgresIntake:
        """See `Transport.intake`: the stream of the consumer that is named like `queue`; one for each.

        Raises:
            UsageError: `prefetch` is not between 1 and 65535.
        """
        if not 1 <= prefetch <= _MOST_PREFETCH:
            raise UsageError("PR107", f"prefetch {prefetch} of queue {queue!r} is not between 1 and {_MOST_PREFETCH}")
        if queue not in self._intakes:
            self._intakes[queue] = PostgresIntake(
                queue, prefetch=prefetch, signals=self._signals, changed=self._owed.set, look=self._look
            )
        return self._intakes[queue]

    # --- what it stands on --------------------------------------------------------------------------------------

    def handlers(self) -> Mapping[str, PostgresIntake]:
        """What the process's claimer has to run, by queue: all intakes made so far."""
        return {intake.queue: intake for intake in self._intakes.values()}

    def attach(self, claimer: Claimer) -> None:
        """`claimer` runs the `handlers`."""
        self._claimer = claimer

    def _wake(self, queue: str) -> None:
        if self._claimer is not None:
            self._claimer.wake(queue)

    def _look(self, queue: str) -> None:
        if self._claimer is not None:
            self._claimer.resume(queue)

    async def connect(self, within: timedelta | None = None) -> None:
        """Nothing to log in to: the database is open."""

    # --- topology -----------------------------------------------------------------------------------------------

    async def apply(self, topology: Topology) -> None:
        """Subscribe the topology's consumers to their types, and to no others. Safe to repeat."""
        wanted = subscriptions_in(topology)
        consumers = {consumer for consumer, _ in wanted}
        await self._manager.run(store.subscribe(self._manager.schema, consumers, wanted))

    async def verify(self, topology: Topology) -> list[Difference]:
        """Which subscriptions of the topology are missing."""
        wanted = subscriptions_in(topology)
        standing = await self._manager.run(store.subscriptions(self._manager.schema))
        found = lacking(wanted, standing)
        if found:
            self._signals.emit(TopologyMismatch("subscription", len(found)))
        return found

    # --- the service --------------------------------------------------------------------------------------------

    def service(self) -> Service:
        """What writes publishes, and tells the table what was acked and given back."""
        return TransportService(self)

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `TransportService.run`."""
        publisher = self.publisher()
        work = [
            self._owner.task(self._repeatedly(self._send, self._handed, ready), name="transport:publish"),
            self._owner.task(self._repeatedly(self._settle, self._owed, ready), name="transport:settle"),
        ]
        stopping = self._owner.task(stop.wait(), name="transport:stop")
        publisher.attach(running=True)
        ready.up()
        try:
            await asyncio.wait([*work, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                if task.done():
                    task.result()
            await self._flushed()
        finally:
            stopping.cancel()
            for task in work:
                task.cancel()
            await asyncio.gather(*work, stopping, return_exceptions=True)
            publisher.attach(running=False)

    async def _repeatedly(
        self, act: Callable[[], Awaitable[None]], event: asyncio.Event, ready: Readiness
    ) -> None:  # fmt: skip
        """Do `act` whenever there is something to do, for ever; again after a pause where the database is away."""
        tries = 0
        while True:
            await event.wait()
            event.clear()
            try:
                await act()
            except AccessRefused:
                raise
            except Unavailable as error:
                tries += 1
                ready.down(str(error))
                wait = full_jitter(tries, first=_FIRST_AWAY, most=_MOST_AWAY, chance=0.5 + self._chance() / 2)
                await asyncio.sleep(wait.total_seconds())
                event.set()
                continue
            if tries:
                tries = 0
                ready.up()
            self._quiet.set()

    async def _send(self) -> None:
        publisher = self.publisher()
        while publisher.waits:
            await publisher.send()

    async def _settle(self) -> None:
        """Tell the table what was acked, and then what goes back, of all intakes together."""
        while True:
            owed = [(intake, *intake.owed()) for intake in self._intakes.values()]
            acks = [row for _, rows, _ in owed for row in rows]
            returns = [row for _, _, rows in owed for row in rows]
            if not acks and not returns:
                return
            schema = self._manager.schema
            if acks:
                gone = frozenset(row["id"] for row in await self._manager.fetch(store.ack(schema, acks)))
                for intake, rows, _ in owed:
                    intake.acked(rows, gone)
            if returns:
                await at_once(self._manager, give_back(schema, returns))
                for intake, _, rows in owed:
                    intake.returned(rows)

    async def _flushed(self) -> None:
        """Wait until everything that was handed over is settled, for two seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP.total_seconds()):
                while self.publisher().waits or any(any(intake.owed()) for intake in self._intakes.values()):
                    self._quiet.clear()
                    await self._quiet.wait()


class TransportService:
    """Runs the transport's statements; ready while the database takes them."""

    name = "transport"

    def __init__(self, transport: PostgresTransport) -> None:
        self._transport = transport

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`. Told to stop, it writes what was handed over before, within two seconds."""
        await self._transport.run(stop, ready)


def subscriptions_in(topology: Topology) -> store.Subscriptions:
    """Which consumers want which types, by the bindings of their queues."""
    return frozenset(
        (binding.queue, binding.routing_key.removesuffix(_EVERY_VERSION))
        for binding in topology.bindings
        if binding.routing_key.endswith(_EVERY_VERSION)
    )


def lacking(wanted: store.Subscriptions, standing: store.Subscriptions) -> list[Difference]:
    """What of `wanted` does not stand. Pure."""
    return [
        Difference("subscription", f"{consumer} to {event_type}", "is missing", APPLY)
        for consumer, event_type in sorted(wanted - standing)
    ]


def besides(wanted: store.Subscriptions, standing: store.Subscriptions) -> list[Difference]:
    """What the consumers of `wanted` subscribe to that they no longer declare. Pure."""
    consumers = {consumer for consumer, _ in wanted}
    return [
        Difference("subscription", f"{consumer} to {event_type}", "stands, but is declared no more", APPLY)
        for consumer, event_type in sorted(standing - wanted)
        if consumer in consumers
    ]
