"""Leases for authors: take a name, wait for it, hold it for a block, and stop at once when it is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from postroad.clock import seconds
from postroad.errors import LeaseHeld, LeaseLost, Unavailable, UsageError
from postroad.leases import store
from postroad.leases.held import AsyncLease, SyncLease
from postroad.leases.keeper import shielded
from postroad.retry import next_look
from postroad.sql.advisory import checked_duration, checked_name, checked_wait
from postroad.sql.interrupt import Interrupt

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.leases.keeper import Keeper
    from postroad.leases.lease import Lease
    from postroad.signals import Signals
    from postroad.sql import Pipeline
    from postroad.sql.manager import Manager

T = TypeVar("T")
Steps = Generator["concurrent.futures.Future[Any] | float", Any, T]
"""What is waited for in turn: an answer of the keeper, or some seconds; for a hand that awaits or one that blocks."""

PREFIX: Final = "user:"
"""Before every name of an author, so that it is never one of ours (`shard:`, `worker:`)."""

TTL: Final = seconds(60)
_SHORTEST: Final = seconds(5)  # A statement of a renewal has a sixth of it, and is tried again.
_LONGEST: Final = timedelta(days=1)
"""A holder that dies keeps the name for so long."""


class Leases:
    """The leases of authors' code in one process, all kept by its `Keeper`."""

    def __init__(
        self, keeper: Keeper, manager: Manager, *, clock: Clock, signals: Signals, chance: Callable[[], float],
        shortest: timedelta = _SHORTEST,
    ) -> None:  # fmt: skip
        """Take leases by `keeper`; fenced transactions run on connections of `manager`. `chance` is for jitter.

        A ttl is no less than `shortest`, which is less in tests alone.
        """
        self._keeper = keeper
        self._manager = manager
        self._clock = clock
        self._signals = signals
        self._chance = chance
        self._shortest = shortest
        self._waiting = 0

    @asynccontextmanager
    async def hold(
        self, name: str, *, ttl: timedelta = TTL, wait: timedelta | None = None,
        max_runtime: timedelta | None = None, within: Callable[[Pipeline[None]], Awaitable[None]] | None = None,
    ) -> AsyncIterator[AsyncLease]:  # fmt: skip
        """Hold `name` for the block: of all processes on this database one at a time does.

        It is renewed every third of `ttl` (60 s; from 5 s to a day) by the keeper's thread, also while the block keeps
        the event loop busy. When it is lost (no renewal came through, an operator fenced it, or `max_runtime` is
        over), the block's task is cancelled at once, and `LeaseLost` comes out, however the block ends then. It is
        released after the block has ended. After a crash the name is free when `ttl` is over.

        Without `wait` it is tried once; with it, until that time is over, also while the database is away. `within`
        runs a pipeline in an open transaction: a block that succeeds gives the name up as part of that, by its commit.

        Raises:
            LeaseHeld: PR402, another has it, or the same process elsewhere.
            LeaseLost: PR401, it was lost within the block; what the block had begun may go on elsewhere.
            Unavailable: the database is away or too slow.
            UsageError: PR107, the name, `ttl`, `wait` or `max_runtime` is not valid.
        """
        loop = asyncio.get_running_loop()
        interrupt = Interrupt(lambda: held.lost())  # noqa: PLW0108 - it is not there yet
        steps = self._taking(
            name, ttl=ttl, wait=wait, on_lost=lambda _: interrupt.tell(), loop=loop, max_runtime=max_runtime
        )
        lease = await _awaited(steps)
        held = AsyncLease(lease, name, manager=self._manager, signals=self._signals)
        kept = True
        try:
            with interrupt:
                yield held
                held.check()  # The block may have kept the loop from hearing of the loss.
                if within is not None:
                    await _awaited(_step(self._keeper.forgetting(lease)))
                    await within(held.settled())
                    kept = False
        finally:
            if kept:
                await _awaited(self._releasing(lease))

    @contextmanager
    def hold_sync(
        self, name: str, *, ttl: timedelta = TTL, wait: timedelta | None = None,
        max_runtime: timedelta | None = None, within: Callable[[Pipeline[None]], None] | None = None,
        cut: Callable[[], None] | None = None,
    ) -> Iterator[SyncLease]:  # fmt: skip
        """`hold` for ``def`` code on a thread, which a loss cannot cancel: call ``lease.check()`` before each effect.

        At the loss the connections inside ``lease.transaction(connection)`` are cut, and `cut` is called, on another
        thread: it must be quick.

        Raises:
            LeaseHeld: PR402, another has it.
            LeaseLost: PR401, it was lost within the block.
            Unavailable: the database is away or too slow.
            UsageError: PR107, as for `hold`, or an event loop runs on this thread: it would stand still.
        """
        refuse_loop()
        lost = concurrent.futures.Future[None]()
        lease = _blocking(
            self._taking(name, ttl=ttl, wait=wait, on_lost=lambda _: lost.set_result(None), max_runtime=max_runtime)
        )
        held = SyncLease(lease, name, schema=self._manager.schema, signals=self._signals)
        lost.add_done_callback(lambda _: _cut(held, cut))
        kept = True
        try:
            try:
                yield held
            except Exception as error:
                if lost.done() and not isinstance(error, LeaseLost):
                    raise held.lost() from error  # Most likely what the cut connection raised.
                raise
            held.check()
            if within is not None:
                _blocking(_step(self._keeper.forgetting(lease)))
                within(held.settled())
                kept = False
        finally:
            if kept:
                _blocking(self._releasing(lease))

    # --- one pipeline for both hands ------------------------------------------------------------------------------

    def _taking(
        self, name: str, *, ttl: timedelta, wait: timedelta | None, on_lost: Callable[[Lease], None],
        loop: asyncio.AbstractEventLoop | None = None, max_runtime: timedelta | None,
    ) -> Steps[Lease]:  # fmt: skip
        row, patience = PREFIX + checked_name("lease", name), checked_wait(wait)
        checked_duration("ttl", ttl, least=self._shortest, most=_LONGEST)
        if max_runtime is not None:
            checked_duration("max_runtime", max_runtime, least=timedelta(0), most=timedelta.max)
        deadline = self._clock.monotonic() + patience
        self._waiting += 1
        try:
            while True:
                away: Unavailable | None = None
                taking = self._keeper.taking(row, ttl=ttl, on_lost=on_lost, loop=loop, max_runtime=max_runtime)
                try:
                    taken = yield taking
                except Unavailable as error:
                    away, taken = error, []
                except BaseException:
                    taking.add_done_callback(self._keeper.give_back)
                    raise
                if taken:
                    lease: Lease = taken[0]
                    return lease
                left = deadline - self._clock.monotonic()
                pause = next_look(left=left, crowd=self._waiting, chance=self._chance())
                if pause is None:
                    raise away or (yield from self._held(row, name, patience))
                yield pause
        finally:
            self._waiting -= 1

    def _held(self, row: str, name: str, patience: float) -> Steps[LeaseHeld]:
        """The error that says who has it, as far as the database can tell."""
        try:
            holder = store.held_by((yield self._keeper.asking(row)))
        except Unavailable:
            holder = None
        by = "another"
        if holder is not None:
            who = "this process" if holder.id == self._keeper.holder else f"process {holder.id}"
            by = f"{who} until {holder.until:%Y-%m-%d %H:%M:%S} UTC unless renewed (token {holder.token})"
        waited = f"; waited {patience:g} s" if patience else ""
        return LeaseHeld("PR402", f"the lease {name!r} is held by {by}{waited}; try later, or give a longer wait")

    def _releasing(self, lease: Lease) -> Steps[None]:
        try:
            yield self._keeper.releasing(lease)
        except Unavailable:  # The keeper was stopped: it runs out by itself.
            return


