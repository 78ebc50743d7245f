"""The App: what a service declares, put together into one process; the only place that wires."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import PostroadError, UsageError
from postroad.runtime.background import Executor, check_executor
from postroad.runtime.declarations import Declarations, check_background, check_queues, check_schemas
from postroad.runtime.doors import Doors
from postroad.runtime.exits import Exit
from postroad.runtime.observers import observers
from postroad.runtime.process import Process
from postroad.runtime.serve import fast_loop, serve, tell
from postroad.runtime.settings import Role, Settings, read_settings
from postroad.runtime.wires import Wires

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.effects import Effect
    from postroad.events import Producer
    from postroad.reconcile import Reconciliation
    from postroad.runtime.declarations import Background
    from postroad.runtime.resources import Lifespan
    from postroad.schedules.schedule import Schedule
    from postroad.signals import Sink
    from postroad.transport.topology import Topology
    from postroad.work.settings import WorkSettings


class App(Doors):
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
        jobs: Iterable[Callable[..., Any]] = (),
        schedules: Iterable[Schedule] = (),
        effects: Iterable[Effect[Any]] = (),
        reconciliations: Iterable[Reconciliation] = (),
        lifespan: Lifespan | None = None,
        executor: Executor | None = None,
        sinks: Iterable[Sink] = (),
        settings: Settings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Declare the App `name`.

        `publishes` are the producers whose events it stages and dispatches, `consumers` functions decorated with
        `consumer`, `jobs` with `job`; `schedules` say when some of these jobs run by themselves. `effects` are those
        that its jobs call once; those of its consumers it knows. `reconciliations` are compared by `postroad reconcile`
        or by a job. `lifespan` is an async generator function that yields
        one live object, several (a list, or a mapping by type), for ``delivery.use(Type)``. `executor` is one with
        other bounds for ``app.executor``. `sinks` hear every signal, in the emitting thread. Without `settings` the
        environment is read when it starts.

        Raises:
            UsageError: one error with everything that is wrong (PR104, PR101).
        """
        self.declarations = Declarations.of(
            name, publishes=publishes, consumers=consumers, lifespan=lifespan, jobs=jobs, schedules=schedules,
            effects=effects, reconciliations=reconciliations,
        )  # fmt: skip
        self.name = name
        self.sinks = tuple(sinks)
        self.executor = check_executor(name, executor)
        self._lifespan = lifespan
        self._settings = settings
        self._clock = clock
        self._backgrounds: dict[str, Background] = {}
        self._process: Process | None = None

    @override
    def __repr__(self) -> str:
        return f"App({self.name!r})"

    @property
    def lifespan(self) -> Lifespan | None:
        """What makes its live objects; for commands that need them."""
        return self._lifespan

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
            settings = self._settings or read_settings(os.environ, roles=roles, events=self.declarations.events)
            settings = settings if roles is None else replace(settings, roles=roles)
            process = self._make(settings, standalone=True)
        except PostroadError as error:
            return tell(error)
        self._process = process
        try:
            return serve(process)
        finally:
            self._process = None

    async def __aenter__(self) -> Self:
        """Start on the running loop; see the class.

        Raises:
            AccessRefused: database or broker refuse.
            Unavailable: one of them cannot be reached in time.
            UsageError: settings, schema or topology are wrong, or the App runs already.
        """
        if self._process is not None:
            raise UsageError("PR101", f"App {self.name!r} runs already; leave its block first")
        settings = self._settings or read_settings(
            os.environ, default_roles=frozenset(), events=self.declarations.events
        )
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

    @asynccontextmanager
    async def trial(
        self, settings: Settings, declared: Declarations, *, sinks: Iterable[Sink], chance: float,
        times: WorkSettings, lifespan: Lifespan | None = None,
    ) -> AsyncIterator[Process]:  # fmt: skip
        """Run `declared` for the block, on this loop and without background services: for `postroad.testing`.

        Beside an App that runs already, its doors and executor stay that one's. Every draw of `chance` is the same.

        Raises:
            UsageError: as `__aenter__`.
        """
        check_schemas(declared, settings)
        outer = self._process
        process = Process(
            Wires(declared, {}, times=times), settings, lifespan=lifespan or self._lifespan,
            sinks=[*self.sinks, *sinks], metrics=bytes, clock=self._clock, chance=lambda: chance,
            executor=self.executor if outer is None else Executor(), embedded=True,
        )  # fmt: skip
        self._process = outer or process
        try:
            await process.start()
            yield process
        finally:
            self._process = outer
            await process.stop("the trial ended", silent=True)

    def _make(self, settings: Settings, *, standalone: bool) -> Process:
        check_schemas(self.declarations, settings)
        check_queues(self.declarations, settings)
        sinks, metrics = observers(settings, standalone=standalone)
        return Process(
            Wires(self.declarations, self._backgrounds), settings, lifespan=self._lifespan,
            sinks=[*sinks, *self.sinks], metrics=metrics, clock=self._clock, chance=random.random,
            executor=self.executor, loop_factory=fast_loop() if standalone else None, embedded=not standalone,
        )  # fmt: skip
