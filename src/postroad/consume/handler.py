"""The author's handler: called once inside the transaction of its delivery, within its time limit."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from postroad.clock import seconds
from postroad.consume.delivery import Delivery
from postroad.errors import PostroadError, UsageError
from postroad.events.cause import Cause, cause
from postroad.signals.catalog import HandlerStarted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from postroad.clock import Clock
    from postroad.consume.arrival import Arrival
    from postroad.consume.consumer import Consumer
    from postroad.consume.gears import Gears
    from postroad.consume.pipeline import Passage
    from postroad.leases import AsyncLease, Leases, SyncLease
    from postroad.signals import Signals
    from postroad.sql.drive import ThreadUnit, Unit
    from postroad.work.limit import TimeLimit
    from postroad.work.use import Resources

LET_GO: Final = seconds(2)
"""How long a handler that was told to stop may take; after that its connection is cut."""

LIMIT: Final = "PR506"
"""The code of a handler that exceeded its time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every run of one consumer's handler shares in a process."""

    consumer: Consumer[Any]
    resources: Resources
    signals: Signals
    clock: Clock
    gears: Gears
    limit: TimeLimit
    leases: Leases | None = None
    running: set[HandlerRun] = field(default_factory=set)
    started: dict[tuple[str, int], HandlerStarted] = field(default_factory=dict)

    def tell_started(self, arrival: Arrival) -> None:
        """Say that a handler starts: the same record for all of a type and attempt, both of which are few."""
        kind = arrival.event_type, arrival.attempt
        signal = self.started.get(kind)
        if signal is None:
            signal = self.started[kind] = HandlerStarted(self.consumer.name, *kind)
        self.signals.emit(signal)


class HandlerRun:
    """The author's handler, called once inside the transaction."""

    __slots__ = ("_around", "arrival", "error", "limited", "lost", "seconds", "task", "unit")

    def __init__(self, around: Surroundings, arrival: Arrival) -> None:
        self._around = around
        self.arrival = arrival
        self.unit: Unit[Any] | None = None
        self.task: asyncio.Task[Any] | None = None
        """The one that runs it, where whoever made it knows: to ask for it costs a system call."""
        self.error: BaseException | None = None
        self.limited = False
        self.lost = False
        self.seconds = 0.0

    async def watched(self, passing: Awaitable[Passage]) -> Passage:
        """Wait for the pipeline that calls this."""
        return await passing

    async def __call__(self) -> None:
        """Run it within its time limit; what it raises is kept in `error`, so that ours is told from its own."""
        around, arrival = self._around, self.arrival
        began = around.clock.monotonic()
        around.running.add(self)
        around.tell_started(arrival)
        try:
            with cause(self._origin()):
                await around.limit.within(self._begun(), told=self, task=self.task)
        except BaseException as error:
            self.lost = self.unit is not None and self.unit.lost
            self.error = self._translated(error)
            if self.error is error:
                raise
            raise self.error from None
        finally:
            around.running.discard(self)
            self.seconds = around.clock.monotonic() - began
            around.gears.took(self.seconds)

    async def _begun(self) -> None:
        """Lend the author's function what it writes with, and run it."""
        assert self.unit is not None
        async with self.unit.lent() as tx:
            handling: Any = self._around.consumer.function(self.arrival.event, self._delivery(tx))
            await handling

    def cut(self) -> None:
        """Cut its connection."""
        self.limited = True
        if self.unit is not None and not self.unit.lost:
            self.unit.terminate()

    def _translated(self, error: BaseException) -> BaseException:
        if self.limited and not isinstance(error, asyncio.CancelledError):
            return _overtime(self._around.consumer)
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or not task.cancelling()):
            # Nobody cancelled us: something that the handler awaited was. An ordinary failure of its own.
            return RuntimeError("something that the handler awaited was cancelled")
        return error

    def _delivery(self, tx: Any) -> Delivery[Any]:
        arrival, envelope = self.arrival, self.arrival.envelope
        assert envelope is not None
        assert arrival.message_key is not None
        return Delivery(
            tx=tx, consumer=self._around.consumer.name, id=envelope.id, source=envelope.source,
            type=envelope.type, version=envelope.version, key=envelope.key, sequence=envelope.sequence,
            occurred_at=envelope.time, recorded_at=envelope.recorded,
            correlation_id=envelope.correlation_id or envelope.id, causation_id=envelope.causation_id,
            message_key=arrival.message_key, attempt=arrival.attempt, redelivered=arrival.redelivered,
            resources=self._around.resources, holder=self,
        )  # fmt: skip

    def lease(self, name: str, *, ttl: timedelta, wait: timedelta | None) -> AbstractAsyncContextManager[AsyncLease]:
        """See `Delivery.lease`."""
        leases, unit = self._leases(), self.unit
        assert unit is not None
        return leases.hold(name, ttl=ttl, wait=wait, max_runtime=self._longest(), within=unit.drive)

    def lease_sync(self, name: str, *, ttl: timedelta, wait: timedelta | None) -> AbstractContextManager[SyncLease]:
        """See `Delivery.lease_sync`."""
        leases, unit = self._leases(), cast("ThreadUnit[Any]", self.unit)
        return leases.hold_sync(
            name, ttl=ttl, wait=wait, max_runtime=self._longest(), within=unit.drive_here, cut=unit.terminate
        )

    def _leases(self) -> Leases:
        if self._around.leases is None:
            raise UsageError("PR107", f"consumer {self._around.consumer.name!r} has no leases; run it in an App")
        return self._around.leases

    def _longest(self) -> timedelta:
        """Somewhat longer than the handler may take, so that one that hangs does not hold a name for ever."""
        return self._around.consumer.max_runtime + LET_GO * 2

    def _origin(self) -> Cause:
        """What its publishes and jobs are caused by."""
        envelope = self.arrival.envelope
        assert envelope is not None
        return Cause(correlation=envelope.correlation_id or envelope.id, causation=envelope.id)


