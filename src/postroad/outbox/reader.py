"""What to send next: reads the outbox of the shards that are held, in order, and the bodies from the log."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from postroad.outbox import store
from postroad.outbox.flight import Flight, Route, outgoing, route
from postroad.outbox.following import NOTHING, Following
from postroad.outbox.shards import SHARDS

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.leases import Lease
    from postroad.outbox.floor import Floors
    from postroad.outbox.routes import Routes
    from postroad.outbox.settings import DispatchSettings
    from postroad.outbox.waiting import Waiting
    from postroad.outbox.window import Window
    from postroad.sql import AsyncHand

Row = Mapping[str, Any]

_LATE_SHARE: Final = 9  # A look for late commits that took t seconds is followed by 9 t without one: a tenth.
_RETRY_SHARE: Final = 5  # Retries take at most a fifth of the window.
_MARK_AFTER: Final = 0.1  # An idle dispatcher takes a transaction number of its own only this long after the last.
_SIZE_GUESS: Final = 1024
_LONG: Final = 0.1
_REPLAN_AFTER: Final = 5.0


class _Late(NamedTuple):
    """What a look above the floors found, and what it proves once its rows are in the window."""

    rows: Sequence[Row]
    oldest: int
    seen: Mapping[int, int]


class Reader:
    """Finds rows to send and builds their publishes. One call of `read` at a time."""

    def __init__(
        self,
        *,
        schema: str,
        floors: Floors,
        waiting: Waiting,
        window: Window,
        routes: Routes,
        settings: DispatchSettings,
        clock: Clock,
        held: Callable[[], Mapping[int, Lease]],
    ) -> None:
        """`held` says which shards to read, and under which leases."""
        self._schema = schema
        self._floors = floors
        self._waiting = waiting
        self._window = window
        self._settings = settings
        self._clock = clock
        self._held = held
        self._passed = routes
        self._following = Following(schema=schema, routes=routes, window=window, waiting=waiting, page=settings.page)
        self._routes: dict[str, Route] = {}
        self._tickets = itertools.count(1)
        self._each = 0
        self._size = float(_SIZE_GUESS)
        self._late_at = 0.0
        self._mark_at = 0.0
        self._retry_at = 0.0
        self._replan_at = 0.0
        self._sweep_at = clock.monotonic() + settings.sweep.total_seconds()
        self._sweep_from: int | None = None
        self._retry_all = False
        self._missing: list[Flight] = []
        self.more = False
        """Whether the last read left rows behind that could be read at once."""

    async def read(self, hand: AsyncHand, *, room: int) -> list[Flight]:
        """Up to about `room` rows to send now, with their publishes, in order of place.

        Late commits and retries come on top of `room`, each bounded by a page. Nothing is remembered of a read that
        fails: the next one starts where this one did.

        Raises:
            Unavailable: the database is away.
        """
        self.more = False
        self._missing = []
        leases = self._held()
        if not leases:
            return []
        started = self._clock.monotonic()
        limit = max(1, min(room, self._settings.page, int(self._settings.window_bytes / self._size)))
        behind = await self._following.read(hand, leases, limit=limit) if self._passed.any else NOTHING
        passed = [name for name in self._passed.names() if name not in behind.caught_up]
        fresh, tops = await self._fresh(hand, leases, limit, passed)
        late = await self._late(hand, leases, passed)
        await self._mark(hand)
        swept, sweep_from = await self._sweep(hand, leases, passed)
        again = await self._retries(hand, leases)
        found = itertools.chain(fresh, late.rows, swept, behind.rows)
        flights = await self._with_bodies(hand, leases, [row for row in found if row["due"] and self._may_go(row)])
        flights += await self._with_bodies(hand, leases, [row for row in again if self._may_go(row)])
        flights += await self._with_bodies(hand, leases, behind.probes, probe=True)
        await self._replan(hand, started)
        self._sweep_from = sweep_from
        still = {shard for shard, lease in self._held().items() if leases.get(shard) is lease}
        for shard, place in tops.items():
            if shard in still:
                self._floors.advance(shard, place)
        flights = [flight for flight in flights if flight.shard in still]
        self.more |= self._following.done(behind, flights)
        self._floors.passed(late.oldest, {shard: floor for shard, floor in late.seen.items() if shard in still})
        return flights

    def missing(self) -> list[Flight]:
        """Rows of the last reads that have no event in the log; each is given once."""
        missing, self._missing = self._missing, []
        return missing

    def rewound(self) -> None:
        """Rows that were held back may go now: look for them with the next read."""
        self._late_at = 0.0

    async def _replan(self, hand: AsyncHand, started: float) -> None:
        """A read that took long may have followed plans made for an empty table: have new ones made, now and then."""
        now = self._clock.monotonic()
        if now - started > _LONG and now >= self._replan_at:
            self._replan_at = now + _REPLAN_AFTER
            await hand.fetch(store.replan(self._schema))

    async def _fresh(
        self, hand: AsyncHand, leases: Mapping[int, Lease], limit: int, passed: list[str]
    ) -> tuple[Sequence[Row], dict[int, int]]:
        """Rows beyond the cursors, and how far each shard was read by that."""
        cursors = {shard: self._floors.cursor[shard] for shard in leases if shard in self._floors.cursor}
        if not cursors:
            return (), {}
        even = min(limit, 2 * -(-limit // len(cursors)))
        each = min(limit, max(self._each, even))
        tops: dict[int, int] = {}
        far = False
        if passed:
            ahead = self._passed.ahead()
            if not ahead:
                return (), {}
            asked = store.passing(self._schema, cursors, passed, each=each, limit=limit, ahead=ahead)
            all_rows = await hand.fetch(asked)
            rows: Sequence[Row] = [row for row in all_rows if row["place"] is not None]
            if len(all_rows) < limit + len(cursors):
                counts = _count(rows)
                tops = {row["of_shard"]: row["top"] for row in all_rows if counts[row["of_shard"]] < each}
                far = ahead >= self._settings.page and any(row["seen"] >= ahead for row in all_rows)
        else:
            rows = await hand.fetch(store.fresh(self._schema, cursors, each=each, limit=limit))
        full = len(rows) >= limit
        capped = not full and len(rows) >= each and any(n >= each for n in _count(rows).values())
        # Most shards hold alike; where one holds the most, it alone is read in larger pieces.
        self._each = min(limit, each * 2) if capped else even
        self.more = full or capped or far
        for row in rows:
            tops[row["shard"]] = max(row["place"], tops.get(row["shard"], 0))
        return rows, tops

    async def _late(self, hand: AsyncHand, leases: Mapping[int, Lease], passed: list[str]) -> _Late:
        """Look for rows that were committed below a cursor after it had passed; at most a tenth of the time."""
        now = self._clock.monotonic()
        ranges = self._floors.ranges(leases)
        if not ranges[0] or now < self._late_at:
            return _Late((), 0, {})
        page = self._settings.page
        found, oldest, took = await self._between(hand, ranges, page, passed)
        late, complete = list(found), len(found) < page
        while not complete and sum(1 for row in late if self._may_go(row)) < page:
            lows = [max(low, found[-1]["place"]) for low in ranges[1]]
            found, _, more = await self._between(hand, (ranges[0], lows, ranges[2]), page, passed)
            late, took, complete = [*late, *found], took + more, len(found) < page
        self._late_at = self._clock.monotonic() + took * _LATE_SHARE
        self.more |= not complete
        seen = dict(zip(ranges[0], ranges[1], strict=True)) if complete else {}
        return _Late(late, oldest if complete else 0, seen)

    async def _between(
        self, hand: AsyncHand, ranges: store.Ranges, limit: int, passed: list[str]
    ) -> tuple[Sequence[Row], int, float]:
        but = self._window.places()
        rows = await hand.fetch(store.between(self._schema, ranges, but=but, routes=passed, limit=limit))
        found = rows if rows[0]["place"] is not None else ()
        return found, rows[0]["oldest"], rows[0]["seconds"]

    async def _mark(self, hand: AsyncHand) -> None:
        """Take a transaction number while no delete gives one, so that an idle dispatcher's floors move too."""
        now = self._clock.monotonic()
        if self._floors.marked or now < self._mark_at:
            return
        reached = self._floors.reached()
        rows = await hand.fetch(store.mark(self._schema))
        self._floors.mark(rows[0]["xid"], reached)
        self._mark_at = now + _MARK_AFTER

    async def _sweep(
        self, hand: AsyncHand, leases: Mapping[int, Lease], passed: list[str]
    ) -> tuple[Sequence[Row], int | None]:
        """Look through everything below the floors once a minute, a page per read: the backstop."""
        start = self._sweep_from
        if start is None:
            if self._clock.monotonic() < self._sweep_at:
                return (), None
            start, self._retry_all = 0, True
        floors = [(shard, self._floors.floor[shard]) for shard in leases if shard in self._floors.floor]
        shards, tops = [shard for shard, _ in floors], [top for _, top in floors]
        limit = self._settings.page
        found, _, took = await self._between(hand, (shards, [start] * len(shards), tops), limit, passed)
        if len(found) >= limit:
            self.more = True
            return found, found[-1]["place"]
        rest = max(self._settings.sweep.total_seconds(), took * _LATE_SHARE)
        self._sweep_at = self._clock.monotonic() + rest
        return found, None

    async def _retries(self, hand: AsyncHand, leases: Mapping[int, Lease]) -> Sequence[Row]:
        """Look for refused rows whose wait is over, where any are known of; with every sweep in any case."""
        now = self._clock.monotonic()
        room = max(1, self._settings.window // _RETRY_SHARE) - self._window.retrying()
        if not (self._waiting.any or self._retry_all) or now < self._retry_at or room <= 0:
            return ()
        self._retry_all = False
        self._retry_at = now + self._settings.retry_check.total_seconds()
        but = self._window.places() + self._waiting.behind()
        blocked = self._passed.blocked()
        return await hand.fetch(store.retries(self._schema, leases, but=but, routes=blocked, limit=room))

    async def _with_bodies(
        self, hand: AsyncHand, leases: Mapping[int, Lease], rows: Sequence[Row], *, probe: bool = False
    ) -> list[Flight]:
        if not rows:
            return []
        found = {body["seq"]: body for body in await hand.fetch(store.bodies(self._schema, rows))}
        flights: list[Flight] = []
        total = 0
        for row in rows:
            flight = self._flight(row, leases)
            flight.probe = probe
            body = found.get(row["seq"])
            if body is None:
                flight.reason = store.BODY_MISSING
                self._missing.append(flight)
                continue
            flight.outgoing = outgoing(flight, body, ticket=next(self._tickets))
            flight.size = len(body["envelope"])
            total += flight.size
            flights.append(flight)
        if flights:
            self._size = max(1.0, (self._size + total / len(flights)) / 2)
        return flights

    def _may_go(self, row: Row) -> bool:
        return not self._waiting.holds_back(row["shard"], row["place"], row["key_hash"])

    def _flight(self, row: Row, leases: Mapping[int, Lease]) -> Flight:
        key = row["route"]
        where = self._routes.get(key)
        if where is None:
            where = self._routes[key] = route(key)
        shard = row["shard"]
        return Flight(
            shard, row["place"], row["seq"], row["recorded"], row["retention"], where, row["key_hash"],
            row["target"], row["attempts"], leases[shard], row["replay"],
        )  # fmt: skip


def _count(rows: Sequence[Row]) -> dict[int, int]:
    counts = dict.fromkeys(range(SHARDS), 0)
    for row in rows:
        counts[row["shard"]] += 1
    return counts
