"""Who may start background work: the protocols that a room is handed, so that it starts nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Readiness(Protocol):
    """Where a service says whether it does its work; health publishes it."""

    def up(self) -> None:
        """The service works: connected, subscribed and confirmed."""
        ...

    def down(self, reason: str) -> None:
        """The service does not work now, for `reason` (safe text); it goes on trying."""
        ...


class Service(Protocol):
    """Something that runs for as long as the App does."""

    @property
    def name(self) -> str:
        """A short, unique, bounded name: a label of metrics and the name of the task."""
        ...

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """Work until `stop` is set, then finish or give back what is in hand and return.

        Returning before that, or raising, is a failure: the supervisor reports it and starts the service again
        with backoff. Cancellation means that the grace period is over: let go at once.
        """
        ...


class OwnedThread(Protocol):
    """A thread that its owner joins at shutdown."""

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; whether the thread has ended."""
        ...


class Slot(Protocol):
    """One thread that runs one blocking call at a time, for whoever took it from its `Slots`."""

    at_end: Callable[[], None]
    """Called on the thread when it ends, if it ever ran; set it to close what belongs to the thread."""

    @property
    def idle(self) -> bool:
        """Whether no call runs."""
        ...

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread, in a copy of the caller's context; what it raises comes out.

        Cancellation ends the waiting alone: a thread cannot be stopped, and the call goes on.
        """
        ...

    async def quiet(self, within: float) -> bool:
        """Wait up to `within` seconds for a call that goes on; whether the slot is idle."""
        ...


class Slots(Protocol):
    """A fixed number of threads for blocking calls."""

    @property
    def stuck(self) -> int:
        """How many of them were left by their taker in the midst of a call, and still run it."""
        ...

    def take(self) -> AbstractAsyncContextManager[Slot]:
        """Take a free slot for the block, waiting for one in turn.

        A slot whose call still runs at the end of the block is stuck: it is reported, and given out again only
        after the call has ended.
        """
        ...


class Owner(Protocol):
    """Starts tasks and threads, names them, hears of their errors and joins them at shutdown."""

    def task(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start `work` as a task of the running loop. An error that nobody awaits is reported as a signal."""
        ...

    def thread(self, main: Callable[[], Awaitable[None] | None], *, name: str) -> OwnedThread:
        """Start `main` on a thread of its own; an async `main` gets a loop of its own (`asyncio.run`).

        `main` must end when what it was told to watch says so: threads are joined at shutdown, never killed.
        """
        ...

    def slots(self, count: int, *, name: str) -> Slots:
        """Make `count` slots for blocking calls; their threads start when they are first used, and end at shutdown.

        One that is stuck then cannot keep the process.
        """
        ...
