"""What is in flight: each row once, from its read until the outbox knows its outcome; bounded by count and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from postroad.transport.base import Settled, Settlement

if TYPE_CHECKING:
    from postroad.outbox.flight import Flight
    from postroad.transport.base import Outgoing

SHARE = 4
"""Each route may hold one part in so many of the window."""

_CRAWL = 1.0
_NEVER = (0.0, 0.0)


class Window:
    """The rows between the outbox and the broker.

    *ready* are read and not yet handed over; *sent* are with the broker; the others are settled and wait for the
    outbox to be told (`done`). A row that nobody knows the fate of becomes ready again, with the bytes it had.
    *suspects* were with the broker when it closed the channel over one of them: they go out one at a time.
    """

    __slots__ = (
        "_answered", "_bytes", "_hindered", "_lane_bytes", "_lanes", "_limit", "_limit_bytes", "_places", "_probes",
        "_ready", "_sent", "_shards", "_suspects", "lane_limit",
    )  # fmt: skip

    def __init__(self, limit: int, limit_bytes: int, *, share: int = SHARE) -> None:
        """At most `limit` rows and `limit_bytes` bytes are with the broker at once; one row always may be.

        Of one route it is one part in `share` of either.
        """
        self._limit = limit
        self._limit_bytes = limit_bytes
        self.lane_limit = max(1, limit // share)
        self._lane_bytes = limit_bytes // share
        self._bytes = 0
        self._places: dict[int, Flight] = {}
        self._ready: list[Flight] = []
        self._probes: list[Flight] = []
        self._sent: dict[int, Flight] = {}
        self._shards: Counter[int] = Counter()
        self._lanes: dict[str, tuple[int, int]] = {}  # How many rows and bytes of a route are with the broker.
        self._answered: dict[str, tuple[float, float]] = {}  # When the last one confirmed of a route was sent, and was.
        self._hindered: set[str] = set()  # Routes whose limit a row has waited for since their last answer.
        self._suspects: set[int] = set()

    @property
    def room(self) -> int:
        """How many rows may be read now: none while some are ready, or too many settled ones are not yet deleted."""
        if self._ready:
            return 0
        return max(0, min(self._limit - len(self._sent), 2 * self._limit - len(self._places)))

    @property
    def unsettled(self) -> int:
        """How many rows are with the broker."""
        return len(self._sent)

    @property
    def ready(self) -> int:
        """How many rows are read and not handed over."""
        return len(self._ready) + len(self._probes)

    def lane_room(self, lane: str) -> int:
        """How many rows of a route may be with the broker in addition to those that are."""
        return self.lane_limit - self._lanes.get(lane, (0, 0))[0]

    def confirmed_at(self, lane: str) -> float:
        """When the newest publish that was confirmed of a route was sent; 0 is never."""
        return self._answered.get(lane, _NEVER)[0]

    def places(self) -> list[int]:
        """The places of all rows in the window: whoever reads must pass them over."""
        return list(self._places)

    def retrying(self) -> int:
        """How many rows in the window were refused before."""
        return sum(1 for flight in self._places.values() if flight.attempts)

    def busy(self, shard: int) -> bool:
        """Whether any row of `shard` is in the window."""
        return self._shards[shard] > 0

    def slow(self, now: float, *, full: float, silent: float) -> frozenset[str]:
        """The routes that hold others up, or would.

        Nothing of them was answered for `silent` seconds, while younger ones of other routes were; or for `full`
        seconds, while the next ready row waits for their limit; or their oldest publish has waited for a second. A
        route that is merely busy is not passed over: the next row waits for some milliseconds.
        """
        oldest: dict[str, float] = {}
        for flight in self._sent.values():
            if flight.sent_at > now - full:
                break
            if flight.lane and not flight.probe:
                oldest[flight.lane] = min(flight.sent_at, oldest.get(flight.lane, now))
        return frozenset(lane for lane, since in oldest.items() if self._is_slow(lane, since, now, (full, silent)))

    def _is_slow(self, lane: str, oldest: float, now: float, limits: tuple[float, float]) -> bool:
        full, silent = limits
        still = max(oldest, self._answered.get(lane, _NEVER)[1])
        if oldest < now - _CRAWL or (lane in self._hindered and still < now - full):
            return True
        return still < now - silent and any(sent > oldest for each, (sent, _) in self._answered.items() if each != lane)

    def crawls(self, lane: str, now: float) -> bool:
        """Whether a publish of a route has had no answer for a second."""
        return any(
            flight.lane == lane and not flight.probe and flight.sent_at < now - _CRAWL for flight in self._sent.values()
        )

    def admit(self, flights: Iterable[Flight]) -> None:
        """Take rows that were read, with their publishes; they go out in order of place."""
        for flight in flights:
            if flight.place not in self._places:
                self._places[flight.place] = flight
                self._shards[flight.shard] += 1
                (self._probes if flight.probe else self._ready).append(flight)
        self._ready.sort(key=_place)

    def keep(self, flights: Iterable[Flight]) -> None:
        """Take rows that are not to be sent, until the outbox is told of them."""
        for flight in flights:
            if flight.place not in self._places:
                self._places[flight.place] = flight
                self._shards[flight.shard] += 1

    def hand_over(self, now: float) -> list[Outgoing]:
        """Move ready rows to the broker as far as the bounds allow; their publishes, in order.

        The first row that does not fit ends it: one that came later does not overtake it.
        """
        if self._suspects:
            return self._hand_over_suspect(now)
        batch: list[Outgoing] = []
        taken = 0
        for flight in self._ready:
            if self._sent and (len(self._sent) >= self._limit or self._bytes + flight.size > self._limit_bytes):
                break
            if not self._fits(flight):
                self._hindered.add(flight.lane)
                break
            taken += 1
            batch.append(self._send(flight, now))
        del self._ready[:taken]
        return batch

    def hand_over_probes(self, now: float) -> list[Outgoing]:
        """Move ready probes to the broker, whatever the bounds; their publishes."""
        probes, self._probes = self._probes, []
        return [self._send(flight, now) for flight in probes]

    def settle(self, batch: Sequence[Settled], now: float) -> tuple[list[Flight], list[tuple[Flight, Settled]]]:
        """The rows of `batch` that were confirmed, and the others with their answers.

        An answer for a row that is not in flight any more (its shard was lost) is passed over.
        """
        sent = self._sent
        confirmed: list[Flight] = []
        others: list[tuple[Flight, Settled]] = []
        for answer in batch:
            flight = sent.pop(answer.ticket, None)
            if flight is None:
                continue
            self._take_off(flight)
            self._hindered.discard(flight.lane)
            flight.settled_at = now
            if answer.settlement is Settlement.CONFIRMED:
                self._answered[flight.lane] = (flight.sent_at, now)
                confirmed.append(flight)
            else:
                others.append((flight, answer))
        return confirmed, others

    def again(self, flights: Iterable[Flight]) -> None:
        """Rows whose fate nobody knows are ready once more, suspects one by one until they are answered.

        Those of shards lost meanwhile are passed over.
        """
        back = [flight for flight in flights if self._places.get(flight.place) is flight]
        self._ready.extend(back)
        self._ready.sort(key=_place)
        self._suspects.update(flight.place for flight in back if flight.suspect)

    def done(self, flights: Iterable[Flight]) -> None:
        """The outbox knows what became of these, or they are put back unsent: they may be read again."""
        for flight in flights:
            if self._places.get(flight.place) is flight:
                del self._places[flight.place]
                self._shards[flight.shard] -= 1
                self._suspects.discard(flight.place)

    def withdraw(self, lane: str | None = None) -> list[Flight]:
        """Take back all that is ready and not handed over, or what of it is of one route, but for its probe."""
        if lane is None:
            back, self._ready, self._probes = [*self._ready, *self._probes], [], []
        else:
            back = [flight for flight in self._ready if flight.lane == lane]
            self._ready = [flight for flight in self._ready if flight.lane != lane]
        self.done(back)
        return back

    def hold_back(self, held: Callable[[int, int, int | None], bool]) -> None:
        """Take back those ready ones for which `held` (shard, place, key hash) says so."""
        back = [flight for flight in self._ready if held(flight.shard, flight.place, flight.key_hash)]
        if back:
            gone = set(map(id, back))
            self._ready = [flight for flight in self._ready if id(flight) not in gone]
            self.done(back)

    def forget(self, shard: int) -> int:
        """Drop every row of `shard`, whose lease is gone: what the broker still answers changes nothing; how many."""
        gone = [flight for flight in self._places.values() if flight.shard == shard]
        self._ready = [flight for flight in self._ready if flight.shard != shard]
        self._probes = [flight for flight in self._probes if flight.shard != shard]
        for flight in gone:
            if flight.outgoing is not None and self._sent.pop(flight.outgoing.ticket, None) is not None:
                self._take_off(flight)
        self.done(gone)
        return len(gone)

    def _fits(self, flight: Flight) -> bool:
        if not flight.lane:
            return True
        count, size = self._lanes.get(flight.lane, (0, 0))
        return not count or (count < self.lane_limit and size + flight.size <= self._lane_bytes)

    def _send(self, flight: Flight, now: float) -> Outgoing:
        assert flight.outgoing is not None  # admitted with its publish
        flight.sent_at = now
        self._bytes += flight.size
        count, size = self._lanes.get(flight.lane, (0, 0))
        self._lanes[flight.lane] = (count + 1, size + flight.size)
        self._sent[flight.outgoing.ticket] = flight
        return flight.outgoing

    def _take_off(self, flight: Flight) -> None:
        self._bytes -= flight.size
        count, size = self._lanes[flight.lane]
        if count > 1:
            self._lanes[flight.lane] = (count - 1, size - flight.size)
        else:
            del self._lanes[flight.lane]
        if self._suspects:
            self._suspects.discard(flight.place)

    def _hand_over_suspect(self, now: float) -> list[Outgoing]:
        if any(not flight.probe for flight in self._sent.values()):
            return []
        for number, flight in enumerate(self._ready):
            if flight.place in self._suspects:
                del self._ready[number]
                return [self._send(flight, now)]
        return []


def _place(flight: Flight) -> int:
    return flight.place
