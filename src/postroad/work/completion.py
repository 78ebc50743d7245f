"""Ends of jobs written together: one statement for all that ended within a few milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from postroad.clock import seconds
from postroad.errors import LeaseLost, Unavailable
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
_MOST: Final = 500


@dataclass(slots=True)
class _End:
    finish: Finish
    told: Callable[[Exception | None], None]
    tried: bool = False


class Completions:
    """Writes the ends of all jobs of a process, in batches, one after the other.

    Each end is fenced by the token of its claim: whoever lost the row changes nothing, and is counted. While the
    database is away an end waits, until it is forgotten: what a job has done is not done again for a short outage. A
    process that is killed before the batch is written leaves its jobs running; they run again.
    """

    def __init__(self, manager: Manager, *, owner: Owner, signals: Signals, clock: Clock) -> None:
        """Nothing has ended."""
        self._manager = manager
        self._owner = owner
        self._signals = signals
        self._clock = clock
        self._ends: list[_End] = []
        self._batch: list[_End] = []
        self._writing = False

    def put(self, finish: Finish, told: Callable[[Exception | None], None]) -> None:
        """Write that a row has ended; `told` hears None, `LeaseLost` if another has the row, or another error."""
        self._ends.append(_End(finish, told))
        if not self._writing:
            self._writing = True
            self._owner.task(self._write_all(), name="work:completions")

    def forget(self) -> None:
        """Leave out whatever is not written yet, and tell nobody: the process lets go."""
        self._ends, self._batch = [], []

    async def _write_all(self) -> None:
        try:
            while self._ends:
                if len(self._ends) < _MOST:
                    await asyncio.sleep(LINGER.total_seconds())  # so that ends go together
                self._batch, self._ends = self._ends[:_MOST], self._ends[_MOST:]
                await self._write()
        finally:
            self._writing = False

    async def _write(self) -> None:
        tries = 0
        while self._batch:
            ends = [end.finish for end in self._batch]
            try:
                ours = await at_once(self._manager, finish_many(self._manager.schema, ends))
            except Unavailable:
                tries += 1
                for end in self._batch:
                    end.tried = True
                chance = (self._clock.new_id().int & 0xFFFF) / 0x10000
                wait = full_jitter(tries, first=seconds(0.1), most=seconds(1), chance=chance)
                await asyncio.sleep(0.05 + wait.total_seconds())  # the backoff between tries
            except Exception as error:  # noqa: BLE001 - whoever put them judges it
                batch, self._batch = self._batch, []
                for end in batch:
                    end.told(error)
            else:
                self._tell(ours)

    def _tell(self, ours: frozenset[int]) -> None:
        batch, self._batch = self._batch, []
        late = 0
        for end in batch:
            if end.finish.id in ours:
                end.told(None)
                continue
            # The answer of the first try may have been lost after its commit: then nobody knows whose the row was.
            late += not end.tried
            end.told(gone(end.finish.id))
        if late:
            self._signals.emit(LateWriteRefused("work", late))


def gone(row: int) -> LeaseLost:
    """The error of a run whose row is another's by now."""
    return LeaseLost("PR401", f"row {row} of work was claimed by another worker; this run changes nothing")
