"""How long to wait before trying again: bounded, jittered, and pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from postroad.clock import hours, minutes, seconds
from postroad.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A budget of attempts and the delays between them.

    The delay before attempt n+1 is drawn from the upper half of ``min(most, first * factor**(n-1))``
    ("equal jitter"), so that callers that failed together do not come back together, and none comes back at once.
    """

    first: timedelta = seconds(2)
    most: timedelta = minutes(10)
    factor: float = 2.0
    attempts: int = 12
    max_age: timedelta = hours(24)

    def __post_init__(self) -> None:
        """Refuse a budget that could never end or would try without a pause.

        Raises:
            UsageError: a value is out of its range.
        """
        nothing = timedelta(0)
        if not (self.attempts >= 1 and 1 <= self.factor < math.inf and nothing < self.first <= self.most) or (
            self.max_age <= nothing
        ):
            message = f"{self!r} is not a budget: attempts and factor from 1, 0 < first <= most, 0 < max_age"
            raise UsageError("PR107", message)

    def delay(self, attempt: int, *, chance: float) -> timedelta:
        """The wait after failed attempt number `attempt` (from 1); `chance` is a random number in [0, 1)."""
        most, first = self.most.total_seconds(), self.first.total_seconds()
        # Compared by logarithms, since the power itself may be too large for a float.
        exponent = max(attempt, 1) - 1
        if exponent * math.log(self.factor) < math.log(most / first):
            most = first * self.factor**exponent
        return timedelta(seconds=most / 2 + most / 2 * chance)

    def spent(self, attempt: int, *, age: timedelta) -> bool:
        """Whether failed attempt number `attempt`, `age` after the first, was the last one allowed."""
        return attempt >= self.attempts or age >= self.max_age


def full_jitter(tries: int, *, first: timedelta, most: timedelta, chance: float) -> timedelta:
    """The wait before reconnect number `tries` (from 1): anything from zero to the exponential bound ("full jitter").

    All instances of a fleet reconnect together after a node drain, so the whole interval is used.
    """
    bound = min(most.total_seconds(), first.total_seconds() * 2.0 ** min(max(tries, 1) - 1, 32))
    return timedelta(seconds=bound * chance)


def next_look(*, left: float, crowd: int, chance: float) -> float | None:
    """How many seconds to rest before looking again at a name that another holds; None where none are `left`.

    A quarter of a second, and longer while a `crowd` of this process looks at such names, so that all of them together
    ask about twenty times a second; two seconds at most. Jittered by half either way, so that nobody keeps step.
    """
    if left <= 0:
        return None
    return min(left, min(2.0, max(0.25, 0.05 * crowd)) * (0.5 + chance))
