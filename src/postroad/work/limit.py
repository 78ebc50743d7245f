"""The time limit of many runs of ``async def`` functions, watched by one timer of the loop for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class Limited(Protocol):
    """Who is told that its time limit has passed."""

    limited: bool


class TimeLimit:
    """Does for many short waits what `asyncio.timeout` does for one.

    All have the same limit, so that whoever began first is over first: the timer stands for that one, and is set
    again only when it rings. A wait that ends before costs no timer.
    """

    def __init__(
        self, seconds: float, *, late: Callable[[Any], None] | None = None, spared: float = 0.0
    ) -> None:  # fmt: skip
        """Nobody waits. `late` is told, once, of whoever goes on `spared` seconds after it was cancelled."""
        self.seconds = seconds
        self._late = late
        self._spared = spared
        self._waits: dict[Limited, _Wait] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def within(
        self, work: Awaitable[None], *, told: Limited, task: asyncio.Task[Any] | None = None
    ) -> None:  # fmt: skip
        """Await `work`, and cancel it at the limit; `told.limited` is set before. Any number at once, each its own.

        `task` is the current one, where it is known: to ask for it costs a system call.

        Raises:
            TimeoutError: it was cancelled at the limit, also where it swallowed that and returned.
        """
        task = task or asyncio.current_task()
        assert task is not None
        loop, before = task.get_loop(), task.cancelling()
        wait = self._waits[told] = _Wait(task, loop.time() + self.seconds)
        if self._timer is None:
            self._timer = loop.call_at(wait.until, self._ring, loop)
        try:
            await work
        except asyncio.CancelledError:
            if wait.over and task.uncancel() <= before:
                raise TimeoutError from None
            raise
        except BaseException:
            if wait.over:
                task.uncancel()
            raise
        finally:
            del self._waits[told]
        if wait.over:
            task.uncancel()
            raise TimeoutError

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for told, wait in self._waits.items():
            if wait.until > now:
                self._timer = loop.call_at(wait.until, self._ring, loop)
                return
            if not wait.over:
                wait.over = told.limited = True
                wait.task.cancel()
                if self._late is not None:
                    loop.call_later(self._spared, self._look, told, wait, self._late)

    def _look(self, told: Limited, wait: _Wait, late: Callable[[Any], None]) -> None:
        if self._waits.get(told) is wait:
            late(told)


class _Wait:
    __slots__ = ("over", "task", "until")

    def __init__(self, task: asyncio.Task[object], until: float) -> None:
        self.task = task
        self.until = until
        self.over = False
