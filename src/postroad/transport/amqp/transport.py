"""The AMQP transport as one service of the App: a thread with two connections, its publisher and its intakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad.clock import Clock, seconds
from postroad.errors import UsageError
from postroad.signals.catalog import TopologyMismatch
from postroad.transport.amqp import admin, publisher
from postroad.transport.amqp import intake as intakes
from postroad.transport.amqp.connection import Address, AmqpSettings, CoalescedConnection, RecoveringConnection
from postroad.transport.amqp.handover import Bell, post
from postroad.transport.amqp.intake import AmqpIntake
from postroad.transport.amqp.marks import AmqpMarks, ThreadMarks
from postroad.transport.amqp.publisher import AmqpPublisher
from postroad.transport.base import Abilities

if TYPE_CHECKING:
    from postroad.owner import OwnedThread, Owner, Readiness, Service
    from postroad.signals import Signals
    from postroad.transport.topology import Difference, Topology

_MOST_PREFETCH: Final = 65_535  # basic.qos: an unsigned short; 0 would mean without limit.


class AmqpTransport:
    """Implements `Transport` on RabbitMQ by AMQP 0-9-1: one connection to publish, one to consume, one thread.

    A caller whose loop is blocked costs no connection: heartbeats are answered on the transport's own thread.
    Publisher and intakes belong to the loop that runs when they are asked for, and work while the service runs.
    """

    abilities = Abilities(dead_letters=True, blocks=True, requeue_keeps_order=True, tags_outlive_cut=False)

    def __init__(
        self,
        url: str,
        *,
        owner: Owner,
        signals: Signals,
        clock: Clock,
        chance: Callable[[], float],
        settings: AmqpSettings | None = None,
    ) -> None:
        """Connect to nothing yet. `chance` gives random numbers in [0, 1) for the jitter of reconnects.

        Raises:
            SettingsError: `url` is not an AMQP URL.
        """
        self._address = Address.of(url)
        self._owner = owner
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._settings = settings or AmqpSettings()
        self._publisher: AmqpPublisher | None = None
        self._intakes: list[AmqpIntake] = []
        self._engine: Engine | None = None
        self._changed: Callable[[], None] = lambda: None

    def publisher(self) -> AmqpPublisher:
        """See `Transport.publisher`."""
        if self._publisher is None:
            self._publisher = AmqpPublisher(
                caller=asyncio.get_running_loop(),
                settings=self._settings,
                signals=self._signals,
                clock=self._clock,
                chance=self._chance,
                user_id=self._address.user if self._settings.vouch else None,
                changed=self._note_change,
            )
            if self._engine is not None:
                self._engine.add_publisher(self._publisher)
        return self._publisher

    def intake(self, queue: str, *, prefetch: int) -> AmqpIntake:
        """See `Transport.intake`.

        Raises:
            UsageError: `prefetch` is not between 1 and 65535.
        """
        if not 1 <= prefetch <= _MOST_PREFETCH:
            raise UsageError("PR107", f"prefetch {prefetch} of queue {queue!r} is not between 1 and {_MOST_PREFETCH}")
        intake = AmqpIntake(
            queue,
            prefetch=prefetch,
            caller=asyncio.get_running_loop(),
            settings=self._settings,
            signals=self._signals,
            clock=self._clock,
            chance=self._chance,
            changed=self._note_change,
        )
        self._intakes = [*(other for other in self._intakes if not other.stopped), intake]
        if self._engine is not None:
            self._engine.add_intake(intake)
        return intake

    def marks(self) -> ThreadMarks:
        """What an installation leaves on this broker: a connection of its own, on the thread; see `AmqpMarks`."""
        return ThreadMarks(
            lambda: AmqpMarks(self._address, self._settings),
            loop=lambda: None if self._engine is None else self._engine.loop,
            within=3 * self._settings.connect_within,
        )

    def service(self) -> Service:
        """What runs the transport: see `TransportService`."""
        return TransportService(self)

    async def connect(self, within: timedelta | None = None) -> None:
        """Log in once, and out again: whether the broker is there and lets us in.

        Raises:
            AccessRefused: wrong user, password or virtual host; a person must act.
            Unavailable: the broker cannot be reached within that time (default `connect_within`).
        """
        settings = self._settings if within is None else replace(self._settings, connect_within=within)
        async with admin.Session(self._address, settings):
            pass

    async def apply(self, topology: Topology) -> None:
        """Declare everything in `topology`; see `admin.apply`."""
        async with admin.Session(self._address, self._settings) as session:
            await admin.apply(session, topology)

    async def verify(self, topology: Topology) -> list[Difference]:
        """What the broker lacks of `topology`; see `admin.verify` and `admin.NOT_CHECKED`."""
        async with admin.Session(self._address, self._settings) as session:
            differences = await admin.verify(session, topology)
        for kind, count in admin.mismatches(differences).items():
            self._signals.emit(TopologyMismatch(kind, count))
        return differences

    async def prove_user(self, exchange: str) -> None:
        """Where publishes are vouched for, prove that they can be; see `admin.prove_user`."""
        if self._settings.vouch:
            async with admin.Session(self._address, self._settings) as session:
                await admin.prove_user(session, exchange, self._address.user)

    async def depths(self, names: Iterable[str]) -> dict[str, int]:
        """How many messages are ready in each of these queues; see `admin.depths`."""
        async with admin.Session(self._address, self._settings) as session:
            return await admin.depths(session, names)

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `TransportService.run`."""
        await self.connect()
        engine = Engine(self._address, self._settings, signals=self._signals, clock=self._clock, chance=self._chance)
        changed = asyncio.Event()
        bell = Bell(changed.set)
        caller = asyncio.get_running_loop()
        self._changed = lambda: bell.ring(caller)
        engine.on_change = self._changed
        thread = await engine.start(self._owner)
        self._engine = engine
        try:
            if self._publisher is not None:
                engine.add_publisher(self._publisher)
            for intake in self._intakes:
                engine.add_intake(intake)
            await self._report(stop, ready, changed)
            await engine.close(thread, in_order=True)
        finally:
            self._engine = None
            with suppress(TimeoutError):
                await asyncio.shield(engine.close(thread, in_order=False))
            self._detach()

    async def _report(self, stop: asyncio.Event, ready: Readiness, changed: asyncio.Event) -> None:
        """Tell readiness until we are to stop, or the thread has ended without being told to."""
        told: str | None = None
        stopping = self._owner.task(stop.wait(), name="transport-stop")
        try:
            while not stop.is_set():
                changed.clear()
                if self._engine is None or self._engine.ended.is_set():
                    raise RuntimeError("the transport's thread ended")
                trouble = self._trouble()
                if trouble != told:
                    told = trouble
                    ready.down(trouble) if trouble else ready.up()
                waiting = self._owner.task(changed.wait(), name="transport-change")
                await asyncio.wait([stopping, waiting], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        finally:
            stopping.cancel()
        ready.down("stopping")

    def _trouble(self) -> str:
        """Why the transport is not ready; empty when it is."""
        if self._publisher is not None and not self._publisher.writable:
            return f"{publisher.ROLE}: {self._engine.trouble[publisher.ROLE] if self._engine else 'stopped'}"
        for intake in self._intakes:
            if intake.wanted and intake.trouble:
                return f"{intakes.ROLE} {intake.queue!r}: {intake.trouble}"
        return ""

    def _note_change(self) -> None:
        self._changed()

    def _detach(self) -> None:
        if self._publisher is not None:
            self._publisher.detach()
        for intake in self._intakes:
            intake.detach()


class TransportService:
    """Runs the transport's thread; ready while the broker takes publishes and has confirmed all consumers."""

    name = "transport"

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport = transport

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`. After the first connection every loss is recovered from here, with full jitter.

        When `stop` is set the connections are closed in good order within `close_within` each: what was handed over
        before has been flushed; publishes without an answer are settled UNKNOWN.

        Raises:
            AccessRefused: the first connection was refused; a person must act.
            Unavailable: the broker cannot be reached for the first connection; run again later.
        """
        await self._transport.run(stop, ready)


class Engine:
    """The transport's thread: connections that recover, and who works on them. Made and called on the caller's loop."""

    def __init__(
        self, address: Address, settings: AmqpSettings, *, signals: Signals, clock: Clock, chance: Callable[[], float]
    ) -> None:
        self.ended = asyncio.Event()
        self.trouble = {publisher.ROLE: "not connected", intakes.ROLE: "not connected"}
        self.on_change: Callable[[], None] = lambda: None
        self._address = address
        self._settings = settings
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._caller = asyncio.get_running_loop()
        self._started = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        # From here on only the thread looks.
        self._stop = asyncio.Event()
        self._in_order = True
        self._connections: dict[str, RecoveringConnection] = {}
        self._standing: CoalescedConnection | None = None  # The consuming one, for intakes that come later.
        self._consumers: list[AmqpIntake] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The thread's loop, once it runs."""
        return self._loop

    async def start(self, owner: Owner) -> OwnedThread:
        """Start the thread and wait for its loop."""
        thread = owner.thread(self._main, name="amqp")
        await self._started.wait()
        return thread

    def add_publisher(self, worker: AmqpPublisher) -> None:
        """Open the publishing connection for it."""
        if self._loop is not None:
            worker.attach(self._loop)
        self._do(lambda: self._publish_with(worker))

    def add_intake(self, worker: AmqpIntake) -> None:
        """Open the consuming connection, shared by all, for it."""
        if self._loop is not None:
            worker.attach(self._loop)
        self._do(lambda: self._consume_with(worker))

    async def close(self, thread: OwnedThread, *, in_order: bool) -> None:
        """End the thread: closing connections in good order, or dropping them. Repeating is harmless."""
        if not self.ended.is_set():
            limit = 2 * self._settings.close_within if in_order else seconds(2)
            self._do(lambda: self._end(in_order=in_order))
            await asyncio.wait_for(self.ended.wait(), limit.total_seconds() + 2)
        thread.join(1)

    def _do(self, act: Callable[[], None]) -> None:
        if self._loop is not None:
            post(self._loop, act)

    # --- on the thread ----------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        post(self._caller, self._started.set)
        try:
            await self._stop.wait()
            within = self._settings.close_within if self._in_order else timedelta(0)
            await asyncio.gather(
                *(connection.close(within=within) for connection in self._connections.values()), return_exceptions=True
            )
        finally:
            post(self._caller, self._over)

    def _over(self) -> None:
        self.ended.set()
        self.on_change()

    def _end(self, *, in_order: bool) -> None:
        self._in_order = in_order
        self._stop.set()

    def _publish_with(self, worker: AmqpPublisher) -> None:
        def down(reason: str) -> None:
            worker.disconnected(reason)
            self._changed(publisher.ROLE, reason)

        def blocked(is_blocked: bool) -> None:  # noqa: FBT001 - a callback with one meaning
            worker.blocked(blocked=is_blocked)
            self._changed(publisher.ROLE, "blocked by the broker (memory or disk alarm)" if is_blocked else "")

        self._connect(publisher.ROLE, worker.connected, down, blocked)

    def _consume_with(self, worker: AmqpIntake) -> None:
        self._consumers = [*(other for other in self._consumers if not other.stopped), worker]
        if self._standing is not None:
            worker.connected(self._standing)
        if intakes.ROLE in self._connections:
            return

        def up(connection: CoalescedConnection) -> None:
            self._standing = connection
            for consumer in self._consumers:
                consumer.connected(connection)

        def down(reason: str) -> None:
            self._standing = None
            for consumer in self._consumers:
                consumer.disconnected(reason)

        self._connect(intakes.ROLE, up, down, lambda _blocked: None)

    def _connect(
        self,
        role: str,
        up: Callable[[CoalescedConnection], None],
        down: Callable[[str], None],
        blocked: Callable[[bool], None],
    ) -> None:
        connection = RecoveringConnection(
            role,
            self._address,
            settings=self._settings,
            signals=self._signals,
            clock=self._clock,
            chance=self._chance,
            up=up,
            down=down,
            blocked=blocked,
        )
        self._connections[role] = connection
        connection.start()

    def _changed(self, role: str, trouble: str) -> None:
        self.trouble[role] = trouble or "its channel is being opened"
        self.on_change()
