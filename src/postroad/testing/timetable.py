"""The App's schedules in a test: declared in its database, and planned at a time that only the test moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.leases import Lease
from postroad.leases import store as leases
from postroad.schedules import planner, settle
from postroad.schedules.planner import Office
from postroad.schedules.registry import Registered, Release, register
from postroad.sql import drive
from postroad.testing.ledger import QUERIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from postroad.runtime.app import App
    from postroad.sql import Pipeline
    from postroad.sql.asyncpg import AsyncpgHand

_TTL: Final = seconds(15)


@dataclass(slots=True)
class Timetable:
    """The time of an App's schedules; it begins where they are first declared, and only `advance` moves it.

    The scheduler's own ticks plan under a lease of this process, each at the moment at which something is to be done,
    as if it had been up all the time: nothing is late. A running App's scheduler is left alone.
    """

    app: App
    schema: str
    _release: Release = field(init=False, repr=False)
    _found: Registered | None = field(default=None, repr=False)
    _at: datetime | None = field(default=None, repr=False)
    """Everything up to here is planned."""
    _until: datetime | None = field(default=None, repr=False)
    _holder: UUID = field(default_factory=SYSTEM_CLOCK.new_id, repr=False)

    def __post_init__(self) -> None:
        """Name what is declared."""
        self._release = Release.of(self.app.name, self.app.declarations.schedules)

    async def advance(self, hand: AsyncpgHand, by: timedelta) -> None:
        """Let that much time pass; `plan` goes through it."""
        if self.app.declarations.schedules:
            async with hand.connection.transaction():
                await drive(self._declare(), hand)
            assert self._until is not None, "a declared schedule has a time"
            self._until += by

    async def begin(self, hand: AsyncpgHand) -> None:
        """Declare the schedules, before a drain."""
        await self.advance(hand, timedelta(0))

    async def plan(self, hand: AsyncpgHand) -> Sequence[Mapping[str, str]]:
        """Go on to the next moment at which a run starts, if there is one; what could not be started, by schedule."""
        if not self.app.declarations.schedules:
            return ()
        async with hand.connection.transaction():
            return await drive(self._go_on(), hand)

    def _declare(self) -> Pipeline[None]:
        self._found = yield from register(self.schema, self._release)
        rows = yield QUERIES.statement("planned", self.schema, self.app.name)
        self._at = self._at or rows[0]["cursor"]
        self._until = self._until or self._at

    def _go_on(self) -> Pipeline[Sequence[Mapping[str, str]]]:
        assert self._until is not None, "it was begun"
        office = yield from self._office()
        yield from settle.settle(self.schema, office, now=self._at)
        yield from settle.backfill(self.schema, office)
        yield QUERIES.statement("asked_now", self.schema, self.app.name, self._at)
        broken: Sequence[Mapping[str, str]] = ()
        started = False
        while not started and not broken:
            rows = yield QUERIES.statement("next_planned", self.schema, self.app.name, self._until)
            if rows[0]["at"] is None:
                self._at = self._until
                break
            self._at = max(self._at or rows[0]["at"], rows[0]["at"])
            done = yield from planner.tick(self.schema, office, now=self._at)
            started = bool(done.queues)
            broken = yield QUERIES.statement("not_started", self.schema, self.app.name)
        yield leases.release(self.schema, [office.lease])
        return broken

    def _office(self) -> Pipeline[Office]:
        """A lease of this call's own: what is planned beside it, the rows' locks and their uniqueness keep apart."""
        assert self._found is not None, "it was begun"
        name, sent = f"testing:{self._holder}", SYSTEM_CLOCK.monotonic()
        [row] = yield leases.acquire(self.schema, [name], holder=self._holder, ttl=_TTL)
        lease = Lease(name, token=row["token"], holder=self._holder, ttl=_TTL, sent=sent, clock=SYSTEM_CLOCK)
        return Office(
            app=self.app.name, release=self._found.number, lease=lease, tz_version=self._release.tz_version,
            known=self._found.known,
        )  # fmt: skip
