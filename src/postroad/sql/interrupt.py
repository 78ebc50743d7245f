"""Stops one block of a task from outside, and tells that apart from every other cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from postroad.errors import LeaseLost


class Interrupt:
    """Around a block that may go on only while something is held: `tell` cancels it, and it ends as a `LeaseLost`.

    The error comes out however the block ends after that: where it swallows its cancellation and returns, too. A
    cancellation from elsewhere stays one, also when both meet. Enter it once; use it on one event loop.
    """

    def __init__(self, lost: Callable[[], LeaseLost]) -> None:
        """Nothing runs yet; `lost` makes the error."""
        self._lost = lost
        self._task: asyncio.Task[object] | None = None
        self._before = 0
        self._told = False
        self._ended = False

    def tell(self) -> None:
        """What was held is gone: cancel the block now, or refuse it before it begins; later it is nobody's business."""
        if self._told or self._ended:
            return
        self._told = True
        if self._task is not None:
            self._task.cancel("the lease or lock was lost")

    def __enter__(self) -> Self:
        """Begin the block.

        Raises:
            LeaseLost: it was told already.
        """
        if self._told:
            raise self._lost()
        self._task = asyncio.current_task()
        assert self._task is not None
        self._before = self._task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the block.

        Raises:
            LeaseLost: it was told.
        """
        self._ended = True
        if not self._told or self._task is None:
            return
        others = self._task.uncancel() > self._before
        if isinstance(error, LeaseLost) or (others and isinstance(error, asyncio.CancelledError)):
            return
        if error is None or isinstance(error, Exception | asyncio.CancelledError):
            raise self._lost() from error
