"""One round of maintenance: partitions made ahead, and whatever has been kept long enough let go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from postroad.consume import inbox, rehandle, starts
from postroad.effects import store as effects
from postroad.leases import prune
from postroad.reconcile import store as drift
from postroad.schedules import store as schedules
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.partitions import days_ahead, make_ahead
from postroad.sql.retention import Leaf, drop_expired, expire_rest
from postroad.work import retention
from postroad.work.store import running_workers

if TYPE_CHECKING:
    from postroad.sql import Pipeline
    from postroad.sql.asyncpg import Connection

T = TypeVar("T")

_PAGES: Final = 4096  # 32 MiB of the inbox at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """What a round did.

    Of days to come: partitions *made*, days *kept* in the DEFAULT one, *busy* ones, and the *days_ahead*. Of days that
    are over: partitions *dropped*, those still *needed* with what needs them, those *held* by others at the moment.
    Rows deleted: events in DEFAULT partitions, finished work in days that could not go whole, resolved quarantine,
    inbox marks (older than `marks_before`; None where that was not looked at), leases of processes long gone,
    starts that nothing answered for a week, and occurrences of schedules that ended 90 days ago.
    """

    made: int
    kept: int
    busy: int
    days_ahead: int
    dropped: Sequence[str] = ()
    needed: Sequence[Leaf] = ()
    held: Sequence[str] = ()
    events: int = 0
    finished: int = 0
    resolved: int = 0
    marks: int = 0
    marks_before: datetime | None = None
    leases: int = 0
    starts: int = 0
    occurrences: int = 0


@dataclass(slots=True)
class Upkeep:
    """A round on one connection, outside any transaction; `now` is the process's clock, `remember` the inbox's window.

    Once `stopped` says so, no further batch is begun. Every act is short, waits at most 50 ms for a lock on the log,
    and is safe to repeat and to run beside others. A crash between two leaves the rest to the next round.
    """

    connection: Connection
    schema: str
    now: datetime
    remember: timedelta
    stopped: Callable[[], bool] = lambda: False
    hand: AsyncpgHand = field(init=False)

    def __post_init__(self) -> None:
        """Work on the connection."""
        self.hand = AsyncpgHand(self.connection)

    async def round(self, *, marks: bool = True) -> Maintained:
        """Do everything once; `marks` says whether the inbox is gone through, which reads all of it.

        Raises:
            asyncpg.InsufficientPrivilegeError: the role may not.
        """
        made = await make_ahead(self.connection, schema=self.schema)
        leaves = await drop_expired(self.connection, schema=self.schema)
        events = await expire_rest(self.connection, schema=self.schema)
        finished = await self._batches(lambda: retention.thin_finished(self.schema, now=self.now))
        resolved = await self._batches(lambda: retention.forget_resolved(self.schema, now=self.now))
        before = self.now - self.remember
        expired = await self._expire_marks(before) if marks else 0
        leases = await drive(self._prune(), self.hand)
        await self._batches(lambda: effects.forget(self.schema, now=self.now))
        await self._batches(lambda: drift.forget(self.schema, now=self.now, limit=retention.BATCH))
        started = await self._batches(lambda: starts.expire(self.schema, now=self.now))
        await drive(rehandle.expire(self.schema, before=before), self.hand)
        occurrences = await self._batches(lambda: schedules.expire(self.schema, now=self.now, limit=retention.BATCH))
        return Maintained(
            made=made["made"], kept=made["kept"], busy=made["busy"],
            days_ahead=await days_ahead(self.connection, schema=self.schema),
            dropped=[leaf.name for leaf in leaves if leaf.why == "dropped"],
            needed=[leaf for leaf in leaves if leaf.why not in {"dropped", "busy"}],
            held=[leaf.name for leaf in leaves if leaf.why == "busy"],
            events=events, finished=finished, resolved=resolved, marks=expired,
            marks_before=before if marks else None, leases=leases, starts=started,
            occurrences=occurrences,
        )  # fmt: skip

    async def _batches(self, act: Callable[[], Pipeline[int]]) -> int:
        """Repeat `act` until a batch is not full; how many rows in all."""
        count, full = 0, True
        while full and not self.stopped():
            deleted = await drive(act(), self.hand)
            count += deleted
            full = deleted >= retention.BATCH
        return count

    async def _expire_marks(self, before: datetime) -> int:
        count = 0
        pages = await drive(inbox.pages(self.schema, before=before), self.hand)
        for first in range(0, pages, _PAGES):
            count += await self._batches(
                lambda first=first: inbox.expire(self.schema, first, first + _PAGES, before=before)  # type: ignore[misc]
            )
        return count

    def _prune(self) -> Pipeline[int]:
        running = yield from running_workers(self.schema)
        return (yield from prune(self.schema, keep=running))
