"""What is told of settled rows: one signal for all that ended alike within one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from postroad.signals.catalog import WorkSettled

if TYPE_CHECKING:
    from postroad.signals import Signals


class Tally:
    """Gathers what became of rows, and tells it with the turn's end."""

    def __init__(self, signals: Signals, *, then: Callable[[], None]) -> None:
        """Nothing has settled; `then` is called after each telling."""
        self._signals = signals
        self._then = then
        self._alike: dict[tuple[str, str, str, str], list[float]] = {}

    def add(self, queue: str, kind: str, result: str, job: str, *, seconds: float) -> None:
        """A row has its outcome, after so many seconds."""
        if not self._alike:
            asyncio.get_running_loop().call_soon(self.tell)
        self._alike.setdefault((queue, kind, result, job), []).append(seconds)

    def tell(self) -> None:
        """Tell at once what was gathered."""
        told, self._alike = self._alike, {}
        for (queue, kind, result, job), seconds in told.items():
            self._signals.emit(WorkSettled(queue, kind, result, len(seconds), tuple(seconds), job))
        self._then()
