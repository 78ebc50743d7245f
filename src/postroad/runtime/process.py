"""One run of an App: opens what it stands on, starts its services, and winds them down with a receipt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from postroad.clock import seconds
from postroad.errors import AccessRefused, PostroadError, SettingsError, Unavailable, UsageError
from postroad.leases import Keeper, Leases
from postroad.outbox.unawaited import DROPPED
from postroad.retry import full_jitter
from postroad.runtime.executor import PREFIX, LoopFactory, Tasks, safe_reason, stray_handler
from postroad.runtime.health import BEAT_SECONDS, Health, Pulse, Vitals
from postroad.runtime.operations import blamed, refuse_pooler
from postroad.runtime.resources import Lifespan, living
from postroad.runtime.shutdown import LET_GO, Tally, Told, close_ground, receipt, wind_down
from postroad.runtime.strays import Notes, in_words
from postroad.runtime.supervisor import Supervisor, Tier
from postroad.signals import Signals, Sink
from postroad.signals.catalog import ShutdownBegan, TaskFailed
from postroad.sql import migrations
from postroad.sql.lock import Locks
from postroad.sql.manager import Manager, masked
from postroad.transport.base import Transport

if TYPE_CHECKING:
    from uuid import UUID

    import asyncpg

    from postroad.clock import Clock
    from postroad.owner import Service
    from postroad.runtime.background import Executor
    from postroad.runtime.settings import Settings

T = TypeVar("T")
_LAST = frozenset({"effects"})  # Work that comes to its end still writes down what its effects came to.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the services of a process stand on."""

    settings: Settings
    holder: UUID
    tasks: Tasks
    signals: Signals
    clock: Clock
    chance: Callable[[], float]
    resources: Callable[[type[Any]], Any]
    database: Database | None
    transport: Transport | None


@dataclass(frozen=True, slots=True)
class Database:
    """The pool, our leases, and those of authors."""

    manager: Manager
    keeper: Keeper
    leases: Leases


class Road(Transport, Protocol):
    """A transport that a process can connect and run."""

    async def connect(self, within: timedelta | None = None) -> None:
        """Log in once, and out again.

        Raises:
            AccessRefused: the broker does not let us in.
            Unavailable: it cannot be reached within that time.
        """
        ...

    def service(self) -> Service:
        """What keeps it connected."""
        ...


class Wiring(Protocol):
    """What an App adds to a process: its own transport and services."""

    def road(self, process: Process, database: Database | None) -> Road | None:
        """The transport, where the roles of the process need one."""
        ...

    async def prepare(self, road: Road, settings: Settings) -> None:
        """Verify or apply the topology, now that the broker can be reached."""
        ...

    async def check(self, ground: Ground, within: timedelta) -> None:
        """See that handlers write where the App does.

        Raises:
            Unavailable: that cannot be asked within that time.
            UsageError: they do not.
        """
        ...

    def services(self, ground: Ground) -> Sequence[tuple[Service, bool]]:
        """The services to run, in order, each with whether it is essential."""
        ...

    def connections(self, settings: Settings) -> int:
        """How many connections to the database these roles use at most."""
        ...

    def patience(self) -> timedelta:
        """How long a statement of these handlers may take at most."""
        ...

    def receipt(self) -> tuple[int, int, int]:
        """What was finished and given back since the stop, besides deliveries and rows of work, and what still runs."""
        ...


