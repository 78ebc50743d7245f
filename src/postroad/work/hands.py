"""The rows that a claimer has in hand: they run, and stay until their outcome is in the table."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from postroad.errors import LeaseLost, Unavailable
from postroad.failures import Rules, classify, spent
from postroad.signals.catalog import JobQuarantined, LateWriteRefused, TaskFailed
from postroad.work import store
from postroad.work.ending import Became
from postroad.work.lane import InHand
from postroad.work.running import Finish
from postroad.work.sweeper import at_once
from postroad.work.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroad.clock import Clock
    from postroad.leases import Lease
    from postroad.owner import Owner
    from postroad.signals import Signals
    from postroad.sql.manager import Manager
    from postroad.work.lane import Lane
    from postroad.work.settings import WorkSettings
    from postroad.work.store import ClaimedRow

_RULES: Final = Rules()
_SETTLED: Final = frozenset({"ok", "failed", "cancelled"})


class Hands:
    """Runs claimed rows, each by a task of its own.

    A task ends with its row's function; the ends of jobs are written together after that, and until then the row is
    in hand. A lost lease does not stop their writing: each is fenced by its token.
    """

    def __init__(
        self, manager: Manager, lanes: Mapping[str, Lane], *, owner: Owner, signals: Signals, clock: Clock,
        settings: WorkSettings, then: Callable[[], None],
    ) -> None:  # fmt: skip
        """Nothing is in hand; `then` is called whenever rows have left, once for all that left together."""
        self._manager = manager
        self._lanes = lanes
        self._owner = owner
        self._signals = signals
        self._clock = clock
        self._settings = settings
        self._tally = Tally(signals, then=then)
        self.settled = 0
        """How many rows had an outcome here: ok, failed or cancelled."""
        for lane in lanes.values():
            if lane.jobs is not None:
                lane.jobs.begin = partial(self._begin, lane)
                lane.jobs.hungry = then

    @property
    def rows(self) -> list[InHand]:
        """All that is in hand."""
        return [held for lane in self._lanes.values() for held in lane.in_hand.values()]

    def take(self, lane: Lane, lease: Lease, rows: Sequence[ClaimedRow]) -> None:
        """Run `rows`, claimed under `lease`: at once, or as soon as their queue of jobs has a slot for each."""
        for row in rows:
            lane.take(InHand(row, lease))
        if lane.jobs is not None:
            lane.jobs.accept(rows)
            return
        for row in rows:
            self._begin(lane, row.token)

    def _begin(self, lane: Lane, token: int) -> asyncio.Task[None]:
        held = lane.in_hand[token]
        held.task = self._owner.task(self._run(lane, held), name=f"work:{lane.queue}:{held.row.id}")
        held.task.add_done_callback(partial(self._left, lane, held))
        return held.task

    def _left(self, lane: Lane, held: InHand, task: asyncio.Task[None]) -> None:
        """A task that was cancelled before its first step has settled nothing by itself."""
        if task.cancelled() and held.row.token in lane.in_hand:
            if lane.jobs is not None:
                lane.jobs.leave(held.row.token)
            self.settle(lane, held.row, "interrupted" if held.lease.held else "lease_lost")

    async def _run(self, lane: Lane, held: InHand) -> None:
        row, began = held.row, self._clock.monotonic()
        result: str | Finish = "interrupted"
        try:
            result = await lane.handler.run(row) or "ok"
        except LeaseLost:
            result = "lease_lost"
        except Unavailable:
            result = "interrupted"  # the repair gives it back, uncharged, once the database answers
        except asyncio.CancelledError:
            result = "interrupted" if held.lease.held else "lease_lost"
            raise
        except Exception as error:  # noqa: BLE001 - whatever a handler raises concerns its row alone
            result = "failed"
            await self._put_off(lane, row, error)
        finally:
            held.taken = self._clock.monotonic() - began
            if lane.jobs is not None:
                lane.jobs.took(held.taken)
            if lane.jobs is not None and isinstance(result, Finish):
                held.ending = result
                lane.jobs.put(result, partial(self._written, lane, held))
            else:
                self.settle(lane, row, str(result), held.taken)

    def _written(self, lane: Lane, held: InHand, error: Exception | None) -> None:
        """The end of a job is in the table, or was refused there."""
        ending, held.ending = held.ending, None
        if error is None:
            cancelled = ending is not None and ending.outcome == Became.CANCELLED
            self.settle(lane, held.row, "cancelled" if cancelled else "ok", held.taken)
        elif isinstance(error, LeaseLost):
            self.settle(lane, held.row, "lease_lost", held.taken)
        else:
            held.task = self._owner.task(self._unwritten(lane, held, error), name=f"work:{lane.queue}:{held.row.id}")

    async def _unwritten(self, lane: Lane, held: InHand, error: Exception) -> None:
        try:
            await self._put_off(lane, held.row, error)
        finally:
            self.settle(lane, held.row, "failed", held.taken)

    def settle(self, lane: Lane, row: ClaimedRow, result: str, taken: float = 0.0) -> None:
        """A row has its outcome, and is no longer in hand."""
        lane.settled(row.token)
        self.settled += result in _SETTLED
        self._tally.add(row.queue, row.kind, result, "" if lane.jobs is None else lane.jobs.label(row), seconds=taken)

    def withdraw(self, result: str) -> None:
        """Begin nothing that still waits for its slot; the caller, or whoever sweeps, gives it back."""
        for lane in self._lanes.values():
            for row in () if lane.jobs is None else lane.jobs.withdrawn(patience=0):
                self.settle(lane, row, result)

    async def _put_off(self, lane: Lane, row: ClaimedRow, error: Exception) -> None:
        """What broke is not the author's function, so that its budget says nothing: ours ends in quarantine."""
        schema, attempt, backoff = self._manager.schema, row.attempt + 1, self._settings.backoff
        verdict = classify(error, rules=_RULES, attempt=attempt)
        over = backoff.spent(attempt, age=row.age)
        if over:
            verdict = spent(verdict, attempt)
            work = store.quarantine_claimed(schema, row.id, row.token, verdict=verdict, attempt=attempt)
        else:
            wait = backoff.delay(attempt, chance=(row.token * 0x9E37_79B1 & 0xFFFF) / 0x10000)
            work = store.delay_again(schema, row.id, row.token, verdict=verdict, attempt=attempt, run_in=wait)
        try:
            ours = await at_once(self._manager, work)
        except Unavailable:
            return
        if not ours:
            self._signals.emit(LateWriteRefused("work", 1))
        elif over and lane.jobs is not None:
            kind, job = str(verdict.failure), lane.jobs.label(row)
            self._signals.emit(JobQuarantined(row.queue, job, kind, verdict.code, verdict.reason))
        self._signals.emit(TaskFailed(f"work:{row.queue}", verdict.error_type, verdict.reason))

    def leave_unwritten(self) -> None:
        """Ends that the database has not taken by now are given back with their rows."""
        for lane in self._lanes.values():
            if lane.jobs is not None:
                lane.jobs.forget()
                for held in [held for held in lane.in_hand.values() if held.ending is not None]:
                    self.settle(lane, held.row, "interrupted")
        self._tally.tell()
