"""What a claimer knows of one queue: its slots, where its claims got to, and when to look next. Pure."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from postroad.leases import Lease
    from postroad.work.jobs import JobQueue
    from postroad.work.running import Finish
    from postroad.work.settings import WorkSettings
    from postroad.work.store import ClaimedRow, Position

_MOST: Final = 300  # Rows of one claim: more slots are filled by the next, so that bodies stay few in memory.
_UNWRITTEN: Final = 1500  # Rows in hand beside those that run: beyond, their ends come first.
_PRIORITIES: Final = 64  # Beyond so many, claims look from the front again: each costs a scan of its own.
_LONGEST_HOLD: Final = 30.0  # Seconds.
_SHARE: Final = 10  # Looking from the start may cost this part of the time at most.


class Handler(Protocol):
    """Runs the rows of one queue."""

    @property
    def queue(self) -> str:
        """The queue whose rows it runs."""
        ...

    @property
    def slots(self) -> int:
        """How many rows it runs at once in this process."""
        ...

    async def run(self, row: ClaimedRow) -> str | Finish | None:
        """Run `row` and settle it through the store, fenced, in a transaction of its own; None is ok.

        A queue of jobs returns a `Finish` where the row's end is to be written with those of others.

        Cancellation means stop at once and settle nothing: the lease was lost, or the grace period is over. What it
        raises is unexpected: the row is put off (given back uncharged for `Unavailable`), and the error reported.
        """
        ...


@dataclass(slots=True)
class InHand:
    """A row that was claimed under that lease, until it has its outcome: its slot, its run, the writing of its end."""

    row: ClaimedRow
    lease: Lease
    task: asyncio.Task[None] | None = None
    """What runs it; None while it waits for a slot."""
    ending: Finish | None = None
    """Its end, once it has run and while that is being written."""
    taken: float = 0.0
    """How many seconds it ran, once it has."""

    @property
    def worker(self) -> str:
        """The lease's name."""
        return self.lease.name


class Lane:
    """One queue's part of a claimer. Times are monotonic seconds.

    Claims go on from where the last one got to, so that the dead versions of rows claimed before, which a held
    transaction keeps in the index, are not walked over again. They start from the front once a second, for what
    appeared behind (a late commit, a row given back); also whenever the lane runs dry, as far as that costs no more
    than a tenth of the time, and more rarely where it would.
    """

    def __init__(self, handler: Handler, settings: WorkSettings, *, jobs: JobQueue | None = None) -> None:
        """Look at once. `jobs` is the handler again, where it runs jobs."""
        self.handler = handler
        self.jobs = jobs
        self.in_hand: dict[int, InHand] = {}
        self.paused = False
        self.forbidden = False
        """Whether an operator has paused the queue."""
        self.suspects = False
        self.look_at = 0.0
        self._busy = settings.busy.total_seconds()
        self._idle = settings.idle.total_seconds()
        self._rescan = settings.rescan.total_seconds()
        self._rest = self._busy
        self._reached: dict[int, Position] = {}
        self._failures = 0
        self._held_off = 0.0
        self._front_at = 0.0
        self._front_early = 0.0
        self._short = True
        self._hurried = self._rewound = False
        self._met_suspect = False
        self._suspects: set[int] = set()
        self._isolation = settings.isolation.total_seconds()
        self._isolating: float | None = None
        self._relenting = False

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.handler.queue

    @property
    def wanted(self) -> int:
        """How many rows to claim now. A suspect that runs or waits keeps the others away: it runs alone."""
        if self.paused or self.forbidden or (self._isolates and not self._relenting):
            return 0
        if self.suspects:
            return 1
        free = self.handler.slots - len(self.in_hand)
        room = free if self.jobs is None else min(self.jobs.room, free + _UNWRITTEN)
        return max(0, min(room, _MOST))

    @property
    def _isolates(self) -> bool:
        return bool(self._suspects or (self.suspects and self.in_hand))

    def relent(self, now: float) -> None:
        """Look, about once a second, whether a suspect has kept others waiting, or waited for them, for long enough.

        Jobs may take hours, and no queue stands still for so long: what kills its worker mostly does so at once.
        """
        if self.jobs is None or not self._isolates:
            self._isolating, self._relenting = None, False
        elif self._isolating is None:
            self._isolating = now
        else:
            self._relenting = now - self._isolating >= self._isolation

    def looks(self) -> None:
        """A claim begins: what is committed from now on it may not see."""
        self._hurried = self._rewound = False

    def after(self, now: float) -> Mapping[int, Position] | None:
        """Where the next claim goes on from; None is the front."""
        front = now >= self._front_at or (self._short and now >= self._front_early)
        return None if front or not self._reached else dict(self._reached)

    def claimed(self, rows: Sequence[ClaimedRow], *, wanted: int, front: bool, began: float, ended: float) -> None:
        """Remember what a claim came back with, in order of priority and place, and when to look next."""
        self._failures = 0
        self._short = len(rows) < wanted
        reached = {row.priority: (row.run_at, row.id) for row in rows}
        if front:
            cost = (ended - began) * _SHARE
            self._front_early = ended + cost
            self._front_at = ended + max(cost, self._rescan)
        if front and self._short:
            reached = {nice: max(at, self._reached.get(nice, at)) for nice, at in reached.items()}
        self._reached |= reached
        if self._rewound or len(self._reached) > _PRIORITIES:
            self._reached.clear()
        if not rows and not self.in_hand and self._met_suspect:
            self.suspects, self._met_suspect = True, False
            self.look_at = ended
            return
        self._next_look(ended, found=bool(rows))

    def claimed_suspect(self, *, found: bool, ended: float) -> None:
        """Remember whether there was a suspect; the others have their turn before the next."""
        self.suspects = False
        self._isolating, self._relenting = None, False
        self._met_suspect = found
        self._next_look(ended, found=True)

    def failed(self, now: float) -> None:
        """A claim failed, not for want of a database: try again later and later, whoever wakes the lane meanwhile."""
        self._failures += 1
        self._held_off = now + min(self._idle * 2 ** min(self._failures, 10), _LONGEST_HOLD)

    def _next_look(self, now: float, *, found: bool) -> None:
        self._rest = self._busy if found else min(self._rest * 2, self._idle)
        # A row that was told of while the claim was on its way came too late for it.
        self.look_at = now if self._hurried or (found and not self._short) else now + self._rest

    def due(self, now: float) -> bool:
        """Whether to claim now."""
        return max(self.look_at, self._held_off) <= now and self.wanted > 0

    def look_in(self, now: float) -> float:
        """Seconds until the next claim; infinite while nothing may be claimed."""
        return max(0.0, self.look_at - now, self._held_off - now) if self.wanted else math.inf

    def take(self, held: InHand) -> None:
        """A row is in hand from now on."""
        self.in_hand[held.row.token] = held
        if held.row.suspect:
            self._suspects.add(held.row.token)

    def settled(self, token: int) -> None:
        """A row left; its slot is free, and worth a look at once if more was there than slots."""
        self.in_hand.pop(token, None)
        self._suspects.discard(token)
        if not self._short or (self.jobs is not None and self.jobs.fleet is not None):
            self.look_at = 0.0

    def hurry(self) -> None:
        """Look at once, also where a claim is on its way."""
        self._hurried = True
        self._rest = self._busy
        self.look_at = 0.0

    def rewind(self) -> None:
        """Look at once and from the front: rows appeared behind where the claims got to."""
        self._rewound = True
        self._reached.clear()
        self.hurry()
