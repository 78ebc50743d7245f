"""Which messages of a consumer run and which wait: never two of one lane at once in a process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroad.consume.pipeline import Arrival


class Lanes:
    """A queue that holds back what shares a lane with something in hand, in the order in which it came.

    A message without a lane waits for nobody. For one event loop; nothing here waits but `next` and `hold`.
    """

    def __init__(self) -> None:
        """Nothing waits."""
        self._ready: asyncio.Queue[Arrival | None] = asyncio.Queue()
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
        self._ready.put_nowait(arrival)

    def again(self, arrival: Arrival) -> None:
        """Let `arrival`, which ran and still has its lane, run once more."""
        self._ready.put_nowait(arrival)

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
                self._ready.put_nowait(following)
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
        taken = [arrival for arrival in ready if arrival is not None]
        started = [arrival.lane for arrival in taken]
        for waiting in self._lanes.values():
            taken += [each for each in waiting if not isinstance(each, asyncio.Future)]
            turns = [each for each in waiting if isinstance(each, asyncio.Future)]
            waiting.clear()
            waiting.extend(turns)
        for lane in started:
            self.release(lane)
        self.end(len(ready) - len(started))
        return taken

    def end(self, slots: int) -> None:
        """End `slots` slots, each after what it has in hand."""
        for _ in range(slots):
            self._ready.put_nowait(None)
