"""What a claimer does about jobs once a second: hears operators, ends what is stuck, gives back what waits too long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from postroad.errors import LeaseLost, Unavailable
from postroad.signals.catalog import QueuePaused, QueueResumed
from postroad.work import store
from postroad.work.running import asked
from postroad.work.sweeper import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from postroad.clock import Clock
    from postroad.owner import Owner
    from postroad.signals import Signals
    from postroad.sql.manager import Manager
    from postroad.work.ending import Ending
    from postroad.work.jobs import JobQueue
    from postroad.work.lane import Lane
    from postroad.work.store import ClaimedRow


class Chores:
    """Looks after the lanes of one claimer. What operators ask is one statement for the whole process."""

    def __init__(
        self, manager: Manager, lanes: Mapping[str, Lane], *, owner: Owner, signals: Signals, clock: Clock,
        settle: Callable[[Lane, ClaimedRow, str], None],
    ) -> None:  # fmt: skip
        """Nothing is heard yet; `settle` hears which rows leave a lane here, and with what result."""
        self._manager = manager
        self._lanes = lanes
        self._owner = owner
        self._signals = signals
        self._clock = clock
        self._settle = settle
        self._heard = False
        self._endings: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Hear operators once, before anything is claimed."""
        if not self._heard:
            await self._hear()

    async def look(self) -> None:
        """Do all of it once."""
        now = self._clock.monotonic()
        for lane in self._lanes.values():
            lane.relent(now)
            if lane.jobs is not None:
                self._end_overdue(lane, lane.jobs)
                await self._give_back(lane, lane.jobs.withdrawn())
                if lane.jobs.waits:
                    self._start(lane.jobs.look_for_dependencies(), name=f"work:{lane.queue}:dependencies")
        await self._hear()

    def close(self) -> None:
        """Begin nothing any more: what waits for a slot is given back."""
        for lane in self._lanes.values():
            if lane.jobs is not None:
                rows = lane.jobs.withdrawn(patience=0)
                self._start(self._give_back(lane, rows), name=f"work:{lane.queue}:give-back")

    async def _hear(self) -> None:
        workers = {held.worker for lane in self._lanes.values() for held in lane.in_hand.values()}
        found = await at_once(
            self._manager, asked(self._manager.schema, workers=sorted(workers), queues=sorted(self._lanes))
        )
        self._heard = True
        for queue, lane in self._lanes.items():
            forbidden = queue in found.paused
            if forbidden is not lane.forbidden:
                lane.forbidden = forbidden
                self._signals.emit(QueuePaused(queue) if forbidden else QueueResumed(queue))
                lane.rewind()
        for lane in self._lanes.values():
            if lane.jobs is not None:
                for token in lane.in_hand.keys() & found.cancelled.keys():
                    lane.jobs.cancel(token, found.cancelled[token])

    async def _give_back(self, lane: Lane, rows: Sequence[ClaimedRow]) -> None:
        """Give back what no longer waits for a slot; the rows stay in hand until the table has them again."""
        if not rows:
            return
        try:
            pairs = [(row.id, row.token) for row in rows]
            await at_once(self._manager, store.give_back(self._manager.schema, pairs))
        finally:  # Where that failed they are strays from now on.
            for row in rows:
                self._settle(lane, row, "interrupted")

    def _end_overdue(self, lane: Lane, jobs: JobQueue) -> None:
        for row, ending in jobs.overdue():
            self._start(self._end(lane, jobs, row, ending), name=f"work:{lane.queue}:{row.id}:end")

    async def _end(self, lane: Lane, jobs: JobQueue, row: ClaimedRow, ending: Ending) -> None:
        try:
            await jobs.settle(row, ending)
        except (LeaseLost, Unavailable):
            pass  # Whoever has it runs it; a stray of ours is given back by the repair.
        finally:
            lane.settled(row.token)

    def _start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = self._owner.task(work, name=name)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
