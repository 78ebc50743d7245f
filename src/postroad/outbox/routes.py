"""Routes that are passed over, so that one that is refused, hangs or is at its limit never stops the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad.outbox.flight import Flight, Route, route
from postroad.signals.catalog import RouteBlocked, RouteReleased

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.outbox.floor import Floors
    from postroad.outbox.settings import DispatchSettings
    from postroad.outbox.window import Window
    from postroad.signals import Signals

_FAR: Final = 4000
_NEAR: Final = 250


@dataclass(slots=True, eq=False)
class Passed:
    """A route whose rows are passed over; `back` says, per shard, above which place they are to be read again.

    Its breaker is `blocked` from a refusal until a probe is confirmed: until then nothing but one probe per backoff
    is sent of it. Otherwise it is only behind, and its rows are read apart from the others' until it has caught up;
    one that `crawls` has kept a publish waiting for over a second.
    """

    route: Route
    back: dict[int, int]
    blocked: bool = False
    crawls: bool = False
    since: float = 0.0
    tries: int = 0
    probe_at: float = 0.0
    probing: Flight | None = field(default=None, repr=False)


class Routes:
    """The routes that are passed over, in memory: what a take-over needs to know lies in the refused rows themselves.

    The statements that read pass over the rows of these routes by name; each route has a position of its own in each
    shard, from which on its rows are read once it may go on. Rows for one consumer (replays) have no part in this.
    """

    def __init__(
        self,
        *,
        floors: Floors,
        window: Window,
        settings: DispatchSettings,
        clock: Clock,
        chance: Callable[[], float],
        signals: Signals,
    ) -> None:
        """Nothing is passed over."""
        self._floors = floors
        self._window = window
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._signals = signals
        self._passed: dict[str, Passed] = {}
        self._slow: frozenset[str] = frozenset()
        self._released: list[str] = []

    @property
    def any(self) -> bool:
        """Whether any route is passed over."""
        return bool(self._passed)

    def names(self) -> list[str]:
        """The routing keys that are passed over."""
        return list(self._passed)

    def blocked(self) -> list[str]:
        """The routing keys whose breaker is open."""
        return [name for name, passed in self._passed.items() if passed.blocked]

    def blocks(self, flight: Flight) -> bool:
        """Whether the breaker of its route is open."""
        passed = self._passed.get(flight.lane)
        return passed is not None and passed.blocked

    # --- what the broker answered -------------------------------------------------------------------------------

    def refused(self, flight: Flight, reason: str) -> None:
        """The broker did not take `flight` for its route's sake: the breaker opens, or stays open longer.

        One row that is refused again and again while others of its route arrive opens nothing.
        """
        if not flight.lane:
            return
        passed = self._passed.get(flight.lane)
        if passed is not None and passed.blocked:
            if passed.probing is flight:
                self._probe_later(passed)
            return
        alone = self._settings.refused.first.total_seconds()
        if flight.attempts and self._window.confirmed_at(flight.lane) > flight.sent_at - alone:
            return
        self._block(passed or self._pass_over(flight.route), reason)

    def confirmed(self, flight: Flight) -> None:
        """A probe arrived: the breaker closes. What was refused goes at once, then what was passed over, in order."""
        passed = self._passed.get(flight.lane)
        if passed is None or passed.probing is not flight:
            return
        passed.blocked, passed.tries, passed.probing = False, 0, None
        self._released.append(flight.lane)
        self._tell_released(passed)

    def unanswered(self, flight: Flight) -> None:
        """A probe had no answer, or one that says nothing of its route: another goes out, after the first wait."""
        passed = self._passed.get(flight.lane)
        if passed is not None and passed.probing is flight:
            passed.probing = None
            passed.probe_at = self._clock.monotonic() + self._settings.refused.first.total_seconds()
        self.put_back([flight])

    def put_back(self, flights: Iterable[Flight]) -> None:
        """Rows of routes that are passed over are not sent now: they are read again, in their turn."""
        back = list(flights)
        for flight in back:
            passed = self._passed.get(flight.lane)
            if passed is not None and flight.shard in passed.back:
                passed.back[flight.shard] = min(passed.back[flight.shard], flight.place - 1)
        self._window.done(back)

    def released(self) -> list[str]:
        """The routing keys that were released and whose refused rows are not yet let go."""
        return self._released

    # --- what the reader asks -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Pass over the routes that fill their share of the window, or wait for answers that others get."""
        settings = self._settings
        self._slow = self._window.slow(
            self._clock.monotonic(), full=settings.full.total_seconds(), silent=settings.silent.total_seconds()
        )
        for name in self._slow:
            passed = self._passed.get(name)
            if passed is None:
                passed = self._pass_over(route(name))
                self._withdraw(passed)
            passed.crawls = passed.crawls or self._window.crawls(name, self._clock.monotonic())

    def ahead(self) -> int:
        """How many rows of each shard may be looked through for those of other routes than the passed ones.

        Many, where a route is in trouble; few, where one has only now stopped: mostly it goes on at once. None where
        they all go on: their turn comes before what lies beyond.
        """
        if any(passed.blocked or passed.crawls for passed in self._passed.values()):
            return _FAR
        return _NEAR if self._slow else 0

    def to_probe(self) -> list[Passed]:
        """The routes of which one row is to be tried now; none before a first read has said what there is."""
        now = self._clock.monotonic()
        if not any(self._floors.cursor.values()):
            return []
        return [each for each in self._passed.values() if each.blocked and not each.probing and each.probe_at <= now]

    def to_follow(self) -> Iterator[tuple[Passed, int]]:
        """The routes that are behind and may go on, each with how many of its rows may be read."""
        for name, passed in self._passed.items():
            room = self._window.lane_room(name)
            if not passed.blocked and name not in self._slow and 2 * room >= self._window.lane_limit:
                yield passed, room

    def ranges(self, passed: Passed, shards: Iterable[int]) -> tuple[list[int], list[int], list[int]]:
        """Where rows of a route that is behind lie: shards, above which place, up to which."""
        mine = [shard for shard in shards if shard in passed.back and shard in self._floors.cursor]
        lows = [min(passed.back[shard], self._floors.floor[shard]) for shard in mine]
        return mine, lows, [self._floors.cursor[shard] for shard in mine]

    def probe(self, passed: Passed, flight: Flight | None) -> None:
        """`flight` goes out to try the route; None: none of its rows can, or there is none any more."""
        passed.probing = flight
        if flight is None:
            passed.probe_at = self._clock.monotonic() + self._settings.refused.first.total_seconds()

    def caught_up(self, passed: Passed) -> None:
        """Nothing of the route lies behind any more: it is read with the others again."""
        if self._passed.pop(passed.route.key, None) is not None and passed.blocked:
            self._tell_released(passed)

    # --- shards -------------------------------------------------------------------------------------------------

    def add(self, shard: int, refused: Mapping[str, str]) -> None:
        """`shard` is read from its beginning; its rows of the routes `refused` (with a reason) had been refused."""
        for name, reason in refused.items():
            if name not in self._passed and not self._window.confirmed_at(name):
                self._block(self._pass_over(route(name)), reason, probe_now=True)
        for passed in self._passed.values():
            passed.back[shard] = 0

    def drop(self, shard: int) -> None:
        """`shard` is read no more."""
        for passed in self._passed.values():
            passed.back.pop(shard, None)
            if passed.probing is not None and passed.probing.shard == shard:
                passed.probing = None

    def rewind(self, shard: int, place: int) -> None:
        """What was held back from `place` on is to be read again, of whatever route."""
        for passed in self._passed.values():
            if shard in passed.back:
                passed.back[shard] = min(passed.back[shard], place - 1)

    # --- within -------------------------------------------------------------------------------------------------

    def _pass_over(self, where: Route) -> Passed:
        passed = self._passed[where.key] = Passed(where, dict(self._floors.floor), since=self._clock.monotonic())
        return passed

    def _withdraw(self, passed: Passed) -> None:
        self.put_back(self._window.withdraw(passed.route.key))

    def _block(self, passed: Passed, reason: str, *, probe_now: bool = False) -> None:
        passed.blocked, passed.since = True, self._clock.monotonic()
        if probe_now:
            passed.probe_at = passed.since
        else:
            self._probe_later(passed)
        self._withdraw(passed)
        self._signals.emit(RouteBlocked(passed.route.type, passed.route.version, reason))

    def _probe_later(self, passed: Passed) -> None:
        passed.tries += 1
        wait: timedelta = self._settings.refused.delay(passed.tries, chance=self._chance())
        passed.probing, passed.probe_at = None, self._clock.monotonic() + wait.total_seconds()

    def _tell_released(self, passed: Passed) -> None:
        now = self._clock.monotonic()
        self._signals.emit(RouteReleased(passed.route.type, passed.route.version, now - passed.since))
