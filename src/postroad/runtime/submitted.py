"""What an `Executor` takes: one background task, from its submission to its end."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast

from postroad.errors import UsageError

T = TypeVar("T")


class Submitted(Generic[T]):
    """A background task in hand: await it for its result, or leave it.

    Awaiting raises what the task raised, TimeoutError at its time limit, or `PostroadError` (PR311) if it was
    cancelled; cancelling the one who awaits does not cancel the task. It belongs to the executor's loop.
    """

    def __init__(self, work: Work, loop: asyncio.AbstractEventLoop, cancel: Callable[[], None]) -> None:
        """Made by `Executor.submit`."""
        self._work = work
        self._loop = loop
        self._cancel = cancel

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._work.future.done()

    def cancel(self) -> None:
        """End it: one that waits never begins, one that runs is cancelled; a thread goes on. Safe to repeat."""
        if running_loop() is self._loop:
            self._cancel()
        else:
            self._loop.call_soon_threadsafe(self._cancel)

    def __await__(self) -> Generator[Any, None, T]:
        self._work.awaited = True
        return cast("Generator[Any, None, T]", asyncio.shield(self._work.future).__await__())


@dataclass(slots=True, eq=False)
class Work:
    """One task, from its submission to its end."""

    name: str
    call: Callable[[], Any]
    limit: float
    blocking: bool
    context: contextvars.Context
    future: asyncio.Future[Any]
    since: float
    began: float | None = None
    task: asyncio.Task[Any] | None = None
    awaited: bool = False


class Expired(TimeoutError):
    """Our own time limit, told apart from an author's TimeoutError."""


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def is_async(function: object) -> bool:
    """Whether calling it gives a coroutine: ``async def``, a partial of one, an object with such a ``__call__``."""
    call = vars(type(function)).get("__call__")
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def named(function: object) -> str:
    """The name that a function has in signals."""
    inner = getattr(function, "func", function)  # A partial's.
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def whole(option: str, value: object, *, least: int) -> None:
    """Refuse what is not a whole number of at least `least`.

    Raises:
        UsageError: PR107.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            "PR107", f"Executor: {option} is {str(value)[:40]}; it must be a whole number, at least {least}"
        )


def positive(option: str, value: object) -> timedelta:
    """A duration above 0.

    Raises:
        UsageError: PR107.
    """
    if not isinstance(value, timedelta) or value <= timedelta(0):
        said = str(value)[:40]
        raise UsageError("PR107", f"Executor: {option} is {said}; it must be a timedelta above 0, such as seconds(30)")
    return value
