"""What a job is told about its run, and the fenced transactions that it may open."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, cast

from typing_extensions import TypeVar, override

from postroad.errors import LeaseLost, Unavailable, UsageError
from postroad.events.cause import Cause
from postroad.failures import Cancel
from postroad.leases.hold import TTL
from postroad.signals.catalog import LateWriteRefused
from postroad.work import running, store
from postroad.work.planned import due_of
from postroad.work.sweeper import at_once
from postroad.work.use import Kind, Resources, used

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

    from postroad.clock import Clock
    from postroad.leases import AsyncLease, HeldLease, Leases, SyncLease
    from postroad.signals import Signals
    from postroad.sql import Pipeline
    from postroad.sql.asyncpg import Connection
    from postroad.sql.drive import Transactions, Unit
    from postroad.sql.manager import Manager
    from postroad.sql.threads import Seated
    from postroad.work.store import ClaimedRow

T = TypeVar("T")
Tx_co = TypeVar("Tx_co", covariant=True, default="Connection")
Bx_co = TypeVar("Bx_co", covariant=True, default="psycopg.Connection[TupleRow]")

_REPORT_SECONDS: Final = 0.5  # Progress is written at most this often.
_LONGEST_NOTE: Final = 200


@dataclass(slots=True, kw_only=True)
class Grip:
    """What a process knows of a run of its own beyond what its author sees; shared by everybody who looks after it."""

    row: ClaimedRow
    job: str
    manager: Manager
    signals: Signals
    clock: Clock
    resources: Resources
    leases: Leases | None = None
    until: float = float("inf")
    """The monotonic time at which its time limit is over."""
    held: list[HeldLease] = field(default_factory=list)
    """The leases that it holds: its transactions commit only while they, too, are its own."""
    cancelled: str | None = None
    """The reason for which an operator has cancelled it."""
    finished: bool = False
    """Whether it was finished by one of its own transactions."""
    lost: bool = False
    """Whether one of its transactions lost its connection."""
    fenced: bool = False
    """Whether a write of it was refused, since its row is another's."""
    open: int = 0
    """How many of its transactions are open."""
    ends: Callable[[], Pipeline[None]] | None = None
    """What else commits with its end."""
    given_up: bool = False
    """Whether it was left alone: its row is no longer this run's."""
    reported: float = float("-inf")

    @property
    def schema(self) -> str:
        """The schema of its row."""
        return self.manager.schema

    def enter(self) -> None:
        """Refuse a transaction that could not commit."""
        if self.finished:
            raise UsageError("PR107", f"job {self.job!r} is finished by an earlier transaction of this run; return")
        if self.given_up or self.fenced:
            raise self.gone()

    def sealed(self, *, finish: bool) -> Pipeline[None]:
        """The last statements of a transaction: whatever must still be ours is, and stays so until the commit."""
        for lease in [*self.held]:  # Another block of the run may end between two statements.
            yield from lease.fence()
        row = self.row
        if finish:
            if self.ends is not None:
                yield from self.ends()
            ours = yield from store.finish(self.schema, row.id, row.token, outcome="handled")
        else:
            ours = yield from running.hold(self.schema, row.id, row.token)
        if not ours:
            raise self.refused()

    def holding(self) -> tuple[Leases, timedelta]:
        """Where it takes leases from, and how long it may hold one at most.

        Raises:
            UsageError: there are none.
        """
        if self.leases is None:
            raise UsageError("PR107", f"job {self.job!r} has no leases; run it in an App")
        return self.leases, timedelta(seconds=max(self.until - self.clock.monotonic(), 0.001))

    @contextmanager
    def under(self, lease: HeldLease) -> Iterator[None]:
        """Fence its transactions by `lease` for the block."""
        self.held.append(lease)
        try:
            yield
        finally:
            self.held.remove(lease)

    def refused(self) -> LeaseLost:
        """Count a write that was refused; the error to raise."""
        self.fenced = True
        self.signals.emit(LateWriteRefused("work", 1))
        return self.gone()

    def gone(self) -> LeaseLost:
        """The error of a run whose row is another's by now."""
        return LeaseLost("PR401", f"row {self.row.id} of work is no longer this run's; what it writes changes nothing")

    async def report(self, fraction: float, note: str | None) -> None:
        """See `Run.progress`."""
        if not (math.isfinite(fraction) and 0 <= fraction <= 1):
            raise UsageError("PR107", f"progress is a number from 0 to 1, not {fraction!r}")
        now = self.clock.monotonic()
        if now - self.reported < _REPORT_SECONDS:
            return
        self.reported = now
        told = None if note is None else note[:_LONGEST_NOTE]
        try:
            ours, cancelled = await at_once(
                self.manager, running.report(self.schema, self.row.id, self.row.token, fraction=fraction, note=told)
            )
        except Unavailable:
            return  # Not worth a failure: the next report says more.
        if not ours:
            raise self.refused()
        if cancelled is not None:
            self.cancelled = cancelled


