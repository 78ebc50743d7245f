"""Rows of routes that were passed over: those that may go on again, and the one that tries a blocked route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from postroad.outbox import store

if TYPE_CHECKING:
    from postroad.leases import Lease
    from postroad.outbox.flight import Flight
    from postroad.outbox.routes import Passed, Routes
    from postroad.outbox.waiting import Waiting
    from postroad.outbox.window import Window
    from postroad.sql import AsyncHand

Row = Mapping[str, Any]

_CANDIDATES: Final = 50


@dataclass(slots=True)
class Behind:
    """What a read found of routes that are passed over."""

    rows: list[Row] = field(default_factory=list)
    probes: list[Row] = field(default_factory=list)
    caught_up: set[str] = field(default_factory=set)
    reached: list[tuple[Passed, dict[int, int], dict[int, int]]] = field(default_factory=list)
    gone: list[Passed] = field(default_factory=list)
    probed: list[Passed] = field(default_factory=list)
    more: bool = False


NOTHING: Final = Behind()


class Following:
    """Reads rows of passed routes. What it found counts only once the read is `done`: one that fails leaves nothing."""

    def __init__(self, *, schema: str, routes: Routes, window: Window, waiting: Waiting, page: int) -> None:
        """`page` is the most rows of a read."""
        self._schema = schema
        self._routes = routes
        self._window = window
        self._waiting = waiting
        self._page = page

    async def read(self, hand: AsyncHand, leases: Mapping[int, Lease], *, limit: int) -> Behind:
        """Rows of routes that may go on, up to their share of the window and `limit`; a probe for each that is due."""
        found = Behind()
        for passed, room in list(self._routes.to_follow()):
            await self._follow(hand, leases, passed, found, limit=min(room, limit))
        for passed in self._routes.to_probe():
            await self._probe(hand, leases, passed, found)
        return found

    def done(self, found: Behind, flights: Iterable[Flight]) -> bool:
        """The read succeeded, and `flights` go out; whether more rows are to be had at once."""
        for passed, before, reached in found.reached:
            undisturbed = before == passed.back and not passed.blocked  # Nothing was put back meanwhile.
            if undisturbed:
                passed.back.update({shard: max(place, before[shard]) for shard, place in reached.items()})
            if undisturbed and passed.route.key in found.caught_up:
                self._routes.caught_up(passed)
        for passed in found.gone:
            self._routes.caught_up(passed)
        if found.probed:
            probes = {flight.lane: flight for flight in flights if flight.probe}
            for passed in found.probed:
                self._routes.probe(passed, probes.get(passed.route.key))
        return found.more

    async def _follow(
        self, hand: AsyncHand, leases: Mapping[int, Lease], passed: Passed, found: Behind, *, limit: int
    ) -> None:
        before = dict(passed.back)
        ranges = self._routes.ranges(passed, leases)
        but = self._window.places()
        rows = await hand.fetch(store.behind(self._schema, ranges, passed.route.key, but=but, limit=limit))
        found.rows += rows
        found.reached.append((passed, before, {row["shard"]: row["place"] for row in rows}))
        if len(rows) >= limit:
            found.more = True
        elif set(passed.back) <= set(ranges[0]):
            found.caught_up.add(passed.route.key)

    async def _probe(self, hand: AsyncHand, leases: Mapping[int, Lease], passed: Passed, found: Behind) -> None:
        """One row to try: first one that was never tried, later in turn one that was and one that was not.

        The row that was refused may be the only one that is; and where none gets through, few are tried.
        """
        any_row = False
        first = passed.tries > 1 and passed.tries % 2 == 0
        for again in (first, not first):
            rows = await self._candidates(hand, leases, passed, again=again)
            any_row |= bool(rows)
            free = (row for row in rows if not self._waiting.holds_back(row["shard"], row["place"], row["key_hash"]))
            row = next(free, None)
            if row is not None:
                found.probes.append(row)
                break
        if any_row or not set(passed.back) <= set(leases):
            found.probed.append(passed)
        else:
            found.gone.append(passed)

    async def _candidates(
        self, hand: AsyncHand, leases: Mapping[int, Lease], passed: Passed, *, again: bool
    ) -> Sequence[Row]:
        but = self._window.places()
        if again:
            return await hand.fetch(store.refused(self._schema, leases, passed.route.key, but=but, limit=_CANDIDATES))
        ranges = self._routes.ranges(passed, leases)
        return await hand.fetch(store.behind(self._schema, ranges, passed.route.key, but=but, limit=_CANDIDATES))
