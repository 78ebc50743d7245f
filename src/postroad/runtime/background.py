"""The `Executor`: background work that a request or a handler started, within bounds."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, TypeVarTuple

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.errors import Overloaded, PostroadError, UsageError
from postroad.runtime.executor import Tasks, safe_reason
from postroad.runtime.shutdown import FINISH, LET_GO, Tally, Told, receipt
from postroad.runtime.strays import INSIDE, Notes
from postroad.runtime.submitted import Expired, Submitted, Work, is_async, named, positive, running_loop, whole
from postroad.signals import Signals, Sink
from postroad.signals.catalog import ExecutorFull, ExecutorLoad, ExecutorRefused, ExecutorSettled, TaskFailed
from postroad.signals.logs import LogSink

if TYPE_CHECKING:
    from postroad.owner import Owner, Slots

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CONCURRENCY: Final = 8
QUEUE: Final = 100
TIME_LIMIT: Final = seconds(30)
_LOOK_SECONDS: Final = 0.02
_LET_GO_SECONDS: Final = 1.0  # Who has not heeded a cancellation by then is told of as stuck.


class Executor:
    """Runs what a request or a handler leaves to be done afterwards: bounded, owned, and drained at shutdown.

    **What a crash loses.** What waits and what runs is in memory alone: kill -9, a lost machine or the end of the
    grace period lose it, and nobody runs it again. What must happen is a job (`enqueue`, in your transaction).

    At most `concurrency` tasks run at once and `queue` more wait; the next is refused (`Overloaded`, PR310) while
    the submitter still can say so to whoever asked. A task runs in a copy of its submitter's context, so that what it
    publishes carries the same correlation. Its error becomes the signal `TaskFailed`, never with its text, unless
    somebody awaits it.

    ``app.executor`` runs while the App does, and tells the App's sinks; at shutdown it goes on until the services have
    stopped, then refuses, lets what it has finish until two thirds of the grace period, and cancels the rest. Alone,
    ``async with Executor(...) as executor:`` does the same in any asyncio program, without an App or a database.
    The receipt names what was cancelled or never began.
    """

    def __init__(
        self,
        *,
        concurrency: int = CONCURRENCY,
        queue: int = QUEUE,
        time_limit: timedelta = TIME_LIMIT,
        name: str = "executor",
        grace: timedelta = seconds(25),
        sinks: Iterable[Sink] | None = None,
    ) -> None:
        """Declare one; nothing starts yet.

        `time_limit` is that of a task which is given none of its own, and counts from its start. `name` is a label of
        metrics. `grace` and `sinks` (default the log) are for its use alone; in an App the App's are used.

        Raises:
            UsageError: PR107, a bound that is none.
        """
        whole("concurrency", concurrency, least=1)
        whole("queue", queue, least=0)
        self.concurrency = concurrency
        self.queue = queue
        self.time_limit = positive("time_limit", time_limit)
        self.name = name
        self._grace = positive("grace", grace)
        self._sinks = (LogSink(),) if sinks is None else tuple(sinks)
        self._lock = threading.Lock()
        self._waiting: deque[Work] = deque()
        self._running: set[Work] = set()
        self._lost: Counter[str] = Counter()
        self._ground: _Ground | None = None
        self._stopping = False
        self._full = False
        self._alone: tuple[Tasks, Signals] | None = None

    # --- what an author calls -----------------------------------------------------------------------------------

    def submit(
        self,
        function: Callable[[*Ts], Coroutine[Any, Any, T]],
        /,
        *args: *Ts,
        name: str | None = None,
        time_limit: timedelta | None = None,
    ) -> Submitted[T]:
        """Have ``await function(*args)`` done in the background; returns at once. Safe from any thread.

        `name` is for signals and the receipt (default the function's); never put a payload there. At its time limit
        the task is cancelled. Keyword arguments: ``functools.partial``.

        Raises:
            Overloaded: PR310, as many run and wait as may, or it stops; nothing was taken.
            UsageError: PR107, `function` is not an ``async def`` function, or the limit is not positive; PR101, the
                executor does not run.
        """
        given: object = function  # Whatever its type says.
        if inspect.iscoroutine(given):
            given.close()
            raise UsageError("PR107", "submit was given a coroutine; give the function and its arguments, uncalled")
        if not is_async(function):
            raise UsageError("PR107", f"submit: {named(function)} is not 'async def'; use submit_blocking for others")
        return self._take(partial(function, *args), name or named(function), time_limit, blocking=False)

    def submit_blocking(
        self,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        name: str | None = None,
        time_limit: timedelta | None = None,
    ) -> Submitted[T]:
        """Have ``function(*args)`` done on one of `concurrency` threads; otherwise like `submit`.

        A thread cannot be stopped: at the time limit, and when it is cancelled, only the waiting ends. The call goes
        on, what it returns is dropped, and its thread is told of as stuck and not used until it returns.

        Raises:
            Overloaded: PR310, as many run and wait as may, or it stops; nothing was taken.
            UsageError: PR107, `function` is ``async def`` or cannot be called, or the limit is not positive; PR101,
                the executor does not run.
        """
        if is_async(function):
            raise UsageError("PR107", f"submit_blocking: {named(function)} is 'async def'; use submit")
        if not callable(function):
            raise UsageError("PR107", f"submit_blocking was given {type(function).__name__}, which cannot be called")
        return self._take(partial(function, *args), name or named(function), time_limit, blocking=True)

    async def __aenter__(self) -> Self:
        """Run on this loop, alone.

        Raises:
            UsageError: PR101, it runs already, here or in an App.
        """
        signals = Signals(*self._sinks)
        tasks = Tasks(signals)
        self.open(tasks, signals)
        self._alone = (tasks, signals)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Refuse from now on, and drain within the grace period; see the class."""
        assert self._alone is not None
        (tasks, signals), self._alone = self._alone, None
        told = Told(self._grace, clock=SYSTEM_CLOCK)
        tally = Tally(told)
        signals.subscribe(tally)
        told.tell("the executor's block ended")
        try:
            await self.close(told)
        finally:
            await tasks.cancel(within=seconds(min(told.left(1), 1.0)))
            await tasks.join(within=seconds(told.left(1)))
            signals.emit(receipt(tally, (0, 0, 0), told=told, unfinished=self.unfinished, left=tasks.running))

    # --- what the App calls -------------------------------------------------------------------------------------

    def open(self, owner: Owner, signals: Signals) -> None:
        """Take work from now on, on the running loop; tasks and threads are started through `owner`.

        Raises:
            UsageError: PR101, it runs already.
        """
        if self._ground is not None:
            raise UsageError("PR101", f"executor {self.name!r} runs already; each App needs one of its own")
        loop = asyncio.get_running_loop()
        slots = owner.slots(self.concurrency, name=self.name)
        self._lost.clear()
        self._stopping = self._full = False
        self._ground = _Ground(owner, signals, slots, loop, INSIDE.get())

    async def close(self, told: Told) -> None:
        """Refuse from now on, let what is in hand finish until two thirds of `told`'s grace period, cancel the rest."""
        if self._ground is None:
            return
        self._stopping = True
        try:
            await self._quiet(told, FINISH)
            self._cancel_all()
            await self._quiet(told, LET_GO)
        finally:
            self._cancel_all()
            self._ground = None

    @property
    def unfinished(self) -> Counter[str]:
        """By name, what was cancelled or never began since the stop, and what still runs; safe from any thread."""
        with self._lock:
            return self._lost + Counter(work.name for work in (*self._waiting, *self._running))

    # --- inside -------------------------------------------------------------------------------------------------

    def _take(
        self, call: Callable[[], Any], name: str, time_limit: timedelta | None, *, blocking: bool
    ) -> Submitted[Any]:
        limit = self.time_limit if time_limit is None else positive("time_limit", time_limit)
        ground = self._ground
        if ground is None:
            raise UsageError(
                "PR101", f"executor {self.name!r} does not run; use it inside 'async with' or a running App"
            )
        context = contextvars.copy_context()
        context.run(INSIDE.set, ground.inside)
        future: asyncio.Future[Any] = ground.loop.create_future()
        work = Work(name, call, limit.total_seconds(), blocking, context, future, ground.loop.time())
        self._admit(work, ground)
        if running_loop() is ground.loop:
            self._fill()
        else:
            ground.loop.call_soon_threadsafe(self._fill)
        return Submitted(work, ground.loop, partial(self._cancel, work, ground))

    def _admit(self, work: Work, ground: _Ground) -> None:
        with self._lock:
            waiting, running = len(self._waiting), len(self._running)
            room = waiting + running < self.concurrency + self.queue
            if room and not self._stopping:
                self._waiting.append(work)
                self._full = self._full and waiting > self.queue // 2
                return
            begins = not room and not self._full
            self._full = self._full or begins
        ground.signals.emit(ExecutorRefused(self.name, work.name, "stopping" if self._stopping else "full"))
        if begins:
            ground.signals.emit(ExecutorFull(self.name, waiting, running))
        said = "stops" if self._stopping else f"is full ({running} run, {waiting} wait)"
        message = f"executor {self.name!r} {said}: {work.name} was not taken; try later, or enqueue a job"
        raise Overloaded("PR310", message)

    def _fill(self) -> None:
        """Start what there is room for."""
        ground = self._ground
        if ground is None:
            return
        while (work := self._next()) is not None:
            self._start(work, ground)
        ground.signals.emit(ExecutorLoad(self.name, len(self._waiting), len(self._running)))

    def _next(self) -> Work | None:
        with self._lock:
            if not self._waiting or len(self._running) >= self.concurrency:
                return None
            work = self._waiting.popleft()
            self._running.add(work)
            return work

    def _start(self, work: Work, ground: _Ground) -> None:
        work.began = ground.loop.time()
        start = partial(ground.owner.task, self._run(work, ground), name=f"executor:{work.name}")
        try:
            work.task = work.context.run(start)
        except BaseException:
            with self._lock:
                self._running.discard(work)
            raise
        work.task.add_done_callback(partial(self._ended, work, ground))

    async def _run(self, work: Work, ground: _Ground) -> Any:
        stuck = ground.loop.call_later(work.limit + _LET_GO_SECONDS, self._tell_stuck, work, ground)
        limit = asyncio.timeout(work.limit)
        try:
            async with limit:
                return await (self._on_thread(work, ground) if work.blocking else work.call())
        except TimeoutError as error:
            if limit.expired():
                raise Expired(f"background task {work.name} exceeded its time limit of {work.limit:g} s") from error
            raise
        finally:
            stuck.cancel()

    async def _on_thread(self, work: Work, ground: _Ground) -> Any:
        async with ground.slots.take() as slot:
            result = await slot.call(work.call)
        if inspect.iscoroutine(result):
            result.close()
            raise UsageError(
                "PR107", f"submit_blocking: {work.name} returned a coroutine; give submit the async function"
            )
        return result

    def _tell_stuck(self, work: Work, ground: _Ground) -> None:
        reason = "goes on although it was cancelled at its time limit; its place stays taken"
        ground.signals.emit(TaskFailed(f"executor:{work.name}", "Stuck", reason))

    def _ended(self, work: Work, ground: _Ground, task: asyncio.Task[Any]) -> None:
        with self._lock:
            self._running.discard(work)
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            cancelled = PostroadError("PR311", f"background task {work.name} was cancelled")
            self._settle(work, ground, "cancelled", error=cancelled)
        elif error is not None:
            self._settle(work, ground, "timed_out" if isinstance(error, Expired) else "failed", error=error)
        else:
            self._settle(work, ground, "ok", value=task.result())
        self._fill()

    def _settle(
        self, work: Work, ground: _Ground, result: str, *, error: BaseException | None = None, value: object = None
    ) -> None:
        now = ground.loop.time()
        began = now if work.began is None else work.began
        ground.signals.emit(ExecutorSettled(self.name, work.name, result, began - work.since, now - began))
        if result == "cancelled" and self._stopping:
            with self._lock:
                self._lost[work.name] += 1
        if error is not None and result != "cancelled" and not work.awaited:
            reason = str(error) if isinstance(error, Expired) else safe_reason(error)
            kind = "TimeoutError" if isinstance(error, Expired) else type(error).__name__
            ground.signals.emit(TaskFailed(f"executor:{work.name}", kind, reason))
        if work.future.done():
            return
        if error is None:
            work.future.set_result(value)
            return
        work.future.set_exception(error)
        work.future.exception()  # Looked at: it was told, or somebody awaits it.

    def _cancel_all(self) -> None:
        ground = self._ground
        assert ground is not None
        with self._lock:
            works = [*self._waiting, *self._running]
        for work in works:
            self._cancel(work, ground)

    def _cancel(self, work: Work, ground: _Ground) -> None:
        if work.task is not None:
            work.task.cancel("the background task was cancelled")
            return
        with self._lock:
            waits = work in self._waiting
            if waits:
                self._waiting.remove(work)
        if waits:
            error = PostroadError("PR311", f"background task {work.name} was cancelled before it began")
            self._settle(work, ground, "cancelled", error=error)

    async def _quiet(self, told: Told, part: float) -> None:
        while (self._waiting or self._running) and told.left(part) > 0:  # noqa: ASYNC110 - told is another thread's
            await asyncio.sleep(_LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class _Ground:
    """What an executor stands on while it runs."""

    owner: Owner
    signals: Signals
    slots: Slots
    loop: asyncio.AbstractEventLoop
    inside: Notes | None


def check_executor(app: str, given: object) -> Executor:
    """What an App was given as its executor, or one with the default bounds.

    Raises:
        UsageError: PR101, it is something else.
    """
    if given is None:
        return Executor()
    if not isinstance(given, Executor):
        raise UsageError("PR101", f"App {app!r}: executor is {type(given).__name__}, not a postroad.Executor")
    return given