class _Told:
    """What both forms of a run say."""

    def __init__(self, grip: Grip) -> None:
        """Made by the queue that runs the job."""
        self.grip = grip

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id}, job={self.job!r}, attempt={self.attempt})"

    @property
    def id(self) -> int:
        """The number of its row: the same in every attempt, and unique for life."""
        return self.grip.row.id

    @property
    def job(self) -> str:
        """The job's name."""
        return self.grip.job

    @property
    def queue(self) -> str:
        """The queue that it waited in."""
        return self.grip.row.queue

    @property
    def key(self) -> str | None:
        """The key under which it is unique while it is open."""
        return self.grip.row.key

    @property
    def attempt(self) -> int:
        """1 the first time; it grows with each charged failure."""
        return self.grip.row.attempt + 1

    @property
    def due(self) -> datetime:
        """When it was first meant to run (aware); of a schedule's, its due time, in the schedule's zone.

        Retries leave it as it is.
        """
        return due_of(self.grip.row.wire.headers) or self.grip.row.due or self.grip.row.created_at

    @property
    def created_at(self) -> datetime:
        """When it was enqueued (aware)."""
        return self.grip.row.created_at

    @property
    def correlation_id(self) -> str:
        """The story that it belongs to: that of whatever enqueued it, else its own."""
        return self.cause.correlation

    @property
    def causation_id(self) -> str | None:
        """What enqueued it: an event's id, another job's, or None."""
        cause = self.grip.row.wire.headers.get("causation")
        return None if cause is None else str(cause)

    @property
    def own_id(self) -> str:
        """What it is called where it is the cause of something."""
        return f"job:{self.grip.row.id}"

    @property
    def cause(self) -> Cause:
        """What the publishes and jobs of its function are caused by."""
        own = f"job:{self.grip.row.id}"
        return Cause(str(self.grip.row.wire.headers.get("correlation") or own), own)

    @property
    def cancelled(self) -> bool:
        """Whether an operator has cancelled it: stop soon, in good order. Heard within about two seconds."""
        return self.grip.cancelled is not None

    def check_cancel(self) -> None:
        """Do nothing unless an operator has cancelled it.

        Raises:
            Cancel: it is cancelled; let it out, and the job ends as cancelled.
        """
        if self.grip.cancelled is not None:
            raise Cancel(self.grip.cancelled)

    def use(self, kind: Kind[T]) -> T:
        """The App's live object of type `kind`, made by its ``lifespan``.

        Raises:
            UsageError: the App has none of that type.
        """
        return used(self.grip.resources, kind, by=f"job {self.job!r}")


