"""What tests of several rooms share: an owner of tasks and threads, and a recorder of signals to wait on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import uvloop

from postroad.runtime.executor import Tasks
from postroad.signals import Signal, Signals
from postroad.signals.catalog import DeliverySettled

S = TypeVar("S", bound=Signal)

POOLER = "POSTROAD_TEST_POOLER"  # "server's port:pooler's port", where the matrix puts one before the run's server.


def pooled(url: str) -> str:
    """What a process would be given as POSTROAD_DATABASE_URL for this database: through the pooler, if there is one.

    A URL with options stays as it is: a transaction pooler refuses those.
    """
    server, _, pooler = os.environ.get(POOLER, "").partition(":")
    return url if not pooler or "?" in url else url.replace(f":{server}/", f":{pooler}/")


class ThreadOwner(Tasks):
    """The product's own owner; its threads run uvloop, as under the App."""

    def __init__(self, signals: Signals | None = None) -> None:
        super().__init__(signals or Signals(), loop_factory=uvloop.new_event_loop)


class Recorder:
    """A sink that keeps every signal and lets a test wait for one; use it from one event loop."""

    def __init__(self, signals: Signals) -> None:
        self._seen: list[Signal] = []
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._remove = signals.subscribe(self._hear)

    def _hear(self, signal: Signal) -> None:
        # One for each delivery: how many end together is the loop's doing.
        alike = signal.count if isinstance(signal, DeliverySettled) else 1
        with self._lock:
            self._seen += [signal] * alike
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    def all(self, kind: type[S]) -> list[S]:
        """Everything of that kind so far."""
        with self._lock:
            return [signal for signal in self._seen if isinstance(signal, kind)]

    def forget(self) -> None:
        """Start anew: only what comes from now on counts."""
        with self._lock:
            self._seen.clear()

    async def wait(
        self, kind: type[S], that: Callable[[S], bool] = lambda _: True, *, count: int = 1, within: float = 20
    ) -> S:
        """The `count`-th signal of that kind for which `that` holds, now or within that many seconds."""
        async with asyncio.timeout(within):
            while True:
                self._news.clear()
                found = [signal for signal in self.all(kind) if that(signal)]
                if len(found) >= count:
                    return found[count - 1]
                await self._news.wait()


async def until(condition: Callable[[], bool], *, within: float = 20, every: float = 0.01) -> None:
    """Look until `condition` holds; TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - other threads set what is looked at
            await asyncio.sleep(every)
