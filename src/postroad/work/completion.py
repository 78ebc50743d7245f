"""Ends of jobs written together: one statement for all that ended within a few milliseconds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from postroad.clock import seconds
from postroad.errors import Unavailable
from postroad.retry import full_jitter
from postroad.signals.catalog import LateWriteRefused
from postroad.work.running import Finish, finish_many
from postroad.work.sweeper import at_once

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.owner import Owner
    from postroad.signals import Signals
    from postroad.sql.manager import Manager

LINGER: Final = seconds(0.003)
"""How long an end waits for others to go with it."""
_MOST: Final = 200


@dataclass(slots=True)
class _End:
    finish: Finish
    told: asyncio.Future[bool]
    tried: bool = False


class Completions:
    """Writes the ends of all jobs of a process, in batches, one after the other.

    Each end is fenced by the token of its claim: whoever lost the row changes nothing, and is counted. While the
    database is away an end waits, for as long as somebody waits for it: what a job has done is not done again for a
    short outage. A process that is killed before the batch is written leaves its jobs running; they run again.
    """

    def __init__(self, manager: Manager, *, owner: Owner, signals: Signals, clock: Clock) -> None:
        """Nothing has ended."""
        self._manager = manager
        self._owner = owner
        self._signals = signals
        self._clock = clock
        self._ends: list[_End] = []
        self._writing = False

    def put(self, finish: Finish) -> asyncio.Future[bool]:
        """Write that a row has ended; await it for whether the row was still ours. Cancel it to have it left out."""
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ends.append(_End(finish, told))
        if not self._writing:
            self._writing = True
            self._owner.task(self._write_all(), name="work:completions")
        return told

    async def _write_all(self) -> None:
        try:
            while self._ends:
                if len(self._ends) < _MOST:
                    await asyncio.sleep(LINGER.total_seconds())  # so that ends go together
                batch, self._ends = self._ends[:_MOST], self._ends[_MOST:]
                await self._write([end for end in batch if not end.told.done()])
        finally:
            self._writing = False

    async def _write(self, batch: list[_End]) -> None:
        tries = 0
        while batch:
            try:
                ours = await at_once(self._manager, finish_many(self._manager.schema, [end.finish for end in batch]))
            except Unavailable:
                tries += 1
                chance = (self._clock.new_id().int & 0xFFFF) / 0x10000
                wait = full_jitter(tries, first=seconds(0.1), most=seconds(1), chance=chance)
                await asyncio.sleep(0.05 + wait.total_seconds())  # the backoff between tries
                batch = [end for end in batch if not end.told.done()]
                for end in batch:
                    end.tried = True
            except Exception as error:  # noqa: BLE001 - whoever waits judges it
                _refuse(batch, error)
                return
            else:
                self._tell(batch, ours)
                return

    def _tell(self, batch: list[_End], ours: frozenset[int]) -> None:
        late = 0
        for end in batch:
            mine = end.finish.id in ours
            # The answer of the first try may have been lost after its commit: then nobody knows whose the row was.
            late += not (mine or end.tried)
            if not end.told.done():
                end.told.set_result(mine)
        if late:
            self._signals.emit(LateWriteRefused("work", late))


def _refuse(batch: list[_End], error: Exception) -> None:
    for end in batch:
        if not end.told.done():
            end.told.set_exception(error)
