"""The keeper: this process's leases, asked for from any loop and renewed on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from postroad.errors import Unavailable, UsageError
from postroad.leases import store
from postroad.leases.heart import Heart
from postroad.leases.lease import Lease, checked_ttl

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.owner import OwnedThread, Owner
    from postroad.signals import Signals
    from postroad.sql import Rows

T = TypeVar("T")


class Keeper:
    """All leases of one process, on one heartbeat thread with its own loop and its own direct connection.

    A blocked event loop or an exhausted pool delays no renewal. Every method may be awaited on any loop; callbacks
    run on the loop that acquired. While the database is away, leases run out locally, callbacks tell of it, and the
    thread keeps trying: afterwards new leases can be had.
    """

    def __init__(self, url: str, *, schema: str, holder: UUID, clock: Clock, signals: Signals, owner: Owner) -> None:
        """Keep leases at the database `url` (direct, never through a transaction pooler).

        `holder` must be new with every start of a process: with a host's name two processes could renew one row.
        """
        self.holder = holder
        self._schema = schema
        self._clock = clock
        self._owner = owner
        self._thread: OwnedThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heart = Heart(url, schema=schema, holder=holder, clock=clock, signals=signals)
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    async def start(self) -> None:
        """Start the thread; returns when its connection stands.

        Raises:
            AccessRefused: wrong password, role or database name.
            Unavailable: the database cannot be reached; the thread has ended.
            UsageError: it was started before.
        """
        if self._thread is not None:
            raise UsageError("PR101", "this lease keeper was started before; make a new one")
        self._thread = self._owner.thread(self._main, name="leases")
        await shielded(self._opened)

    async def stop(self) -> None:
        """End the thread. Leases that were not released are no longer trusted here and run out in the database."""
        if self._thread is None:
            return
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._heart.stop)
        await shielded(self._ended)
        self._thread.join(1.0)

    @property
    def beat_age(self) -> float:
        """Seconds since the thread last went round: above some seconds it hangs, and leases are about to run out."""
        return self._clock.monotonic() - self._heart.beat

    async def acquire_many(
        self, names: Sequence[str], *, ttl: timedelta, on_lost: Callable[[Lease], None],
        max_runtime: timedelta | None = None,
    ) -> list[Lease]:  # fmt: skip
        """Take those of `names` that are free or expired, for `ttl`; renewed until released or lost.

        `on_lost` is called once for each that is lost, on the loop of this call; `Lease.held` is False before that.
        After `max_runtime` it is lost, so that work that hangs does not hold a name for ever.
        A name that this keeper holds already is not given twice. Cancelled: what was taken meanwhile is released.
        A take that was committed without an answer runs out by itself.

        Raises:
            Unavailable: the database is away or too slow; nothing was taken.
            UsageError: `ttl` is too short to be renewed in time.
        """
        loop = asyncio.get_running_loop()
        taken = self._submit(
            self._heart.take(
                sorted(set(names)), ttl=checked_ttl(ttl), on_lost=on_lost, loop=loop, max_runtime=max_runtime
            )
        )
        try:
            return await shielded(taken)
        except asyncio.CancelledError:
            taken.add_done_callback(self.give_back)
            raise

    async def acquire(
        self, name: str, *, ttl: timedelta, on_lost: Callable[[Lease], None], max_runtime: timedelta | None = None
    ) -> Lease | None:
        """Take `name`, or None where somebody holds it; see `acquire_many`."""
        taken = await self.acquire_many([name], ttl=ttl, on_lost=on_lost, max_runtime=max_runtime)
        return taken[0] if taken else None

    def taking(
        self, name: str, *, ttl: timedelta, on_lost: Callable[[Lease], None],
        loop: asyncio.AbstractEventLoop | None = None, max_runtime: timedelta | None = None,
    ) -> concurrent.futures.Future[list[Lease]]:  # fmt: skip
        """`acquire` as a future, for whoever waits on a thread; what `give_back` is for, if he waits no longer.

        Without a `loop`, `on_lost` is called on the keeper's own thread, and must be quick. It is called when the
        keeper is stopped, too.
        """
        work = self._heart.take(
            [name], ttl=checked_ttl(ttl), on_lost=on_lost, loop=loop, max_runtime=max_runtime, told_at_stop=True
        )
        return self._submit(work)

    def releasing(self, lease: Lease) -> concurrent.futures.Future[None]:
        """`release_many` as a future."""
        return self._submit(self._heart.release([lease]))

    def forgetting(self, lease: Lease) -> concurrent.futures.Future[None]:
        """Renew and trust `lease` no longer, and leave its row alone: for whoever releases it in a transaction."""
        return self._submit(self._heart.forget([lease]))

    def asking(self, name: str) -> concurrent.futures.Future[Rows]:
        """Who holds `name` now; see `store.held_by`."""
        return self._submit(self._heart.fetch(store.look(self._schema, name)))

    async def release_many(self, leases: Sequence[Lease]) -> None:
        """Give `leases` up so that others may take them at once; call it only after their work has stopped.

        Lost ones are passed over. While the database is away they run out by themselves: nothing is raised for that.

        Raises:
            Unavailable: the keeper does not run.
        """
        await shielded(self._submit(self._heart.release(list(leases))))

    async def living(self, prefix: str) -> int:
        """How many leases whose name starts with `prefix` are held now, by anybody.

        Raises:
            Unavailable: the database is away or too slow.
        """
        rows = await shielded(self._submit(self._heart.fetch(store.living_statement(self._schema, prefix))))
        return int(rows[0]["count"])

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._loop is None:
            work.close()
            raise Unavailable("PR301", "the lease keeper does not run; start it first, and ask nothing after its stop")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def give_back(self, taken: concurrent.futures.Future[list[Lease]]) -> None:
        """Release what was taken for somebody who no longer waits; a callback of the future."""
        if taken.cancelled() or taken.exception() is not None or self._loop is None:
            return
        self._submit(self._heart.release(taken.result()))

    async def _main(self) -> None:
        try:
            await self._heart.open()
        except BaseException as error:  # noqa: BLE001 - it is start() that raises it
            self._ended.set_result(None)
            self._opened.set_exception(error)
            return
        self._loop = asyncio.get_running_loop()
        self._opened.set_result(None)
        try:
            await self._heart.run()
        finally:
            self._loop = None
            self._ended.set_result(None)


async def shielded(future: concurrent.futures.Future[T]) -> T:
    """Wait for what another thread does; being cancelled does not cancel it there, since it may be half done."""
    answer = asyncio.wrap_future(future)
    answer.add_done_callback(_read)
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        if future.cancelled():
            raise Unavailable("PR301", "the lease keeper was stopped before it could answer") from None
        raise


def _read(answer: asyncio.Future[Any]) -> None:
    """Look at its error, so that the loop does not report one that nobody awaits any more."""
    if not answer.cancelled():
        answer.exception()