class Process:
    """Owns everything that one run of an App opens, and closes it in the reverse order."""

    def __init__(
        self,
        wiring: Wiring,
        settings: Settings,
        *,
        lifespan: Lifespan | None,
        sinks: Sequence[Sink],
        metrics: Callable[[], bytes],
        clock: Clock,
        chance: Callable[[], float],
        executor: Executor,
        loop_factory: LoopFactory | None = None,
        embedded: bool = False,
    ) -> None:
        """Nothing is opened yet; `run` or `start` does. An `embedded` one never ends because a service was refused."""
        self.settings = settings
        self.told = Told(settings.grace, clock=clock)
        self._tally = Tally(self.told)
        self.signals = Signals(self._tally, *sinks)
        self.tasks = Tasks(self.signals, loop_factory=loop_factory)
        self.holder = clock.new_id()
        self.clock = clock
        self.chance = chance
        self._executor = executor
        self._executes = False
        self._notes = Notes(everything=not embedded)
        self.loop: asyncio.AbstractEventLoop
        self._wiring = wiring
        self._embedded = embedded
        self._lifespan = living(lifespan)
        self._metrics = metrics
        self._pulse = Pulse(clock)
        self._supervisor: Supervisor | None = None
        self._health: Health | None = None
        self._manager: Manager | None = None
        self._keeper: Keeper | None = None
        self._database: Database | None = None
        self._opening = asyncio.Lock()
        self._alive = False
        self._started = False
        self._deafen: Callable[[], None] = lambda: None

    @property
    def phase(self) -> str:
        """What health says of the whole: starting, running or stopping."""
        return "stopping" if self.told.begun else "running" if self._started else "starting"

    async def run(self) -> None:
        """Start, serve until told to stop, and stop.

        Raises:
            PostroadError: what ended the start, or a service that was refused before it was ever ready.
        """
        asyncio.get_running_loop().set_exception_handler(stray_handler(self.signals))
        error: PostroadError | None = None
        try:
            error = await self._until_told()
        except BaseException:
            await self.stop("the start failed", silent=True)
            raise
        await self.stop("a service was refused")
        if error is not None:
            raise error

    async def _until_told(self) -> PostroadError | None:
        loop = asyncio.get_running_loop()
        word = asyncio.Event()
        try:
            async with asyncio.timeout(None) as limit:
                self.told.on_word(lambda: loop.call_soon_threadsafe(_expire, limit))
                await self.start()
        except TimeoutError:
            if self.told.begun:
                return None
            raise
        assert self._supervisor is not None
        self.told.on_word(lambda: loop.call_soon_threadsafe(word.set))
        self._supervisor.fatal.add_done_callback(lambda _: word.set())
        await word.wait()
        return self._supervisor.fatal.result() if self._supervisor.fatal.done() else None

    async def start(self) -> None:
        """Open everything and start every service; returns when the transport stands and the services were started.

        Raises:
            AccessRefused: the database or the broker refuses.
            Unavailable: one of them cannot be reached within POSTROAD_START_TIMEOUT.
            UsageError: settings, schema or topology are wrong.
        """
        self.loop = asyncio.get_running_loop()
        self._notes.install()
        with self._notes.inside():
            await self._start()

    async def _start(self) -> None:
        self._supervisor = Supervisor(self.tasks, signals=self.signals, clock=self.clock, chance=self.chance)
        self._deafen = DROPPED.subscribe(self.signals.emit)
        self._executor.open(self.tasks, self.signals)
        self._executes = True
        self.tasks.task(self._beat(), name="pulse")
        await self._open_health()
        database = await self.database() if self.settings.database_url and self.settings.roles else None
        resources = await self._lifespan.__aenter__()
        self._alive = True
        road = self._wiring.road(self, database)
        if road is not None:
            await self._patient(road.connect)
            await self._wiring.prepare(road, self.settings)
            self._supervisor.start(road.service(), tier=Tier.GROUND, essential=not self._embedded)
        ground = Ground(
            settings=self.settings, holder=self.holder, tasks=self.tasks, signals=self.signals, clock=self.clock,
            chance=self.chance, resources=resources, database=database, transport=road,
        )  # fmt: skip
        await self._patient(partial(self._wiring.check, ground))
        for service, essential in self._wiring.services(ground):
            tier = Tier.GROUND if service.name in _LAST else Tier.WORK
            self._supervisor.start(service, tier=tier, essential=essential and not self._embedded)
        self._started = True

    async def database(self) -> Database:
        """What the roles stand on; without any it is opened when it is first asked for.

        Raises:
            AccessRefused: the database refuses.
            Unavailable: it cannot be reached within POSTROAD_START_TIMEOUT.
            UsageError: settings or schema are wrong, or the process is stopping.
        """
        async with self._opening:
            if self._database is None:
                self._database = await self._open_database()
            return self._database

    async def ready(self) -> None:
        """Wait until every service is ready, for as long as it takes."""
        if self._supervisor is not None:
            await self._supervisor.wait_ready()

    async def stop(self, cause: str, *, silent: bool = False) -> None:
        """Stop in order, within what is left of the grace period, and say what became of what was in hand.

        `cause` is why, where nobody has told the process to stop before. After a start that failed there is nothing
        to say but the error: then it is `silent`.
        """
        if not self.told.begun:
            self.told.tell(cause)
        if self._supervisor is not None:
            if not silent:
                self.signals.emit(ShutdownBegan(self.told.cause, self.told.grace.total_seconds()))
            await self._wind_down(self._supervisor)
        if self._alive:
            await self._bounded("lifespan", self._lifespan.__aexit__(None, None, None), part=LET_GO)
        if self._supervisor is not None:
            await close_ground(self._supervisor, told=self.told)
        if self._keeper is not None:
            await self._bounded("keeper", self._keeper.stop())
        if self._manager is not None:
            await self._bounded("database", self._manager.close())
        if self._health is not None:
            self._health.stop()
        self._deafen()
        await self.tasks.cancel(within=seconds(min(self.told.left(1), 1.0)))
        await self.tasks.join(within=seconds(self.told.left(1)))
        self._notes.remove()
        if not silent:
            self.emit_receipt()

    async def _wind_down(self, supervisor: Supervisor) -> None:
        await wind_down(supervisor, told=self.told)
        if self._executes:  # After the services: while they finish, they may still submit.
            await self._executor.close(self.told)

    def emit_receipt(self) -> None:
        """Tell of what nobody owns, and the last word: also when the process is about to be ended by force."""
        strays = self._notes.strays(ours=self.tasks.owns, prefix=PREFIX)
        for stray in strays:
            self.signals.emit(stray)
        self.signals.emit(
            receipt(
                self._tally, self._wiring.receipt(), told=self.told, unfinished=self._executor.unfinished,
                left=self.tasks.running, strays=map(in_words, strays),
            )
        )  # fmt: skip

    async def _bounded(self, name: str, work: Awaitable[Any], *, part: float = 1.0) -> None:
        try:
            await asyncio.wait_for(work, max(self.told.left(part), 0.05))
        except Exception as error:  # noqa: BLE001 - on the way down the rest must still be closed
            self.signals.emit(TaskFailed(name, type(error).__name__, safe_reason(error)))

    async def _beat(self) -> None:
        while True:
            self._pulse.beat()
            await asyncio.sleep(BEAT_SECONDS)

    async def _open_health(self) -> None:
        if self.settings.health_port is None:
            return
        vitals = Vitals(
            pulses=(lambda: self._pulse.age, self._keeper_age), phase=lambda: self.phase,
            states=lambda: self._supervisor.states if self._supervisor else (), metrics=self._metrics,
        )  # fmt: skip
        host, port = self.settings.health_host, self.settings.health_port
        self._health = Health(vitals, host=host, port=port, owner=self.tasks, signals=self.signals)
        await self._health.start()

    def _keeper_age(self) -> float:
        return 0.0 if self._keeper is None else self._keeper.beat_age

    async def _open_database(self) -> Database:
        settings = self.settings
        if not settings.database_url:
            raise SettingsError("PR201", "leases and locks need a database; set POSTROAD_DATABASE_URL")
        if self.told.begun:
            raise UsageError("PR101", "the process is stopping; take leases and locks before")
        return await self._patient(self._reach_database)

    async def _reach_database(self, within: timedelta) -> Database:
        """One try: a server that restarts between two of these steps is away for the whole of it."""
        settings = self.settings
        with blamed(settings, settings.database_url):
            manager = self._manager
            if manager is None:
                self._manager = manager = await self._pool(within)
            async with manager.connection() as connection:
                await migrations.check(cast("asyncpg.Connection[asyncpg.Record]", connection), schema=settings.schema)
        with blamed(settings, settings.direct_url):
            await refuse_pooler(settings)
            keeper = Keeper(
                settings.direct_url, schema=settings.schema, holder=self.holder, clock=self.clock,
                signals=self.signals, owner=self.tasks,
            )  # fmt: skip
            await keeper.start()
        self._keeper = keeper
        leases = Leases(keeper, manager, clock=self.clock, signals=self.signals, chance=self.chance)
        return Database(manager, keeper, leases)

    async def _pool(self, within: timedelta) -> Manager:
        url, size = self.settings.database_url, self.settings.pool_size or self._wiring.connections(self.settings)
        locks = Locks(
            self.settings.direct_url, schema=self.settings.schema, owner=self.tasks, clock=self.clock,
            chance=self.chance,
        )  # fmt: skip
        try:
            async with asyncio.timeout(within.total_seconds()):
                return await Manager.open(
                    url, schema=self.settings.schema, size=size, patience=self._wiring.patience(), locks=locks
                )
        except TimeoutError:
            message = f"{masked(url)} does not answer; check that it runs and that the URL is right"
            raise Unavailable("PR301", message) from None

    async def _patient(self, reach: Callable[[timedelta], Awaitable[T]]) -> T:
        """Try until it can be reached or POSTROAD_START_TIMEOUT is over; a refusal is not tried again."""
        deadline = self.clock.monotonic() + self.settings.start_timeout.total_seconds()
        tries = 0
        while True:
            tries += 1
            try:
                return await reach(seconds(max(deadline - self.clock.monotonic(), 0.1)))
            except AccessRefused:
                raise
            except Unavailable:
                wait = full_jitter(tries, first=seconds(0.2), most=seconds(2), chance=self.chance()).total_seconds()
                if self.clock.monotonic() + wait >= deadline:
                    raise
                await asyncio.sleep(wait)


def _expire(limit: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # It is over already.
        limit.reschedule(asyncio.get_running_loop().time())