async def _awaited(steps: Steps[T]) -> T:
    """Take `steps` by awaiting them; cancellation leaves what another thread does to its end there."""
    try:
        step = next(steps)
        while True:
            try:
                # A sleep, since nobody tells of another process's release.
                waiting: Awaitable[Any] = asyncio.sleep(step) if isinstance(step, float) else shielded(step)
                value = await waiting
            except BaseException as error:  # noqa: BLE001 - the pipeline decides, cancellation included
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as end:
        done: T = end.value
        return done
    finally:
        steps.close()


def _blocking(steps: Steps[T]) -> T:
    """Take `steps` by blocking this thread."""
    try:
        step = next(steps)
        while True:
            try:
                value = _result(step)
            except BaseException as error:  # noqa: BLE001 - the pipeline decides, KeyboardInterrupt included
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as end:
        done: T = end.value
        return done
    finally:
        steps.close()


def _result(step: concurrent.futures.Future[Any] | float) -> Any:
    if isinstance(step, float):
        time.sleep(step)  # Nobody tells of another process's release.
        return None
    try:
        return step.result()
    except concurrent.futures.CancelledError:
        raise Unavailable("PR301", "the lease keeper was stopped before it could answer") from None


def _step(future: concurrent.futures.Future[None]) -> Steps[None]:
    yield future


def _cut(held: SyncLease, also: Callable[[], None] | None) -> None:
    held.cut()
    if also is not None:
        also()


def refuse_loop() -> None:
    """Refuse to block where an event loop runs.

    Raises:
        UsageError: PR107, one runs on this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "PR107", "a lease for `def` code would block this thread's event loop; use the form with `async with`"
    )
