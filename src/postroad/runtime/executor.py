"""The one place where tasks and threads start: each has a name, an error sink and a join at shutdown."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from postroad.clock import seconds
from postroad.errors import PostroadError, UsageError
from postroad.places import place
from postroad.runtime.slots import ThreadSlots
from postroad.runtime.strays import INSIDE, Notes
from postroad.signals.catalog import TaskFailed

if TYPE_CHECKING:
    from postroad.owner import OwnedThread
    from postroad.signals import Signals

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

PREFIX: Final = "postroad:"
_COLLECT_SECONDS: Final = 0.2  # Who awaits a task has done so by then; what is left is nobody's, and is reported.
_LOOK_SECONDS: Final = 0.02


_forks = 0
"""How many forks lie between the program's start and this process: a look at it costs no system call."""


def _forked() -> None:
    global _forks  # noqa: PLW0603 - the process's own count
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Tasks:
    """Implements `Owner`: starts tasks and threads, reports what nobody awaits, joins all of them at shutdown.

    Safe from any thread; a task belongs to the loop that runs when it is started. Nothing may be started in a
    process that was forked after the first start: threads, loops and connections do not survive a fork.
    """

    def __init__(self, signals: Signals, *, loop_factory: LoopFactory | None = None) -> None:
        """Report to `signals`; `loop_factory` makes the loops of threads with an async main (default asyncio's)."""
        self._signals = signals
        self._loop_factory = loop_factory
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads: set[_Thread] = set()
        self._slots: list[ThreadSlots] = []
        self._born: int | None = None

    def task(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """See `Owner.task`. An error that nobody has collected 200 ms after the end is reported as `TaskFailed`.

        Raises:
            UsageError: this process was forked after the first start.
        """
        try:
            self._refuse_fork()
        except UsageError:
            work.close()
            raise
        loop = asyncio.get_running_loop()
        if isinstance(loop.get_task_factory(), Notes):  # Ours need no note, and run on asyncio's own class of tasks.
            task = asyncio.Task(work, loop=loop, name=PREFIX + name)
        else:
            task = loop.create_task(work, name=PREFIX + name)
        with self._lock:
            self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def thread(self, main: Callable[[], Awaitable[None] | None], *, name: str) -> OwnedThread:
        """See `Owner.thread`. An error that ends `main` is reported as `TaskFailed`.

        Raises:
            UsageError: this process was forked after the first start.
        """
        self._refuse_fork()
        thread = _Thread(main, name=name, failed=self._report, loop_factory=self._loop_factory)
        with self._lock:
            self._threads = {other for other in self._threads if other.alive} | {thread}
        thread.start()
        return thread

    def slots(self, count: int, *, name: str) -> ThreadSlots:
        """See `Owner.slots`."""
        slots = ThreadSlots(count, name=name, thread=self.thread, signals=self._signals)
        with self._lock:
            self._slots.append(slots)
        return slots

    async def join(self, *, within: timedelta, but: asyncio.Task[Any] | None = None) -> tuple[str, ...]:
        """Wait up to `within` for every task of this loop and every thread; the names of those that still run.

        Nothing is cancelled here, but slots are closed: their threads end once idle. The caller's own task and `but`
        are not waited for.
        """
        for slots in self._slots:
            slots.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within.total_seconds()
        mine = self._mine(loop, but)
        if mine:
            await asyncio.wait(mine, timeout=max(deadline - loop.time(), 0))
        while self._alive() and loop.time() < deadline:  # noqa: ASYNC110 - a thread's end has no awaitable
            await asyncio.sleep(_LOOK_SECONDS)
        return (*sorted(task.get_name() for task in self._mine(loop, but)), *self._alive())

    async def cancel(self, *, within: timedelta = seconds(1), but: asyncio.Task[Any] | None = None) -> tuple[str, ...]:
        """Cancel every task of this loop and wait up to `within` for them; the names of those that still run."""
        loop = asyncio.get_running_loop()
        mine = self._mine(loop, but)
        for task in mine:
            task.cancel("the grace period is over")
        if mine:
            await asyncio.wait(mine, timeout=within.total_seconds())
        return tuple(sorted(task.get_name() for task in mine if not task.done()))

    @property
    def running(self) -> tuple[str, ...]:
        """The names of all tasks and threads that still run, the caller's own apart; safe from any thread."""
        with self._lock:
            tasks = sorted(task.get_name() for task in self._tasks if not task.done())
        return (*tasks, *self._alive())

    def owns(self, task: asyncio.Task[Any]) -> bool:
        """Whether it was started here; safe from any thread."""
        with self._lock:
            return task in self._tasks or getattr(task.get_coro(), "cr_code", None) is _Thread.root

    def _refuse_fork(self) -> None:
        if self._born is None:
            self._born = _forks
        if self._born != _forks:
            what = f"process {os.getpid()} was forked from a started App; start the App after the fork"
            raise UsageError("PR110", what)

    def _mine(self, loop: asyncio.AbstractEventLoop, but: asyncio.Task[Any] | None) -> list[asyncio.Task[Any]]:
        spared = (but, asyncio.current_task(loop))
        with self._lock:
            return [task for task in self._tasks if task.get_loop() is loop and task not in spared]

    def _alive(self) -> list[str]:
        with self._lock:
            return sorted(PREFIX + other.name for other in self._threads if other.alive and not other.is_current)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        with self._lock:
            self._tasks.discard(task)
        if task.cancelled() or not _uncollected(task):
            return
        task.get_loop().call_later(_COLLECT_SECONDS, self._collect, task)

    def _collect(self, task: asyncio.Task[Any]) -> None:
        if _uncollected(task):
            error = task.exception()
            assert error is not None
            self._report(task.get_name().removeprefix(PREFIX), error)

    def _report(self, name: str, error: BaseException) -> None:
        self._signals.emit(TaskFailed(name, type(error).__name__, safe_reason(error)))


def stray_handler(signals: Signals) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """A loop's exception handler for a loop of our own: a callback's error becomes `TaskFailed`, never a traceback."""

    def hear(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            signals.emit(TaskFailed("loop", type(error).__name__, safe_reason(error)))
        else:
            signals.emit(TaskFailed("loop", "Warning", str(context.get("message", "unknown"))))

    return hear


def safe_reason(error: BaseException) -> str:
    """What may be printed of an error: our own texts, which never hold a payload; of others the place it came from."""
    if isinstance(error, PostroadError):
        return str(error)
    return f"in {place(error)}"


def _uncollected(task: asyncio.Task[Any]) -> bool:
    # asyncio's own mark of an error that no result() or exception() has fetched; it has no public name.
    return bool(getattr(task, "_log_traceback", False))


class _Thread:
    """A thread whose end and error are known."""

    def __init__(
        self,
        main: Callable[[], Awaitable[None] | None],
        *,
        name: str,
        failed: Callable[[str, BaseException], None],
        loop_factory: LoopFactory | None,
    ) -> None:
        self.name = name
        self._main = main
        self._failed = failed
        self._loop_factory = loop_factory
        self._inside = INSIDE.get()
        # A daemon, so that one that does not end cannot keep the interpreter: it was reported by then.
        self._thread = threading.Thread(target=self._run, name=PREFIX + name, daemon=True)

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._thread.ident is None or self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on it."""
        return self._thread is threading.current_thread()

    def start(self) -> None:
        """Start it."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """See `OwnedThread.join`."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        INSIDE.set(self._inside)
        try:
            work = self._main()
            if work is not None:
                with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                    runner.run(self._await(work))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the thread's border: reported, never lost
            self._failed(self.name, error)

    async def _await(self, work: Awaitable[None]) -> None:
        asyncio.get_running_loop().set_exception_handler(self._stray)
        await work

    def _stray(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._failed(self.name, error if isinstance(error, BaseException) else RuntimeError(context["message"]))

    root: Final = _await.__code__
    """The code of the task that runs an async main."""
