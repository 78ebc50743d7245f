"""A fixed number of threads for blocking calls, each given out to one taker at a time."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from postroad.signals.catalog import TaskFailed, ThreadsStuck

if TYPE_CHECKING:
    from postroad.owner import OwnedThread
    from postroad.signals import Signals

T = TypeVar("T")


class _Start(Protocol):
    def __call__(self, main: Callable[[], None], *, name: str) -> OwnedThread: ...


class ThreadSlots:
    """Implements `Slots`. Everything here belongs to one event loop, the first that takes a slot."""

    def __init__(self, count: int, *, name: str, thread: _Start, signals: Signals) -> None:
        """Start threads through `thread`, as they are needed; `name` is that of a label: bounded."""
        self.stuck = 0
        self._name = name
        self._signals = signals
        self._free: asyncio.LifoQueue[ThreadSlot] = asyncio.LifoQueue()
        self._slots = [ThreadSlot(f"threads:{name}-{number}", thread) for number in range(count)]
        for slot in reversed(self._slots):
            self._free.put_nowait(slot)

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[ThreadSlot]:
        """See `Slots.take`."""
        slot = await self._free.get()
        try:
            yield slot
        finally:
            if slot.idle:
                self._free.put_nowait(slot)
            else:
                self._abandon(slot)

    def close(self) -> None:
        """End every thread once it is idle; nothing may be called any more. Safe from any thread."""
        for slot in self._slots:
            slot.close()

    def _abandon(self, slot: ThreadSlot) -> None:
        self._count(1)
        reason = "a call goes on after it was given up; its thread is not used until it returns"
        self._signals.emit(TaskFailed(slot.name, "Stuck", reason))
        slot.when_idle(lambda: self._found(slot))

    def _found(self, slot: ThreadSlot) -> None:
        self._count(-1)
        self._free.put_nowait(slot)

    def _count(self, change: int) -> None:
        self.stuck += change
        self._signals.emit(ThreadsStuck(self._name, self.stuck))


class ThreadSlot:
    """Implements `Slot`."""

    def __init__(self, name: str, thread: _Start) -> None:
        """Start a thread called `name` when it is first needed."""
        self.name = name
        self.at_end: Callable[[], None] = _nothing
        self._start = thread
        self._thread: OwnedThread | None = None
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._running: asyncio.Future[Any] | None = None

    @property
    def idle(self) -> bool:
        """See `Slot.idle`."""
        return self._running is None or self._running.done()

    async def call(self, function: Callable[[], T]) -> T:
        """See `Slot.call`."""
        assert self.idle
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._thread is None:
            self._thread = self._start(self._main, name=self.name)
        self._running = future
        self._work.put(partial(_perform, loop, future, contextvars.copy_context(), function))
        try:
            return await asyncio.shield(future)
        finally:
            del future, function  # What it raised holds this frame, and must not be held by it.

    async def quiet(self, within: float) -> bool:
        """See `Slot.quiet`."""
        if self._running is not None:
            await asyncio.wait([self._running], timeout=within)
        return self.idle

    def when_idle(self, act: Callable[[], None]) -> None:
        """Call `act` on the loop once the running call has ended."""
        assert self._running is not None
        self._running.add_done_callback(lambda _: act())

    def close(self) -> None:
        """End the thread once it is idle."""
        if self._thread is not None:
            self._work.put(None)

    def _main(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # Nothing of a call outlives it.
        self.at_end()


def _perform(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], context: contextvars.Context, function: Callable[[], T]
) -> None:
    result: T | None = None
    failure: BaseException | None = None
    try:
        result = context.run(function)
    except BaseException as error:  # noqa: BLE001 - carried to whoever waits; the thread serves the next
        failure = error
    with contextlib.suppress(RuntimeError):  # The loop may be gone by the time that a stuck call returns.
        loop.call_soon_threadsafe(_settle, future, result, failure)


def _settle(future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
    if failure is None:
        future.set_result(result)
        return
    # What would end the loop, or cannot be raised there, is an error like another.
    fit = isinstance(failure, Exception) and not isinstance(failure, StopIteration)
    future.set_exception(failure if fit else RuntimeError(f"a call on a thread raised {type(failure).__name__}"))
    future.exception()  # Looked at: nobody may be waiting any more.


def _nothing() -> None:
    return
