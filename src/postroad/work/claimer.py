"""The claimer: takes rows of `work` under a lease, runs them, and stops the moment the lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from postroad.clock import seconds
from postroad.errors import Unavailable, UsageError
from postroad.retry import full_jitter
from postroad.signals.catalog import WorkClaimed
from postroad.work import store
from postroad.work.chores import Chores
from postroad.work.hands import Hands
from postroad.work.lane import Handler, Lane
from postroad.work.running import within_fleet
from postroad.work.settings import WorkSettings
from postroad.work.sweeper import Sweeper, at_once, repeatedly, report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.clock import Clock
    from postroad.leases import Keeper, Lease
    from postroad.owner import Owner, Readiness
    from postroad.signals import Signals
    from postroad.sql import Pipeline
    from postroad.sql.manager import Manager
    from postroad.work.jobs import JobQueue
    from postroad.work.store import ClaimedRow


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of the rows that a claimer took: settled, given back uncharged, still running when it ended."""

    settled: int
    given_back: int
    abandoned: int


class Claimer:
    """The service that runs work: claims up to the free slots of each queue and hands the rows to its handler.

    Every claim is fenced by a token of its own, and all of a process's claims stand under one lease, ``worker:<id>``.
    A killed process's rows are taken over within the lease plus one sweep, uncharged. When the lease is lost every
    handler is cancelled at once and nothing is claimed until a new lease, under a new name, is had; what the table
    still has under the old name is given back, before anybody takes this process for dead. While the database is
    away nothing is charged, and it keeps trying.

    Told to stop, it claims nothing more and lets what runs come to its end; cancelled, it cancels the handlers, gives
    their rows back uncharged, and releases the lease unless a handler would not stop.
    """

    name = "work"

    def __init__(
        self, manager: Manager, keeper: Keeper, *, handlers: Mapping[str, Handler], signals: Signals, clock: Clock,
        owner: Owner, settings: WorkSettings | None = None, jobs: Sequence[JobQueue] = (),
    ) -> None:  # fmt: skip
        """Run `handlers`, by queue, and `jobs` on `manager`'s database and schema.

        Raises:
            UsageError: a handler stands under another queue's name, or has no slots.
        """
        for queue, handler in handlers.items():
            if handler.queue != queue or handler.slots < 1:
                raise UsageError("PR107", f"the handler of queue {queue!r} names {handler.queue!r} or has no slots")
        self._manager = manager
        self._schema = manager.schema
        self._keeper = keeper
        self._signals = signals
        self._clock = clock
        self._owner = owner
        self._settings = settings or WorkSettings()
        self._lanes = {queue: Lane(handler, self._settings) for queue, handler in handlers.items()}
        self._lanes |= {each.queue: Lane(each, self._settings, jobs=each) for each in jobs}
        self._lease: Lease | None = None
        self._former: set[str] = set()  # leases that were lost, until no row runs under them
        self._claiming = asyncio.Lock()
        self._woken = asyncio.Event()
        self._given_back = self._abandoned = 0
        self._draining = False
        self._hands = Hands(
            manager, self._lanes, owner=owner, signals=signals, clock=clock, settings=self._settings, then=self._look
        )  # fmt: skip
        self._chores = Chores(
            manager, self._lanes, owner=owner, signals=signals, clock=clock, settle=self._hands.settle
        )  # fmt: skip
        self._sweeper = Sweeper(
            manager, self._lanes, signals=signals, clock=clock, settings=self._settings, wake=self._woken.set,
            first=self._first,
        )  # fmt: skip

    # --- what others may say ------------------------------------------------------------------------------------

    def wake(self, queue: str) -> None:
        """A row of `queue` was just committed in this process: look at once. Others' queues are passed over."""
        if lane := self._lanes.get(queue):
            lane.hurry()
            self._woken.set()

    def pause(self, queue: str) -> None:
        """Claim nothing of `queue` until `resume`; what runs goes on."""
        self._lanes[queue].paused = True

    def resume(self, queue: str) -> None:
        """Claim from `queue` again."""
        self._lanes[queue].paused = False
        self._lanes[queue].rewind()
        self._woken.set()

    def receipt(self) -> Receipt:
        """What became of all rows so far; final once `run` has ended."""
        return Receipt(self._hands.settled, self._given_back, self._abandoned)

    # --- the service --------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`."""
        times = self._settings
        keepers = [
            self._owner.task(repeatedly(act, name=name, every=every, signals=self._signals), name=name)
            for name, act, every in (
                ("work:sweep", self._sweeper.sweep, times.sweep),
                ("work:repair", self.repair, times.repair),
            )
        ]
        try:
            await self._serve(stop, ready)
            await self._stop_tasks(keepers)
            await self._drain()
        finally:
            ending = self._owner.task(self._let_go(keepers), name="work:let-go")
            await asyncio.shield(ending)

    async def _serve(self, stop: asyncio.Event, ready: Readiness) -> None:
        tries = 0
        while not stop.is_set():
            try:
                if self._former and not any(held.worker in self._former for held in self._hands.rows):
                    await self._give_back_former()
                await self._chores.listen()
                lease = await self._enlisted()
                if lease is not None:
                    await self._round(stop, lease)
            except Unavailable as error:
                tries += 1
                ready.down(error.code)
                await self._pause(stop, tries)
                continue
            except Exception as error:  # noqa: BLE001 - what runs goes on, whatever the database says to this
                tries += 1
                report(error, name="work", signals=self._signals)
                await self._pause(stop, tries)
                continue
            if lease is not None:
                tries = 0
                ready.up()
            await self._rest()

    async def _pause(self, stop: asyncio.Event, tries: int) -> None:
        chance = (self._clock.new_id().int & 0xFFFF) / 0x10000
        longest = full_jitter(tries, first=seconds(0.2), most=seconds(2), chance=chance)
        try:
            async with asyncio.timeout(0.05 + longest.total_seconds()):
                await stop.wait()
        except TimeoutError:
            return

    async def _rest(self) -> None:
        """Wait until a lane is due or something happened; never longer than an idle look, since `stop` may be set."""
        now = self._clock.monotonic()
        longest = self._settings.idle.total_seconds()
        wait = min([longest, *(lane.look_in(now) for lane in self._lanes.values())])
        if wait > 0:
            try:
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            except TimeoutError:
                pass
        self._woken.clear()

    # --- the lease ----------------------------------------------------------------------------------------------

    async def _enlisted(self) -> Lease | None:
        """Our lease; a new one under a new name where there is none or it is lost: the old name's rows are not ours."""
        if self._lease is None or not self._lease.held:
            name = f"worker:{self._clock.new_id()}"
            self._lease = await self._keeper.acquire(name, ttl=self._settings.lease, on_lost=self._lost)
        return self._lease

    def _lost(self, lease: Lease) -> None:
        """Cancel whatever runs under `lease`, at once; its rows are given back, or taken by whoever sweeps first."""
        self._former.add(lease.name)
        self._hands.withdraw("lease_lost")
        for held in self._hands.rows:
            if held.lease is lease and held.task is not None:
                held.task.cancel("the worker's lease was lost")
        self._woken.set()

    # --- claim and run ------------------------------------------------------------------------------------------

    async def _round(self, stop: asyncio.Event, lease: Lease) -> None:
        for lane in self._lanes.values():
            if lane.due(self._clock.monotonic()) and not stop.is_set() and lease.held:
                async with self._claiming:  # what is claimed is in hand before anybody compares
                    rows = await self._claim(lane, lease)
                    if stop.is_set() or not lease.held:
                        await self._return(rows)
                        return
                    self._start(lane, lease, rows)

    async def _claim(self, lane: Lane, lease: Lease) -> list[ClaimedRow]:
        """Claim for one lane; what fails is that lane's alone, and what the table gave to nobody the repair returns."""
        try:
            return await self._claim_next(lane, lease)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the database says to this claim
            lane.failed(self._clock.monotonic())
            report(error, name=f"work:{lane.queue}", signals=self._signals)
            return []

    async def _claim_next(self, lane: Lane, lease: Lease) -> list[ClaimedRow]:
        began, wanted = self._clock.monotonic(), lane.wanted
        lane.looks()
        if lane.suspects:
            suspect = partial(store.claim_suspect, self._schema, queue=lane.queue, worker=lease.name)
            rows = await self._claimed(lane, 1, lambda _: suspect())
            lane.claimed_suspect(found=bool(rows), ended=self._clock.monotonic())
            return rows
        after = lane.after(began)
        claim = partial(store.claim, self._schema, queue=lane.queue, worker=lease.name, after=after)
        rows = await self._claimed(lane, wanted, lambda limit: claim(limit=limit))
        lane.claimed(rows, wanted=wanted, front=after is None, began=began, ended=self._clock.monotonic())
        return rows

    async def _claimed(
        self, lane: Lane, wanted: int, claim: Callable[[int], Pipeline[list[ClaimedRow]]]
    ) -> list[ClaimedRow]:
        most = None if lane.jobs is None else lane.jobs.fleet
        if most is None:
            return await at_once(self._manager, claim(wanted))
        work = within_fleet(self._schema, lane.queue, most=most, wanted=wanted, claim=claim)
        return await self._manager.run(work)

    async def _return(self, rows: Sequence[ClaimedRow]) -> None:
        if rows:
            pairs = [(row.id, row.token) for row in rows]
            count = await at_once(self._manager, store.give_back(self._schema, pairs))
            self._given_back += count

    def _start(self, lane: Lane, lease: Lease, rows: Sequence[ClaimedRow]) -> None:
        if not rows:
            return
        self._signals.emit(WorkClaimed(lane.queue, len(rows)))
        self._hands.take(lane, lease, rows)

    def _look(self) -> None:
        """Rows have left: whoever waits for a free slot, or for the last of them, looks again."""
        now = self._clock.monotonic()
        if self._draining or any(lane.due(now) for lane in self._lanes.values()):
            self._woken.set()

    # --- repair and end -----------------------------------------------------------------------------------------

    async def _first(self) -> None:
        """What goes before each sweep."""
        await self._give_back_former()
        await self._chores.look()

    async def repair(self) -> bool:
        """Give back the rows that run under our lease in the table but not here; False, since one look is enough."""
        async with self._claiming:
            if self._lease is not None and self._lease.held:
                await self._give_back_strays(self._lease.name)
        return False

    async def _give_back_former(self) -> None:
        """Give back what runs in the table under leases that we lost: we live, and it did not kill us.

        What a handler that ignores its cancellation still runs is left to the recovery.
        """
        if not self._former:
            return
        async with self._claiming:
            for name in tuple(self._former):
                running = any(held.worker == name for held in self._hands.rows)
                await self._give_back_strays(name)
                if not running:
                    self._former.discard(name)

    async def _give_back_strays(self, worker: str) -> None:
        rows = await at_once(self._manager, store.held_by(self._schema, worker))
        here = {held.row.token for held in self._hands.rows}
        strays = [pair for pair in rows if pair[1] not in here]
        count = await at_once(self._manager, store.give_back(self._schema, strays)) if strays else 0
        if count:
            for lane in self._lanes.values():
                lane.rewind()
            self._woken.set()

    async def _drain(self) -> None:
        self._draining = True
        self._chores.close()
        while self._hands.rows:
            self._woken.clear()
            await self._woken.wait()

    async def _stop_tasks(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._settings.let_go.total_seconds())

    async def _let_go(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        """Cancel, give back, release; each step bounded. What is not done is recovered when the lease runs out."""
        self._hands.withdraw("interrupted")
        await self._stop_tasks([*keepers, *(held.task for held in self._hands.rows if held.task is not None)])
        self._hands.leave_unwritten()
        stuck = self._hands.rows
        self._abandoned += len(stuck)
        lease, self._lease = self._lease, None
        if lease is None or not lease.held:
            return
        try:
            async with asyncio.timeout(self._settings.let_go.total_seconds()):
                rows = await at_once(self._manager, store.held_by(self._schema, lease.name))
                running = {held.row.token for held in stuck}
                unfinished = [pair for pair in rows if pair[1] not in running]
                count = await at_once(self._manager, store.give_back(self._schema, unfinished)) if unfinished else 0
                self._given_back += count
                if not stuck:
                    await self._keeper.release_many([lease])
        except (Unavailable, TimeoutError):
            return
