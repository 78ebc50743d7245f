"""What the tests of the work room share: a process's furniture, and handlers that can be held."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.failures import FailureClass, Verdict
from postroad.leases import Keeper
from postroad.retry import Backoff
from postroad.runtime.executor import Tasks
from postroad.signals import Signals
from postroad.signals.catalog import WorkSettled
from postroad.sql.lock import Locks
from postroad.sql.manager import Manager
from postroad.work import ClaimedRow, Wire, store
from postroad.work.claimer import Claimer
from postroad.work.settings import WorkSettings

if TYPE_CHECKING:
    from postroad.signals.catalog import Signal

SCHEMA = "postroad"
QUICK = WorkSettings(
    lease=seconds(1.5), busy=seconds(0.005), idle=seconds(0.05), rescan=seconds(0.2), sweep=seconds(0.1),
    repair=seconds(0.3), gauges=seconds(0.2), let_go=seconds(2),
    backoff=Backoff(first=seconds(0.05), most=seconds(1)),
)  # fmt: skip
VERDICT = Verdict(
    failure=FailureClass.TRANSIENT, code="gateway", reason="the gateway did not answer", error_type="GatewayDown",
    fingerprint="f1",
)  # fmt: skip


class Heard:
    """A sink that remembers, and lets a test wait for what it is about to hear."""

    def __init__(self) -> None:
        self.signals: list[Signal] = []
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def __call__(self, signal: Signal) -> None:
        # One for each row: how many end together is the machine's doing.
        alike = signal.count if isinstance(signal, WorkSettled) else 1
        self.signals += [signal] * alike
        self._loop.call_soon_threadsafe(self._news.set)

    def of(self, kind: type[Signal]) -> list[Any]:
        return [signal for signal in self.signals if isinstance(signal, kind)]

    async def wait(self, kind: type[Signal], count: int = 1, *, within: float = 15) -> list[Any]:
        async with asyncio.timeout(within):
            while len(found := self.of(kind)) < count:
                self._news.clear()
                await self._news.wait()
        return found


class Ready:
    """A Readiness that a test can read."""

    def __init__(self) -> None:
        self.reason = "not said"

    def up(self) -> None:
        self.reason = ""

    def down(self, reason: str) -> None:
        self.reason = reason


class Process:
    """The furniture of one worker process, and claimers that run on it."""

    def __init__(self, manager: Manager, keeper: Keeper, *, signals: Signals, heard: Heard, owner: Tasks) -> None:
        self.manager = manager
        self.keeper = keeper
        self.signals = signals
        self.heard = heard
        self.owner = owner
        self.ready = Ready()

    async def run(self, pipeline: Any) -> Any:
        return await self.manager.run(pipeline)

    def claimer(self, *handlers: Any, settings: WorkSettings = QUICK) -> Claimer:
        return Claimer(
            self.manager, self.keeper, handlers={handler.queue: handler for handler in handlers},
            signals=self.signals, clock=SYSTEM_CLOCK, owner=self.owner, settings=settings,
        )  # fmt: skip

    @asynccontextmanager
    async def running(self, *handlers: Any, settings: WorkSettings = QUICK) -> AsyncIterator[Claimer]:
        claimer, stop = self.claimer(*handlers, settings=settings), asyncio.Event()
        task = asyncio.create_task(claimer.run(stop, self.ready))
        try:
            yield claimer
        finally:
            stop.set()
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def lease(self, name: str | None = None, ttl: timedelta = seconds(30)) -> str:
        """The name of a fresh worker lease."""
        lease = await self.keeper.acquire(name or f"worker:{uuid4()}", ttl=ttl, on_lost=lambda _: None)
        assert lease is not None
        return lease.name


@asynccontextmanager
async def process(url: str) -> AsyncIterator[Process]:
    heard = Heard()
    signals = Signals(heard)
    owner = Tasks(signals)
    locks = Locks(url, schema=SCHEMA, owner=owner, clock=SYSTEM_CLOCK, chance=random.random)
    manager = await Manager.open(url, schema=SCHEMA, size=6, locks=locks)
    keeper = Keeper(url, schema=SCHEMA, holder=uuid4(), clock=SYSTEM_CLOCK, signals=signals, owner=owner)
    await keeper.start()
    try:
        yield Process(manager, keeper, signals=signals, heard=heard, owner=owner)
    finally:
        await keeper.stop()
        await manager.close()


class Probe:
    """A handler that finishes its rows, does what a test says first, and counts who ran when."""

    def __init__(
        self, here: Process, *, queue: str = "q", slots: int = 4,
        act: Callable[[ClaimedRow], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.slots = slots
        self.rows: list[ClaimedRow] = []
        self.running: set[int] = set()
        self.together: list[frozenset[int]] = []
        self.cancelled: list[int] = []
        self.done: list[int] = []
        self._act = act
        self._here = here
        self._news = asyncio.Event()

    async def run(self, row: ClaimedRow) -> None:
        self.rows.append(row)
        self.running.add(row.id)
        self.together.append(frozenset(self.running))
        self._news.set()
        try:
            if self._act is not None:
                await self._act(row)
            assert await self._here.run(store.finish(SCHEMA, row.id, row.token, outcome="handled"))
            self.done.append(row.id)
        except asyncio.CancelledError:
            self.cancelled.append(row.id)
            raise
        finally:
            self.running.discard(row.id)
            self._news.set()

    async def until(self, holds: Callable[[], Any], *, within: float = 15) -> None:
        async with asyncio.timeout(within):
            while not holds():
                self._news.clear()
                await self._news.wait()


def wire(body: bytes = b"{}", **fields: Any) -> Wire:
    return replace(Wire(body=body, content_type="application/json", event_type="t.t.t"), **fields)


async def put(
    here: Process, key: str | None = None, *, queue: str = "q", run_in: float = 0, body: bytes = b"{}"
) -> int:  # fmt: skip
    """A row of work, as a failed delivery leaves it."""
    work = store.delay(
        SCHEMA, queue=queue, key=key or str(uuid4()), wire=wire(body), verdict=VERDICT, attempt=1,
        run_in=seconds(run_in),
    )  # fmt: skip
    return int(await here.run(work))


async def forever(_row: ClaimedRow) -> None:
    await asyncio.Event().wait()


async def fill(sql: Any, count: int, *, queue: str = "q", state: str = "ready", shift: str = "0 s") -> None:
    """Rows that nobody has tried yet, `shift` from now."""
    await sql.execute(
        "INSERT INTO work (id, queue, kind, key, state, run_at, body, content_type)"
        " SELECT nextval('work_id'), $1, 'retry', gen_random_uuid()::text, $2, now() + $3::text::interval, '', ''"
        " FROM generate_series(1, $4)",
        queue, state, shift, count,
    )  # fmt: skip
