"""The App: what a service declares, put together into one process; the only place that wires."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from typing_extensions import override

from postroad.clock import SYSTEM_CLOCK
from postroad.consume import Attempts, ConsumerService, Retries
from postroad.consume import collector as collectors
from postroad.consume.alone import Alone
from postroad.consume.collector import Collector
from postroad.errors import PostroadError, UsageError
from postroad.events import Subscribers
from postroad.outbox.bond import Bond
from postroad.outbox.dispatcher import Dispatcher
from postroad.outbox.settings import DispatchSettings
from postroad.runtime.declarations import Declarations, check_background, check_schemas
from postroad.runtime.exits import Exit
from postroad.runtime.gate import Gate
from postroad.runtime.maintainer import Maintainer
from postroad.runtime.observers import observers
from postroad.runtime.process import Process
from postroad.runtime.roads import AnyTransport, attached, delivery_handlers, prepare, road_of
from postroad.runtime.serve import fast_loop, serve, tell
from postroad.runtime.settings import Role, Settings, is_postgres, read_settings
from postroad.sql.manager import PATIENCE
from postroad.sql.transactions import AsyncpgTransactions
from postroad.transport.amqp import AmqpTransport
from postroad.transport.topology import dead_letter_queue
from postroad.work.claimer import Claimer
from postroad.work.settings import WorkSettings

if TYPE_CHECKING:
    import asyncio

    from postroad.clock import Clock
    from postroad.consume.consumer import Consumer
    from postroad.events import Producer
    from postroad.owner import Readiness, Service
    from postroad.runtime.declarations import Background
    from postroad.runtime.process import Database, Ground, Road
    from postroad.runtime.resources import Lifespan
    from postroad.signals import Sink
    from postroad.sql.drive import Transactions
    from postroad.transport.topology import Topology
    from postroad.work.lane import Handler


_SPARE_CONNECTIONS: Final = 6
_OF_TRANSPORT: Final = 2  # Over PostgreSQL: one that sends, one that settles.
_MOST_CONNECTIONS: Final = 40


class App:
    """One service's declarations, and the way to run them.

    Making one checks the whole set and opens nothing. `run` is the main function of a process; ``async with app:``
    runs inside another server, on its loop and under its signals, with no roles unless they are given: then only
    `lifespan`, background services, health and metrics run, so that four web workers are not four dispatchers.

    An App runs once at a time. A process that was forked after its start is refused.
    """

    def __init__(
        self,
        name: str,
        *,
        publishes: Iterable[Producer] = (),
        consumers: Iterable[Callable[..., Any]] = (),
        lifespan: Lifespan | None = None,
        sinks: Iterable[Sink] = (),
        settings: Settings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Declare the App `name`.

        `publishes` are the producers whose events it stages and dispatches, `consumers` functions decorated with
        `consumer`. `lifespan` is an async generator function that yields one live object, several (a list, or a
        mapping by type), for ``delivery.use(Type)``. `sinks` hear every signal, in the emitting thread. Without
        `settings` the environment is read when it starts.

        Raises:
            UsageError: one error with everything that is wrong (PR104, PR101).
        """
        self.declarations = Declarations.of(name, publishes=publishes, consumers=consumers, lifespan=lifespan)
        self.name = name
        self.sinks = tuple(sinks)
        self._lifespan = lifespan
        self._settings = settings
        self._clock = clock
        self._backgrounds: dict[str, Background] = {}
        self._process: Process | None = None

    @override
    def __repr__(self) -> str:
        return f"App({self.name!r})"

    @property
    def topology(self) -> Topology:
        """What must stand on the broker for this App."""
        return self.declarations.topology()

    def background(self, name: str, function: Background) -> None:
        """Run ``async def function(stop, ready)`` as a service, supervised with the rest.

        It calls ``ready.up()`` once it works (until then the process is not ready), works until ``stop`` is set, and
        returns. If it raises, or returns before, it is reported and started again with backoff. At two thirds of the
        grace period it is cancelled.

        Raises:
            UsageError: the name is taken or not valid, or the function has another shape.
        """
        check_background(name, function, taken=[*self._backgrounds, *(c.name for c in self.declarations.consumers)])
        self._backgrounds[name] = function

    def run(self, *, only: Iterable[Role] | None = None) -> None:
        """Run until SIGTERM or SIGINT; returns after an orderly end.

        Call it on the main thread. `only` limits what the process does (default POSTROAD_ROLES, else everything).

        Raises:
            SystemExit: with a code of `Exit`, after one line on standard error that says what ended the process.
        """
        code = self.execute(only=only)
        if code is not Exit.OK:
            raise SystemExit(int(code))

    def execute(self, *, only: Iterable[Role] | None = None) -> Exit:
        """Like `run`, and return how it ended."""
        try:
            roles = None if only is None else frozenset(only)
            settings = self._settings or read_settings(os.environ, roles=roles)
            settings = settings if roles is None else replace(settings, roles=roles)
            process = self._make(settings, standalone=True)
        except PostroadError as error:
            return tell(error)
        return serve(process)

    async def __aenter__(self) -> Self:
        """Start on the running loop; see the class.

        Raises:
            AccessRefused: database or broker refuse.
            Unavailable: one of them cannot be reached in time.
            UsageError: settings, schema or topology are wrong, or the App runs already.
        """
        if self._process is not None:
            raise UsageError("PR101", f"App {self.name!r} runs already; leave its block first")
        settings = self._settings or read_settings(os.environ, default_roles=frozenset())
        self._process = process = self._make(settings, standalone=False)
        try:
            await process.start()
        except BaseException:
            self._process = None
            await process.stop("the start failed", silent=True)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in order, within the grace period."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop("the App's block ended")

    async def ready(self) -> None:
        """Wait, inside ``async with app:``, until every service is ready, for as long as it takes.

        Raises:
            UsageError: the App does not run.
        """
        if self._process is None:
            raise UsageError("PR101", f"App {self.name!r} does not run; use it inside 'async with app:'")
        await self._process.ready()

    def _make(self, settings: Settings, *, standalone: bool) -> Process:
        check_schemas(self.declarations, settings)
        sinks, metrics = observers(settings, standalone=standalone)
        return Process(
            Wires(self.declarations, self._backgrounds), settings, lifespan=self._lifespan,
            sinks=[*sinks, *self.sinks], metrics=metrics, clock=self._clock, chance=random.random,
            loop_factory=fast_loop() if standalone else None, embedded=not standalone,
        )  # fmt: skip


