"""What to send next: reads the outbox of the shards that are held, in order, and the bodies from the log."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from postroad.outbox import store
from postroad.outbox.flight import Flight, Route, outgoing, route
from postroad.outbox.shards import SHARDS

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.leases import Lease
    from postroad.outbox.floor import Floors
    from postroad.outbox.settings import DispatchSettings
    from postroad.outbox.waiting import Waiting
    from postroad.outbox.window import Window
    from postroad.sql import AsyncHand

Row = Mapping[str, Any]

_LATE_SHARE: Final = 9  # A look for late commits that took t seconds is followed by 9 t without one: a tenth.
_RETRY_SHARE: Final = 5  # Retries take at most a fifth of the window.
_MARK_AFTER: Final = 0.1  # An idle dispatcher takes a transaction number of its own only this long after the last.
_SIZE_GUESS: Final = 1024


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
        self._routes: dict[str, Route] = {}
        self._tickets = itertools.count(1)
        self._each = 0
        self._size = float(_SIZE_GUESS)
        self._late_at = 0.0
        self._mark_at = 0.0
        self._retry_at = 0.0
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
        limit = max(1, min(room, self._settings.page, int(self._settings.window_bytes / self._size)))
        fresh = await self._fresh(hand, leases, limit)
        late = await self._late(hand, leases)
        await self._mark(hand)
        swept, sweep_from = await self._sweep(hand, leases)
        again = await self._retries(hand, leases)
        rows = [row for row in itertools.chain(fresh, late.rows, swept) if row["due"] and not self._held_back(row)]
        flights = await self._with_bodies(hand, leases, rows)
        flights += await self._with_bodies(hand, leases, [row for row in again if not self._held_back(row)])
        self._sweep_from = sweep_from
        still = {shard for shard, lease in self._held().items() if leases.get(shard) is lease}
        for row in fresh:
            if row["shard"] in still:
                self._floors.advance(row["shard"], row["place"])
        self._floors.passed(late.oldest, {shard: floor for shard, floor in late.seen.items() if shard in still})
        return [flight for flight in flights if flight.shard in still]

    def missing(self) -> list[Flight]:
        """Rows of the last reads that have no event in the log; each is given once."""
        missing, self._missing = self._missing, []
        return missing

    def rewound(self) -> None:
        """Rows that were held back may go now: look for them with the next read."""
        self._late_at = 0.0

    async def _fresh(self, hand: AsyncHand, leases: Mapping[int, Lease], limit: int) -> Sequence[Row]:
        cursors = {shard: self._floors.cursor[shard] for shard in leases if shard in self._floors.cursor}
        if not cursors:
            return ()
        even = min(limit, 2 * -(-limit // len(cursors)))
        each = min(limit, max(self._each, even))
        rows = await hand.fetch(store.fresh(self._schema, cursors, each=each, limit=limit))
        full = len(rows) >= limit
        capped = not full and len(rows) >= each and any(n >= each for n in _count(rows).values())
        # Most shards hold alike; where one holds the most, it alone is read in larger pieces.
        self._each = min(limit, each * 2) if capped else even
        self.more = full or capped
        return rows

    async def _late(self, hand: AsyncHand, leases: Mapping[int, Lease]) -> _Late:
        """Look for rows that were committed below a cursor after it had passed; at most a tenth of the time."""
        now = self._clock.monotonic()
        ranges = self._floors.ranges(leases)
        if not ranges[0] or now < self._late_at:
            return _Late((), 0, {})
        page = self._settings.page
        found, oldest, took = await self._between(hand, ranges, page)
        late, complete = list(found), len(found) < page
        while not complete and sum(1 for row in late if not self._held_back(row)) < page:
            lows = [max(low, found[-1]["place"]) for low in ranges[1]]
            found, _, more = await self._between(hand, (ranges[0], lows, ranges[2]), page)
            late, took, complete = [*late, *found], took + more, len(found) < page
        self._late_at = self._clock.monotonic() + took * _LATE_SHARE
        self.more |= not complete
        seen = dict(zip(ranges[0], ranges[1], strict=True)) if complete else {}
        return _Late(late, oldest if complete else 0, seen)

    async def _between(
        self, hand: AsyncHand, ranges: tuple[list[int], list[int], list[int]], limit: int
    ) -> tuple[Sequence[Row], int, float]:
        rows = await hand.fetch(store.between(self._schema, ranges, but=self._window.places(), limit=limit))
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

    async def _sweep(self, hand: AsyncHand, leases: Mapping[int, Lease]) -> tuple[Sequence[Row], int | None]:
        """Look through everything below the floors once a minute, a page per read: the backstop."""
        start = self._sweep_from
        if start is None:
            if self._clock.monotonic() < self._sweep_at:
                return (), None
            start, self._retry_all = 0, True
        floors = [(shard, self._floors.floor[shard]) for shard in leases if shard in self._floors.floor]
        shards, tops = [shard for shard, _ in floors], [top for _, top in floors]
        limit = self._settings.page
        found, _, took = await self._between(hand, (shards, [start] * len(shards), tops), limit)
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
        return await hand.fetch(store.retries(self._schema, leases, but=but, limit=room))

    async def _with_bodies(self, hand: AsyncHand, leases: Mapping[int, Lease], rows: Sequence[Row]) -> list[Flight]:
        if not rows:
            return []
        found = {body["seq"]: body for body in await hand.fetch(store.bodies(self._schema, rows))}
        flights: list[Flight] = []
        total = 0
        for row in rows:
            flight = self._flight(row, leases)
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

    def _held_back(self, row: Row) -> bool:
        return self._waiting.holds_back(row["shard"], row["place"], row["key_hash"])

    def _flight(self, row: Row, leases: Mapping[int, Lease]) -> Flight:
        key = row["route"]
        where = self._routes.get(key)
        if where is None:
            where = self._routes[key] = route(key)
        shard = row["shard"]
        return Flight(
            shard, row["place"], row["seq"], row["recorded"], row["retention"], where, row["key_hash"],
            row["target"], row["attempts"], leases[shard],
        )  # fmt: skip


def _count(rows: Sequence[Row]) -> dict[int, int]:
    counts = dict.fromkeys(range(SHARDS), 0)
    for row in rows:
        counts[row["shard"]] += 1
    return counts
