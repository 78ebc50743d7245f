"""Which messages of a consumer run and which wait: never two of one lane at once in a process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.consume.arrival import Arrival


class Lanes:
    """A queue that holds back what shares a lane with something in hand, in the order in which it came.

    A message without a lane waits for nobody. What may run goes to the slots one by one (`next`), or several at once
    to the group (`batch`) where `joins` says so; those are of distinct lanes. For one event loop; nothing here waits
    but `next`, `batch` and `hold`.
    """

    def __init__(self, joins: Callable[[Arrival], bool] | None = None) -> None:
        """Nothing waits."""
        self._joins = joins
        self._ready: asyncio.Queue[Arrival | None] = asyncio.Queue()
        self._group: deque[Arrival] = deque()
        self._filled = asyncio.Event()
        self._ended = False
        self._lanes: dict[object, deque[Arrival | asyncio.Future[None]]] = {}

    def add(self, arrival: Arrival) -> None:
        """Let `arrival` run as soon as its lane is free."""
        lane = arrival.lane
        if lane is not None:
            waiting = self._lanes.get(lane)
            if waiting is not None:
                waiting.append(arrival)
                return
            self._lanes[lane] = deque()
        self.again(arrival)

    def again(self, arrival: Arrival) -> None:
        """Let `arrival`, which has its lane, run (once more)."""
        if self._joins is None or not self._joins(arrival):
            self._ready.put_nowait(arrival)
            return
        self._group.append(arrival)
        self._filled.set()

    def alone(self, arrival: Arrival) -> None:
        """Let `arrival`, which has its lane, run in a transaction of its own."""
        self._ready.put_nowait(arrival)

    def onward(self, arrivals: Sequence[Arrival]) -> None:
        """Let `arrivals`, which a group took and did not reach, be the first of the next one."""
        self._group.extendleft(reversed(arrivals))
        self._filled.set()

    def ungroup(self) -> None:
        """Give to the slots whatever waits for the group."""
        while self._group:
            self._ready.put_nowait(self._group.popleft())

    async def batch(self, most: Callable[[], int]) -> list[Arrival]:
        """Wait for something to wait for the group, and take at most `most()`; empty once the group is to end."""
        while not self._group:
            if self._ended:
                return []
            self._filled.clear()
            await self._filled.wait()
        return [self._group.popleft() for _ in range(min(most(), len(self._group)))]

    async def next(self) -> Arrival | None:
        """The next message to run; None ends the slot that asked. Whoever gets one calls `release` after it."""
        return await self._ready.get()

    def release(self, lane: object) -> None:
        """What ran in `lane` has its outcome: the next one may run."""
        if lane is None:
            return
        waiting = self._lanes[lane]
        while waiting:
            following = waiting.popleft()
            if not isinstance(following, asyncio.Future):
                self.again(following)
                return
            if not following.done():
                following.set_result(None)
                return
        del self._lanes[lane]

    @asynccontextmanager
    async def hold(self, lane: object) -> AsyncIterator[None]:
        """Wait for `lane`, and keep it for the block."""
        if lane is not None:
            await self._enter(lane)
        try:
            yield
        finally:
            self.release(lane)

    async def _enter(self, lane: object) -> None:
        waiting = self._lanes.get(lane)
        if waiting is None:
            self._lanes[lane] = deque()
            return
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(lane)
            raise

    def clear(self) -> list[Arrival]:
        """Take out everything that does not run yet; what holds a lane keeps it."""
        ready = [self._ready.get_nowait() for _ in range(self._ready.qsize())]
        taken = [*self._group, *(arrival for arrival in ready if arrival is not None)]
        ends = len(ready) + len(self._group) - len(taken)
        self._group.clear()
        started = [arrival.lane for arrival in taken]
        for waiting in self._lanes.values():
            taken += [each for each in waiting if not isinstance(each, asyncio.Future)]
            turns = [each for each in waiting if isinstance(each, asyncio.Future)]
            waiting.clear()
            waiting.extend(turns)
        for lane in started:
            self.release(lane)
        self._end_slots(ends)
        return taken

    def begin(self) -> None:
        """The group may take again."""
        self._ended = False

    def end(self, slots: int) -> None:
        """End the group and `slots` slots, each after what it has in hand."""
        self._ended = True
        self._filled.set()
        self._end_slots(slots)

    def _end_slots(self, slots: int) -> None:
        for _ in range(slots):
            self._ready.put_nowait(None)