class Run(_Told, Generic[Tx_co]):
    """One attempt at one job, for ``async def`` functions."""

    def __init__(self, grip: Grip, transactions: Transactions[Tx_co]) -> None:
        """Made by the queue that runs the job."""
        super().__init__(grip)
        self._transactions = transactions
        self.units: set[Unit[Any]] = set()

    @asynccontextmanager
    async def transaction(self, *, finish: bool = False) -> AsyncIterator[Tx_co]:
        """Open a transaction of the author's kind; it commits at the block's end, if the job is still this run's.

        Any number of them, one after the other: what a committed one wrote stays, whatever becomes of the job, so that
        an attempt after it should find it. With `finish` the job is done with the commit: both or neither; return
        after it. An error in the block rolls back and comes out.

        Raises:
            LeaseLost: PR401, at the end: another worker has the job by now. Nothing was written; let it out.
            UsageError: the job was finished by an earlier transaction.
        """
        grip = self.grip
        grip.enter()
        unit: Unit[Tx_co] | None = None
        grip.open += 1
        try:
            async with self._transactions.begin() as unit:
                self.units.add(unit)
                async with unit.lent() as tx:
                    yield tx
                await unit.drive(grip.sealed(finish=finish))
        except BaseException as error:
            grip.lost |= isinstance(error, Unavailable) if unit is None else unit.lost
            raise
        finally:
            grip.open -= 1
            self.units.discard(unit)
        grip.finished = finish

    @asynccontextmanager
    async def lease(
        self, name: str, *, ttl: timedelta = TTL, wait: timedelta | None = None
    ) -> AsyncIterator[AsyncLease]:
        """Hold the lease `name` for the block: no two runs do, of whatever job; see `postroad.leases.Leases.hold`.

        The run's transactions within are fenced by it as well, and it is held no longer than the attempt may take.

        Raises:
            LeaseHeld: PR402, another has it; at once, or after `wait`. Not caught, the job is put off,
                uncharged, until its `max_age`.
            LeaseLost: PR401, it was lost, and the block was cancelled. Not caught, the job is put off, uncharged.
            UsageError: an argument is not valid.
        """
        leases, longest = self.grip.holding()
        async with leases.hold(name, ttl=ttl, wait=wait, max_runtime=longest) as lease:
            with self.grip.under(lease):
                yield lease

    def lock(self, name: str, *, wait: timedelta | None = None) -> AbstractAsyncContextManager[None]:
        """Hold the lock `name` for a short block, on a connection of its own; see `postroad.sql.lock.Locks.hold`.

        There is no fencing token: what must never be written late takes a `lease`.

        Raises:
            LeaseHeld: PR402, another session has it; at once, or after `wait`.
            LeaseLost: PR403, the connection was lost, and the block was cancelled.
        """
        return self.grip.manager.lock(name, wait=wait)

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Show people how far it is: `fraction` from 0 to 1, and a `note` of at most 200 letters.

        It is written at once, beside any transaction, and at most twice a second; what comes sooner is passed over.
        While the database is away it does nothing.

        Raises:
            LeaseLost: another worker has the job by now; let it out.
            UsageError: `fraction` is not a number from 0 to 1.
        """
        await self.grip.report(fraction, note)

    def cut(self) -> None:
        """Cut the connections of its open transactions: code that does not end cannot commit any more."""
        for unit in [*self.units]:
            if not unit.lost:
                unit.terminate()


class BlockingRun(_Told, Generic[Bx_co]):
    """One attempt at one job, for ``def`` functions; use it on the job's own thread."""

    def __init__(self, grip: Grip, seated: Seated[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Made by the queue that runs the job."""
        super().__init__(grip)
        self._seated = seated
        self.loop = loop

    @contextmanager
    def transaction(self, *, finish: bool = False) -> Iterator[Bx_co]:
        """Open a transaction, one at a time, on the thread's own connection; otherwise as `Run.transaction`.

        Raises:
            LeaseLost: PR401, at the end: another worker has the job by now. Nothing was written; let it out.
            UsageError: the job was finished by an earlier transaction.
        """
        grip = self.grip
        grip.enter()
        grip.open += 1
        try:
            with self._seated.begin() as unit:
                with unit.lent() as tx:
                    yield cast("Bx_co", tx)
                unit.drive(grip.sealed(finish=finish))
        except BaseException:
            grip.lost |= self._seated.lost
            raise
        finally:
            grip.open -= 1
        grip.finished = finish

    @contextmanager
    def lease(self, name: str, *, ttl: timedelta = TTL, wait: timedelta | None = None) -> Iterator[SyncLease]:
        """`Run.lease` for a thread: a loss cannot cancel it, but cuts its open transaction; call ``lease.check()``."""
        leases, longest = self.grip.holding()
        cut = self._seated.cut
        with leases.hold_sync(name, ttl=ttl, wait=wait, max_runtime=longest, cut=cut) as lease, self.grip.under(lease):
            yield lease

    def progress(self, fraction: float, note: str | None = None) -> None:
        """See `Run.progress`."""
        asyncio.run_coroutine_threadsafe(self.grip.report(fraction, note), self.loop).result()
