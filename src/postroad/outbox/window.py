"""What is in flight: each row once, from its read until the outbox knows its outcome; bounded by count and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from postroad.transport.base import Settled, Settlement

if TYPE_CHECKING:
    from postroad.outbox.flight import Flight
    from postroad.transport.base import Outgoing


class Window:
    """The rows between the outbox and the broker.

    *ready* are read and not yet handed over; *sent* are with the broker; the others are settled and wait for the
    outbox to be told (`done`). A row that nobody knows the fate of becomes ready again, with the bytes it had.
    """

    __slots__ = ("_bytes", "_limit", "_limit_bytes", "_places", "_ready", "_sent", "_shards")

    def __init__(self, limit: int, limit_bytes: int) -> None:
        """At most `limit` rows and `limit_bytes` bytes are with the broker at once; one row always may be."""
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._places: dict[int, Flight] = {}
        self._ready: list[Flight] = []
        self._sent: dict[int, Flight] = {}
        self._shards: Counter[int] = Counter()

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
        return len(self._ready)

    def places(self) -> list[int]:
        """The places of all rows in the window: whoever reads must pass them over."""
        return list(self._places)

    def retrying(self) -> int:
        """How many rows in the window were refused before."""
        return sum(1 for flight in self._places.values() if flight.attempts)

    def busy(self, shard: int) -> bool:
        """Whether any row of `shard` is in the window."""
        return self._shards[shard] > 0

    def admit(self, flights: Iterable[Flight]) -> None:
        """Take rows that were read, with their publishes; they go out in order of place."""
        for flight in flights:
            if flight.place not in self._places:
                self._places[flight.place] = flight
                self._shards[flight.shard] += 1
                self._ready.append(flight)
        self._ready.sort(key=_place)

    def keep(self, flights: Iterable[Flight]) -> None:
        """Take rows that are not to be sent, until the outbox is told of them."""
        for flight in flights:
            if flight.place not in self._places:
                self._places[flight.place] = flight
                self._shards[flight.shard] += 1

    def hand_over(self, now: float) -> list[Outgoing]:
        """Move ready rows to the broker as far as the bounds allow; their publishes, in order."""
        batch: list[Outgoing] = []
        taken = 0
        for flight in self._ready:
            full = len(self._sent) >= self._limit or self._bytes + flight.size > self._limit_bytes
            if full and self._sent:
                break
            taken += 1
            assert flight.outgoing is not None  # admitted with its publish
            flight.sent_at = now
            self._bytes += flight.size
            self._sent[flight.outgoing.ticket] = flight
            batch.append(flight.outgoing)
        del self._ready[:taken]
        return batch

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
            self._bytes -= flight.size
            flight.settled_at = now
            if answer.settlement is Settlement.CONFIRMED:
                confirmed.append(flight)
            else:
                others.append((flight, answer))
        return confirmed, others

    def again(self, flights: Iterable[Flight]) -> None:
        """Rows whose fate nobody knows are ready once more; those of shards lost meanwhile are passed over."""
        self._ready.extend(flight for flight in flights if self._places.get(flight.place) is flight)
        self._ready.sort(key=_place)

    def done(self, flights: Iterable[Flight]) -> None:
        """The outbox knows what became of these, or they are put back unsent: they may be read again."""
        for flight in flights:
            if self._places.get(flight.place) is flight:
                del self._places[flight.place]
                self._shards[flight.shard] -= 1

    def withdraw(self) -> list[Flight]:
        """Take back all that is ready and not handed over."""
        back, self._ready = self._ready, []
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
        for flight in gone:
            if flight.outgoing is not None and self._sent.pop(flight.outgoing.ticket, None) is not None:
                self._bytes -= flight.size
        self.done(gone)
        return len(gone)


def _place(flight: Flight) -> int:
    return flight.place