class ThreadRun(HandlerRun):
    """The author's ``def`` handler, called once on the thread of its transaction, while the loop watches the time.

    At its time limit the waiting is cancelled, which cuts the connection (see `PsycopgTransactions`): the handler may
    go on, but commits nothing. Its outcome is the loop's from then on, whatever the thread comes back with.
    """

    __slots__ = ("_ended", "_left", "_loop", "_started", "_timer")

    def __init__(self, around: Surroundings, arrival: Arrival) -> None:
        super().__init__(around, arrival)
        self._loop = asyncio.get_running_loop()
        self._timer = asyncio.timeout(None)
        self._started = self._ended = self._left = False

    @override
    async def watched(self, passing: Awaitable[Passage]) -> Passage:
        """Wait for the pipeline, and no longer than the handler's time limit from its start."""
        running = self._around.running
        running.add(self)
        try:
            async with self._timer:
                return await passing
        except TimeoutError:
            if not self._timer.expired():
                raise
            self.limited = self.lost = True
            self.error = _overtime(self._around.consumer)
            raise self.error from None
        finally:
            self._left = True
            if self._ended or not self._started:
                running.discard(self)

    @override
    def __call__(self) -> Any:
        """Run it, on its thread; not awaited."""
        around, arrival = self._around, self.arrival
        self._started = True
        around.tell_started(arrival)
        self._soon(self._arm)
        try:
            with cause(self._origin()), cast("ThreadUnit[Any]", self.unit).lent_here() as tx:
                return around.consumer.function(arrival.event, self._delivery(tx))
        except BaseException as error:
            stops = not isinstance(error, Exception)  # What would stop a loop ends this attempt alone.
            failure = RuntimeError(f"the handler raised {type(error).__name__}") if stops else error
            if not self._left:
                self.lost = self.unit is not None and self.unit.lost
                self.error = failure
            if stops:
                raise failure from None
            raise
        finally:
            self._ended = True
            if self._left:
                self._soon(lambda: around.running.discard(self))

    def _arm(self) -> None:
        if not self._left:
            self._timer.reschedule(self._loop.time() + self._around.consumer.max_runtime.total_seconds())

    def _soon(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The loop may be gone by the time that a stuck handler returns.
            self._loop.call_soon_threadsafe(act)


def _overtime(consumer: Consumer[Any]) -> PostroadError:
    limit = consumer.max_runtime.total_seconds()
    return PostroadError(LIMIT, f"the handler of consumer {consumer.name!r} ran longer than {limit:g} s")
