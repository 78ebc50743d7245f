"""One run of a comparison: look at everything, wait for what events may put right, and look once more.

What the second look meets for the first time is left to the next run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from postroad.reconcile import store
from postroad.signals.catalog import ProjectionBehind, ReconciliationEnded, ReconciliationLooked

if TYPE_CHECKING:
    from datetime import datetime

    from postroad.reconcile.ground import Ground
    from postroad.reconcile.reconciliation import Reconciliation
    from postroad.reconcile.store import Begun, Standing


class End(StrEnum):
    """How a run ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"  # the next run goes on from there
    SUPERSEDED = "superseded"  # another run goes on from there


@dataclass(frozen=True, slots=True)
class Checked:
    """What a run found: how many keys its last look compared, and the drift that stands.

    `pending` differences are not known to be drift: they are younger than the waiting time.
    """

    name: str
    end: End
    compared: int
    missing: int
    extra: int
    mismatched: int
    pending: int
    oldest: datetime | None

    @property
    def drift(self) -> int:
        """How many keys have drifted."""
        return self.missing + self.extra + self.mismatched


async def check(
    ground: Ground, what: Reconciliation, *, anew: bool = False, stop: asyncio.Event | None = None,
    told: Callable[[str, int], None] = lambda _name, _compared: None,
) -> Checked:  # fmt: skip
    """Compare the streams of `what`, and if there are differences, compare again after `what.settle`.

    How far it has come is committed with each page of differences: killed or stopped (`stop` is set), the next run goes
    on from there, but where `anew` says so. Of two runs at once the later one goes on, and the earlier one ends.
    `told` hears how many keys were compared so far. It holds no transaction open between two pages.

    Raises:
        UsageError: PR107, a stream is out of order, or yields no pairs of texts.
        Unavailable: the database is away. Whatever a stream raises comes out as it is.
    """
    (checked,) = await check_all(ground, [what], anew=anew, stop=stop, told=told)
    return checked


async def check_all(
    ground: Ground, all_: Sequence[Reconciliation], *, anew: bool = False, stop: asyncio.Event | None = None,
    told: Callable[[str, int], None] = lambda _name, _compared: None,
) -> list[Checked]:  # fmt: skip
    """`check` for several, one after the other; they are waited for together."""
    stop = stop or asyncio.Event()
    runs = [_Run(ground, what, ground.clock.monotonic(), stop, told) for what in all_]
    for run in runs:
        await run.look(anew=anew)
    waiting = [run for run in runs if run.end is End.COMPLETE and run.standing.pending]
    if await _waited(stop, max((run.standing.wait for run in waiting), default=0.0)):
        for run in waiting:
            run.end = End.STOPPED
    else:
        for run in waiting:
            await run.look(anew=False)
    return [await run.over() for run in runs]


@dataclass(slots=True)
class _Run:
    """One reconciliation in a run."""

    ground: Ground
    what: Reconciliation
    began: float
    stop: asyncio.Event
    told: Callable[[str, int], None]
    end: End = End.COMPLETE
    compared: int = 0
    token: int | None = None
    standing: Standing = field(default_factory=store.Standing)

    async def look(self, *, anew: bool) -> None:
        """Look at everything, from where the open pass has come to."""
        ground, what = self.ground, self.what
        if self.stop.is_set():
            self.end = End.STOPPED
            return
        begun = await ground.manager.run(store.begin(ground.schema, what.name, anew=anew, token=self.token))
        self.end = End.SUPERSEDED if begun is None else await self._go_through(begun)
        self.standing = await self._stands()
        if self.end is End.COMPLETE:
            stands = self.standing
            ground.signals.emit(ReconciliationLooked(what.name, self.compared, stands.drift, stands.pending))

    async def _go_through(self, begun: Begun) -> End:
        manager, schema, what = self.ground.manager, self.ground.schema, self.what
        self.token, self.compared = begun.token, begun.compared
        async with aclosing(what.compared(self.ground, begun.cursor)) as pages:
            async for page in pages:
                self.compared += page.compared
                noted = store.note(schema, what.name, begun.token, page, compared=self.compared, settle=what.settle)
                if not await manager.run(noted):
                    return End.SUPERSEDED
                self.told(what.name, self.compared)
                if self.stop.is_set():
                    return End.STOPPED
        ours = await manager.run(store.finish(schema, what.name, begun.token))
        return End.COMPLETE if ours else End.SUPERSEDED

    async def _stands(self) -> Standing:
        return await self.ground.manager.run(
            store.standing(self.ground.schema, self.what.name, settle=self.what.settle)
        )

    async def over(self) -> Checked:
        """Say how it ended."""
        ground, name, end, stands = self.ground, self.what.name, self.end, self.standing
        if end is End.COMPLETE and self.token is not None:
            await ground.manager.run(store.complete(ground.schema, name, self.token))
        ended = ground.clock.now().timestamp()
        took = ground.clock.monotonic() - self.began
        kinds = (stands.missing, stands.extra, stands.mismatched, stands.pending)
        ground.signals.emit(ReconciliationEnded(name, str(end), self.compared, *kinds, took, ended))
        if self.what.inbox_of is not None:
            ground.signals.emit(ProjectionBehind(self.what.inbox_of, stands.missing + stands.pending))
        return Checked(name, end, self.compared, *kinds, stands.oldest)


async def _waited(stop: asyncio.Event, seconds: float) -> bool:
    """Wait; whether it was stopped meanwhile."""
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            await stop.wait()
    except TimeoutError:
        return False
    return True
