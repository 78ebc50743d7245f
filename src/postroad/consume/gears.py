"""The gears of a consumer: whether its deliveries share transactions or run in one of their own each."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from postroad.clock import seconds

if TYPE_CHECKING:
    from postroad.clock import Clock

FAST_BELOW: Final = seconds(0.005)
SLOW_ABOVE: Final = seconds(0.008)
MEAN_OF: Final = 100
"""Handler durations in the moving mean. The first few count as if there were more: a cold start is no habit."""

AGE: Final = seconds(0.05)
"""A group that is older commits after the handler that runs."""

MOST: Final = 32
MOST_IN_TURNS: Final = 64
"""Deliveries in a group. In turns each waits for the commit before it: so that is shared by more of them."""

ABREAST: Final = 4
"""Groups open at once: while one waits for the database, another runs handlers. More gain nothing on two cores."""

PENALTY: Final = seconds(60)
"""How long a consumer whose groups keep ending early runs in the slow gear, and how long a failure is remembered."""

_LEAST_OF: Final = 20
_NO_TIME: Final = 1e-6
_BROKEN: Final = 3
_OF_GROUPS: Final = 20


class Gears:
    """Chooses the gear of one consumer in one process, with hysteresis: fast below 5 ms, slow above 8 ms.

    In the fast gear it also says how far groups are trusted: as long as nothing has failed for a minute they go
    without savepoints, and several at once as long as no two of them got into each other's way.
    """

    def __init__(self, clock: Clock, *, allowed: bool, concurrency: int) -> None:
        """Start in the fast gear where it is `allowed`; at most `concurrency` handlers run at once."""
        self._clock = clock
        self._allowed = allowed
        self._concurrency = concurrency
        self._quick = True
        self._durations: deque[float] = deque(maxlen=MEAN_OF)
        self._sum = 0.0
        self._endings: deque[bool] = deque(maxlen=_OF_GROUPS)
        self._penalty_until = 0.0
        self._careful_until = self._single_until = self._apart_until = 0.0

    @property
    def fast(self) -> bool:
        """Whether deliveries are grouped now."""
        if not self._allowed or not self._quick:
            return False
        return self._over(self._penalty_until)

    @property
    def optimistic(self) -> bool:
        """Whether a group goes without savepoints."""
        return self._over(self._careful_until)

    @property
    def abreast(self) -> int:
        """How many groups may run handlers at once.

        On one loop each handler takes longer beside others: not so many that this alone would make them slow.
        """
        if not self.optimistic or self._in_turns:
            return 1
        bearable = max(1, int(FAST_BELOW.total_seconds() / max(self._mean(), _NO_TIME)))
        return min(ABREAST, self._concurrency, bearable)

    @property
    def overlapping(self) -> bool:
        """Whether, where handlers take turns, the next group's begin while the one before it commits."""
        return self.optimistic and self._over(self._apart_until)

    @property
    def open(self) -> int:
        """How many groups may be open at once: where handlers take turns, one of them waits for its own."""
        return min(self._concurrency, max(self.abreast, 2))

    @property
    def size(self) -> int:
        """How many deliveries a group takes: as many as end within its age, if they go on as they did."""
        mean, most = self._mean(), MOST_IN_TURNS if self.optimistic and self._in_turns else MOST
        return most if mean * most <= AGE.total_seconds() else max(2, int(AGE.total_seconds() / mean))

    def took(self, duration: float) -> None:
        """A handler took so many seconds."""
        durations = self._durations
        if len(durations) == MEAN_OF:
            self._sum -= durations[0]
        durations.append(duration)
        self._sum += duration
        limit = SLOW_ABOVE if self._quick else FAST_BELOW
        self._quick = self._mean() < limit.total_seconds()

    def ended(self, *, early: bool) -> None:
        """A group ended; `early` where something other than a member's own failure or its age ended it."""
        self._endings.append(early)
        if early and sum(self._endings) >= _BROKEN:
            self.punish()

    def punish(self) -> None:
        """Run in the slow gear for a minute."""
        self._endings.clear()
        self._penalty_until = self._clock.monotonic() + PENALTY.total_seconds()

    def failed(self) -> None:
        """A group without savepoints failed, so that for a minute they have them."""
        self._careful_until = self._clock.monotonic() + PENALTY.total_seconds()

    def collided(self) -> None:
        """Groups that were open at once got into each other's way, so that for a minute there is one at a time."""
        self._single_until = self._clock.monotonic() + PENALTY.total_seconds()

    def overtook(self) -> None:
        """A group waited for a commit before it longer than for a lock: for a minute they do not overlap."""
        self._apart_until = self._clock.monotonic() + PENALTY.total_seconds()

    @property
    def _in_turns(self) -> bool:
        return not self._over(self._single_until)

    def _over(self, until: float) -> bool:
        return until == 0.0 or self._clock.monotonic() >= until

    def _mean(self) -> float:
        return self._sum / max(len(self._durations), _LEAST_OF)
