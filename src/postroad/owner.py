"""Who may start background work: the protocols that a room is handed, so that it starts nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
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
