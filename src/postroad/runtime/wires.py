"""Puts rooms together for one run of an App: which service stands on what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from postroad.consume import Attempts, ConsumerService, EntrustedAttempts
from postroad.consume import collector as collectors
from postroad.consume.alone import Alone
from postroad.consume.collector import Collector
from postroad.effects.ledger import WithLedger
from postroad.events import Subscribers
from postroad.outbox.bond import Bond
from postroad.outbox.dispatcher import Dispatcher
from postroad.outbox.replayer import Replayer
from postroad.outbox.settings import DispatchSettings
from postroad.runtime.forms import check_forms
from postroad.runtime.gate import Gate
from postroad.runtime.maintainer import Maintainer
from postroad.runtime.roads import AnyTransport, attached, delivery_handlers, prepare, road_of
from postroad.runtime.settings import Role, Settings, is_postgres
from postroad.runtime.wires_work import claimer_of, ledger_of, pooled, resolver
from postroad.schedules.service import Scheduler
from postroad.sql.manager import PATIENCE
from postroad.sql.transactions import AsyncpgTransactions
from postroad.transport.amqp import AmqpTransport
from postroad.transport.topology import dead_letter_queue
from postroad.work.settings import WorkSettings

if TYPE_CHECKING:
    import asyncio

    from postroad.consume.consumer import Consumer
    from postroad.effects.ledger import Ledger
    from postroad.owner import Readiness, Service
    from postroad.runtime.declarations import Background, Declarations
    from postroad.runtime.process import Database, Ground, Process, Road
    from postroad.sql.drive import Transactions
    from postroad.work.claimer import Claimer


_SPARE_CONNECTIONS: Final = 6
_OF_TRANSPORT: Final = 2  # Over PostgreSQL: one that sends, one that settles.
_MOST_CONNECTIONS: Final = 40


class Wires:
    """What one App's declarations become in a process; implements `Wiring`."""

    def __init__(
        self, declarations: Declarations, backgrounds: Mapping[str, Background], *, times: WorkSettings | None = None
    ) -> None:
        """Wire these declarations and background services; `times` are those that the work room keeps."""
        self._declared = declarations
        self._backgrounds = dict(backgrounds)
        self._times = times or WorkSettings()
        self._attempts: list[Attempts] = []
        self._dispatch: Dispatcher | None = None
        self._bond: Bond | None = None
        self._claimer: Claimer | None = None

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

    async def check(self, ground: Ground, within: timedelta) -> None:
        """See `Wiring.check`."""
        roles = ground.settings.roles
        if ground.database is not None and roles & {Role.CONSUME, Role.WORK}:
            handled = self._declared.handled if Role.WORK in roles else self._declared.consumers
            await check_forms(ground, handled, within=within)

    def services(self, ground: Ground) -> list[tuple[Service, bool]]:
        """See `Wiring.services`."""
        own = [] if ground.database is None else self._road_services(ground, ground.database)
        return [
            *((service, True) for service in own),
            *((BackgroundService(name, function), False) for name, function in self._backgrounds.items()),
        ]

    def connections(self, settings: Settings) -> int:
        """See `Wiring.connections`: for each handler, group and job, two for the dispatcher, and some for sweeps.

        A ``def`` handler or job has a connection of its own; what failed in it is kept on one of these.
        """
        handlers = sum(
            (1 if each.threaded else each.concurrency + each.group) + (each.concurrency if each.effects else 0)
            for each in self._declared.consumers
        )
        handling = handlers if settings.roles & {Role.CONSUME, Role.WORK} else 0
        handling += pooled(self._declared.queues) if Role.WORK in settings.roles else 0
        spare = _SPARE_CONNECTIONS + (_OF_TRANSPORT if is_postgres(settings.broker_url) else 0)
        return min(handling + spare, _MOST_CONNECTIONS)

    def patience(self) -> timedelta:
        """See `Wiring.patience`: a handler's or job's statement may take as long as itself."""
        own = [each.max_runtime for each in self._declared.schedules if each.max_runtime is not None]
        longest = max((*own, *(each.max_runtime for each in self._declared.handled)), default=PATIENCE)
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
        if (self._declared.handled or self._declared.effects) and settings.roles & {Role.CONSUME, Role.WORK}:
            services += self._consuming(ground, database)
        if self._dispatches(settings):
            services.append(self._gated(ground, Dispatcher.name, partial(self._dispatcher, ground, database)))
            services.append(self._gated(ground, Replayer.name, partial(_replayer, ground, database)))
        if Role.SCHEDULE in settings.roles and self._declared.jobs:  # The last schedule may just have been taken out.
            services.append(self._gated(ground, Scheduler.name, partial(self._scheduler, ground, database)))
        if Role.MAINTAIN in settings.roles:
            maintainer = Maintainer(
                database.manager, database.keeper, ttl=settings.worker_lease, remember=settings.inbox_window,
                signals=ground.signals, clock=ground.clock,
            )  # fmt: skip
            services.append(maintainer)
        return services

    def _consuming(self, ground: Ground, database: Database) -> list[Service]:
        """A claimer for all retries and jobs, and a service per consumer that shares its key lanes with them."""
        roles = ground.settings.roles
        own, alone, ledger = AsyncpgTransactions(database.manager), Alone(), self._ledger(ground)
        if ledger is not None:
            ground = replace(ground, resources=WithLedger(ground.resources, ledger))
        self._attempts = [
            (EntrustedAttempts if consumer.effects else Attempts)(
                consumer, transactions=_transactions(consumer, ground, own), custody=own, schema=ground.settings.schema,
                resources=ground.resources, signals=ground.signals, clock=ground.clock, chance=ground.chance,
                alone=alone, process=ground.holder, leases=database.leases, manager=database.manager,
            )
            for consumer in self._declared.consumers
        ]  # fmt: skip
        deliveries = delivery_handlers(ground, self._attempts, database.manager)
        work = self._declared.queues if Role.WORK in roles else None
        claimer = claimer_of(ground, database, self._attempts, work=work, deliveries=deliveries, times=self._times)
        self._claimer = claimer
        services: list[Service] = [] if ledger is None else [resolver(ground, ledger)]
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
                if one.queue is None  # Where another's queue sends its dead letters is its owner's business.
            ]
        return services

    def _ledger(self, ground: Ground) -> Ledger | None:
        """Where work is done that has effects; taking deliveries needs none."""
        wanted = self._declared.effects and Role.WORK in ground.settings.roles
        return ledger_of(ground, self._declared.effects) if wanted else None

    def _gated(self, ground: Ground, name: str, make: Callable[[], Service]) -> Service:
        """What `make` makes, behind the bond; where there is no broker there is nothing to be bound to."""
        return make() if self._bond is None else Gate(name, make, bond=self._bond, owner=ground.tasks)

    def _consumer(
        self, ground: Ground, database: Database, attempts: Attempts, claimer: Claimer | None
    ) -> ConsumerService:
        assert ground.transport is not None
        consumer = attempts.consumer
        return ConsumerService(
            attempts, intake=ground.transport.intake(consumer.takes_from, prefetch=consumer.prefetch),
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

    def _scheduler(self, ground: Ground, database: Database) -> Service:
        return Scheduler(
            self._declared.name, self._declared.schedules, manager=database.manager, keeper=database.keeper,
            signals=ground.signals, clock=ground.clock, chance=ground.chance, ttl=ground.settings.scheduler_lease,
            wake=self._wake,
        )  # fmt: skip

    def _wake(self, queue: str) -> None:
        if self._claimer is not None:
            self._claimer.wake(queue)

    def _consumes(self, settings: Settings) -> bool:
        return Role.CONSUME in settings.roles and bool(self._declared.consumers)

    def _dispatches(self, settings: Settings) -> bool:
        return Role.DISPATCH in settings.roles and bool(self._declared.producers)


def _replayer(ground: Ground, database: Database) -> Replayer:
    return Replayer(
        database.manager, database.keeper, signals=ground.signals, clock=ground.clock, chance=ground.chance,
        ttl=ground.settings.shard_lease,
    )  # fmt: skip


def _transactions(consumer: Consumer[Any], ground: Ground, own: AsyncpgTransactions) -> Transactions[Any]:
    """What `on` says, one for each handler or group that may run at once; else the pool, or threads with psycopg."""
    url, size = ground.settings.database_url, consumer.concurrency + consumer.group
    if consumer.on is not None:
        return consumer.on.transactions(url, ground.tasks, size=size, name=consumer.name)
    if not consumer.threaded:
        return own
    from postroad.sql.threaded import PsycopgTransactions

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
