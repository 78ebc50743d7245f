"""What the tests of leases share: keepers as processes would have them, and ears for their signals."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import asyncpg
import pytest

from postroad.clock import SYSTEM_CLOCK
from postroad.leases import Keeper, Lease
from postroad.runtime.executor import Tasks
from postroad.signals import Signals

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.signals.catalog import Signal

SCHEMA = "postroad"


class Ear:
    """Keeps every signal; lets the loop, or a thread, wait until something was heard."""

    def __init__(self) -> None:
        self.heard: list[Signal] = []
        self._changed = threading.Condition()

    def __call__(self, signal: Signal) -> None:
        with self._changed:
            self.heard.append(signal)
            self._changed.notify_all()

    def all(self, kind: type[Signal], /, **fields: object) -> list[Signal]:
        return [
            each
            for each in list(self.heard)
            if isinstance(each, kind) and all(getattr(each, name) == value for name, value in fields.items())
        ]

    def block(self, kind: type[Signal], /, *, count: int = 1, within: float = 20, **fields: object) -> list[Signal]:
        """Wait without the loop: nothing else runs on this thread."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.all(kind, **fields)) >= count, within):
                raise AssertionError(f"{kind.__name__} {fields} was not heard: {self.heard}")
        return self.all(kind, **fields)

    async def wait(
        self, kind: type[Signal], /, *, count: int = 1, within: float = 20, **fields: object
    ) -> list[Signal]:
        return await asyncio.to_thread(self.block, kind, count=count, within=within, **fields)


class Process:
    """A keeper with furniture of its own, as one process has it."""

    def __init__(self, url: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.ear = Ear()
        self.signals = Signals(self.ear)
        self.lost: list[Lease] = []
        self.lost_on: list[threading.Thread] = []
        self.holder = uuid4()
        self.keeper = Keeper(
            url,
            schema=SCHEMA,
            holder=self.holder,
            clock=clock,
            signals=self.signals,
            owner=Tasks(self.signals),
        )

    def hear_lost(self, lease: Lease) -> None:
        assert not lease.held
        self.lost.append(lease)
        self.lost_on.append(threading.current_thread())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the heartbeat thread where it is, as SIGSTOP does."""
        stopped, go_on = threading.Event(), threading.Event()

        def halt() -> None:
            stopped.set()
            go_on.wait(60)

        self.keeper._loop.call_soon_threadsafe(halt)
        assert stopped.wait(10)
        try:
            yield
        finally:
            go_on.set()


Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start(runtime_url: str) -> AsyncIterator[Start]:
    """Start a keeper, by default at the test's database under the runtime role."""
    started: list[Process] = []

    async def begin(url: str = runtime_url, clock: Clock = SYSTEM_CLOCK) -> Process:
        process = Process(url, clock)
        started.append(process)
        await process.keeper.start()
        return process

    yield begin
    for process in started:
        await process.keeper.stop()


@pytest.fixture
async def row(database: str) -> AsyncIterator[Callable[..., Awaitable[asyncpg.Record]]]:
    """Read the row of a lease."""
    connection = await asyncpg.connect(database)

    async def read(name: str) -> asyncpg.Record:
        return await connection.fetchrow(
            "SELECT *, expires_at > clock_timestamp() AS alive FROM postroad.lease WHERE name = $1", name
        )

    yield read
    await connection.close()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], Awaitable[None]]:
    """Wait for a condition that gives no signal of its own."""

    async def wait(condition: Callable[[], object], within: float = 20) -> None:
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, "it did not come true in time"
            await asyncio.sleep(0.005)

    return wait