class Wires:
    """Puts rooms together for one run: which service stands on what."""

    def __init__(self, declarations: Declarations, backgrounds: Mapping[str, Background]) -> None:
        """Wire these declarations and background services."""
        self._declared = declarations
        self._backgrounds = dict(backgrounds)
        self._attempts: list[Attempts] = []
        self._dispatch: Dispatcher | None = None
        self._bond: Bond | None = None

    def road(self, process: Process, database: Database | None) -> AnyTransport | None:
        """See `Wiring.road`."""
        if not self._consumes(process.settings) and not self._dispatches(process.settings):
            return None
        return road_of(process, database, name=self._declared.name)

    async def prepare(self, road: Road, settings: Settings) -> None:
        """See `Wiring.prepare`.

        Raises:
            SettingsError: the broker does not vouch for the user that publishes are to name.
            TopologyError: the transport lacks something, or has it otherwise.
        """
        assert isinstance(road, AnyTransport)
        await prepare(road, settings, self._declared, dispatches=self._dispatches(settings))

    def services(self, ground: Ground) -> list[tuple[Service, bool]]:
        """See `Wiring.services`."""
        own = [] if ground.database is None else self._road_services(ground, ground.database)
        return [
            *((service, True) for service in own),
            *((BackgroundService(name, function), False) for name, function in self._backgrounds.items()),
        ]

    def connections(self, settings: Settings) -> int:
        """See `Wiring.connections`: for each handler and group, two for the dispatcher, and some for sweeps.

        A ``def`` handler has a connection of its own; what failed in it is kept on one of these.
        """
        handlers = sum(1 if each.threaded else each.concurrency + each.group for each in self._declared.consumers)
        handling = handlers if settings.roles & {Role.CONSUME, Role.WORK} else 0
        spare = _SPARE_CONNECTIONS + (_OF_TRANSPORT if is_postgres(settings.broker_url) else 0)
        return min(handling + spare, _MOST_CONNECTIONS)

    def patience(self) -> timedelta:
        """See `Wiring.patience`: a handler's statement may take as long as the handler."""
        longest = max((consumer.max_runtime for consumer in self._declared.consumers), default=PATIENCE)
        return max(PATIENCE, longest)

    def receipt(self) -> tuple[int, int, int]:
        """See `Wiring.receipt`."""
        finished, given_back, abandoned = (0, 0, 0) if self._dispatch is None else self._dispatch.receipt()
        return finished, given_back, abandoned + sum(len(attempts.running) for attempts in self._attempts)

    def _road_services(self, ground: Ground, database: Database) -> list[Service]:
        settings = ground.settings
        services: list[Service] = []
        if isinstance(ground.transport, AmqpTransport):
            self._bond = Bond(
                database.manager, ground.transport.marks(), owner=ground.tasks, signals=ground.signals,
                clock=ground.clock, chance=ground.chance,
            )  # fmt: skip
            services.append(self._bond)
        if self._declared.consumers and settings.roles & {Role.CONSUME, Role.WORK}:
            services += self._consuming(ground, database)
        if self._dispatches(settings):
            services.append(self._gated(ground, Dispatcher.name, partial(self._dispatcher, ground, database)))
        if Role.MAINTAIN in settings.roles:
            maintainer = Maintainer(
                database.manager, database.keeper, ttl=settings.worker_lease, remember=settings.inbox_window,
                signals=ground.signals, clock=ground.clock,
            )  # fmt: skip
            services.append(maintainer)
        return services

    def _consuming(self, ground: Ground, database: Database) -> list[Service]:
        """A claimer for all retries, and a service per consumer that shares its key lanes with them."""
        roles = ground.settings.roles
        own, alone = AsyncpgTransactions(database.manager), Alone()
        self._attempts = [
            Attempts(
                consumer, transactions=consumer.on or (_threaded(consumer, ground) if consumer.threaded else own),
                custody=own if consumer.on is None else None, schema=ground.settings.schema,
                resources=ground.resources, signals=ground.signals, clock=ground.clock, chance=ground.chance,
                alone=alone, process=ground.holder,
            )
            for consumer in self._declared.consumers
        ]  # fmt: skip
        deliveries = delivery_handlers(ground, self._attempts, database.manager)
        claimer = self._claimer(ground, database, deliveries) if deliveries or Role.WORK in roles else None
        services: list[Service] = []
        if claimer is not None:
            services.append(self._gated(ground, claimer.name, lambda: claimer))
            services += attached(ground, claimer, deliveries, database.manager)
        retrying = claimer if Role.WORK in roles else None
        if Role.CONSUME in roles and ground.transport is not None:
            services += [
                self._gated(
                    ground, f"consumer:{one.consumer.name}", partial(self._consumer, ground, database, one, retrying)
                )
                for one in self._attempts
            ]
        if Role.CONSUME in roles and ground.transport is not None and ground.transport.abilities.dead_letters:
            services += [
                self._gated(ground, f"collector:{one.name}", partial(self._collector, ground, database, one))
                for one in self._declared.consumers
            ]
        return services

    def _gated(self, ground: Ground, name: str, make: Callable[[], Service]) -> Service:
        """What `make` makes, behind the bond; where there is no broker there is nothing to be bound to."""
        return make() if self._bond is None else Gate(name, make, bond=self._bond, owner=ground.tasks)

    def _claimer(self, ground: Ground, database: Database, deliveries: Mapping[str, Handler]) -> Claimer:
        handlers: dict[str, Handler] = {**deliveries}
        if Role.WORK in ground.settings.roles:
            retries = [Retries(attempts, signals=ground.signals, clock=ground.clock) for attempts in self._attempts]
            handlers |= {handler.queue: handler for handler in retries}
        return Claimer(
            database.manager, database.keeper, handlers=handlers, signals=ground.signals, clock=ground.clock,
            owner=ground.tasks, settings=WorkSettings(lease=ground.settings.worker_lease),
        )  # fmt: skip

    def _consumer(
        self, ground: Ground, database: Database, attempts: Attempts, claimer: Claimer | None
    ) -> ConsumerService:
        assert ground.transport is not None
        consumer = attempts.consumer
        return ConsumerService(
            attempts, intake=ground.transport.intake(consumer.name, prefetch=consumer.prefetch),
            database=database.manager, work=claimer, owner=ground.tasks, signals=ground.signals, clock=ground.clock,
            chance=ground.chance,
        )  # fmt: skip

    def _collector(self, ground: Ground, database: Database, consumer: Consumer[Any]) -> Collector:
        assert ground.transport is not None
        intake = ground.transport.intake(dead_letter_queue(consumer.name), prefetch=collectors.PREFETCH)
        return Collector(
            consumer, intake=intake, transactions=AsyncpgTransactions(database.manager), database=database.manager,
            schema=ground.settings.schema, owner=ground.tasks, signals=ground.signals, clock=ground.clock,
            chance=ground.chance,
        )  # fmt: skip

    def _dispatcher(self, ground: Ground, database: Database) -> Service:
        assert ground.transport is not None
        events = [event for producer in self._declared.producers for event in producer.events]
        self._dispatch = Dispatcher(
            database.manager, database.keeper, ground.transport.publisher(), owner=ground.tasks,
            signals=ground.signals, clock=ground.clock, chance=ground.chance,
            settings=DispatchSettings(shard_ttl=ground.settings.shard_lease),
            optional=[event.routing_key for event in events if event.subscribers is Subscribers.OPTIONAL],
            permit=self._bond,
        )  # fmt: skip
        return self._dispatch

    def _consumes(self, settings: Settings) -> bool:
        return Role.CONSUME in settings.roles and bool(self._declared.consumers)

    def _dispatches(self, settings: Settings) -> bool:
        return Role.DISPATCH in settings.roles and bool(self._declared.producers)


def _threaded(consumer: Consumer[Any], ground: Ground) -> Transactions[Any]:
    """Threads and psycopg connections of its own, one for each handler that may run at once."""
    from postroad.sql.threaded import PsycopgTransactions

    url, size = ground.settings.database_url, consumer.concurrency
    return PsycopgTransactions(url, ground.tasks, size=size, name=consumer.name)


class BackgroundService:
    """An author's background function as a service."""

    def __init__(self, name: str, function: Background) -> None:
        """Run `function` under `name`."""
        self.name = name
        self._function = function

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`."""
        await self._function(stop, ready)
