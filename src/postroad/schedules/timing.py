"""When something is due: cron text, an interval or one instant, behind one protocol."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol

from postroad.errors import UsageError
from postroad.schedules.cron import Cron
from postroad.schedules.zones import EPOCH, SECOND, instant, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from zoneinfo import ZoneInfo

NOTHING: Final = timedelta(0)


class Timing(Protocol):
    """The due times of a schedule; pure, so that every process works out the same."""

    def next(self, after: datetime, zone: ZoneInfo, /) -> datetime | None:
        """The first due instant strictly later than `after` (aware), in UTC; None for never again."""
        ...

    def count(self, after: datetime, until: datetime, zone: ZoneInfo, /) -> int:
        """How many due instants are in (`after`, `until`], without going through them one by one."""
        ...

    def explain(self) -> str:
        """It in plain words."""
        ...

    def warnings(self) -> list[str]:
        """What it may mean elsewhere."""
        ...

    def stored(self) -> dict[str, object]:
        """It as plain JSON values, which `timing_of` reads back."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """An interval on the grid of the epoch: multiples of `every` since 1970-01-01T00:00Z, moved by `phase`.

    So a restart, or another process, finds the same times. Both are whole seconds; the zone does not matter.

    Raises:
        UsageError: PR107, naming the field.
    """

    every: timedelta
    phase: timedelta = NOTHING

    def __post_init__(self) -> None:
        """Refuse what would be no grid."""
        for name, value in (("every", self.every), ("phase", self.phase)):
            given: object = value  # Untyped code may hand in anything.
            if not isinstance(given, timedelta):
                raise UsageError("PR107", f"{name} is a {type(given).__name__}; write a duration, as seconds(90)")
            if value % SECOND:
                raise UsageError("PR107", f"{name} {value} has parts of a second; write whole seconds")
        if self.every <= NOTHING:
            raise UsageError("PR107", f"every {self.every} is not above zero; write a duration, as 5m, or minutes(5)")
        if not NOTHING <= self.phase < self.every:
            raise UsageError("PR107", f"phase {self.phase} is not from zero to below every ({self.every}); lower it")

    def next(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        """See `Timing.next`."""
        del zone
        passed = (after - EPOCH - self.phase) // self.every
        try:
            return EPOCH + self.phase + (passed + 1) * self.every
        except OverflowError:  # After the year 9999.
            return None

    def count(self, after: datetime, until: datetime, zone: ZoneInfo) -> int:
        """See `Timing.count`."""
        del zone
        return max(0, (until - EPOCH - self.phase) // self.every - (after - EPOCH - self.phase) // self.every)

    def explain(self) -> str:
        """See `Timing.explain`."""
        shift = f", {self.phase} after them" if self.phase else ""
        return f"Every {self.every}, at multiples of it since 1970-01-01 00:00 UTC{shift}"

    def warnings(self) -> list[str]:
        """See `Timing.warnings`."""
        return []

    def stored(self) -> dict[str, object]:
        """See `Timing.stored`."""
        return {"every": self.every // SECOND, "phase": self.phase // SECOND}


@dataclass(frozen=True, slots=True)
class At:
    """One instant, once.

    Raises:
        UsageError: PR107, it is no aware time.
    """

    at: datetime

    def __post_init__(self) -> None:
        """Keep it in UTC, and refuse a time without a zone."""
        given: object = self.at
        if not isinstance(given, datetime) or given.utcoffset() is None:
            raise UsageError("PR107", f"at {given!r:.80} is no time with a zone; write datetime(..., tzinfo=UTC)")
        object.__setattr__(self, "at", self.at.astimezone(UTC))

    def next(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        """See `Timing.next`."""
        del zone
        return self.at if after < self.at else None

    def count(self, after: datetime, until: datetime, zone: ZoneInfo) -> int:
        """See `Timing.count`."""
        del zone
        return int(after < self.at <= until)

    def explain(self) -> str:
        """See `Timing.explain`."""
        return f"Once, at {self.at:%Y-%m-%d %H:%M:%S} UTC"

    def warnings(self) -> list[str]:
        """See `Timing.warnings`."""
        return []

    def stored(self) -> dict[str, object]:
        """See `Timing.stored`."""
        return {"at": self.at.isoformat()}


def dues(timing: Timing, zone: ZoneInfo, *, after: datetime, until: datetime | None = None) -> Iterator[datetime]:
    """Every due instant in (`after`, `until`], in order; without `until` all that ever come."""
    at = timing.next(after, zone)
    while at is not None and (until is None or at <= until):
        yield at
        at = timing.next(at, zone)


def newest(
    timing: Timing, zone: ZoneInfo, *, after: datetime, until: datetime, most: int
) -> tuple[list[datetime], int, datetime]:
    """Of more than `most` due instants in (`after`, `until`] the newest: those, how many are older, the last of these.

    It counts rather than walks, so that two days of a schedule of seconds cost no more than two hours of it.
    """
    low, high = seconds_of(after), seconds_of(until)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if timing.count(instant(middle), until, zone) > most else (low, middle)
    last = instant(high)
    return list(dues(timing, zone, after=last, until=until)), timing.count(after, last, zone), last


def timing_of(stored: Mapping[str, object]) -> Timing:
    """The timing that ``stored()`` kept.

    Raises:
        UsageError: PR107, it is none.
    """
    cron, every, phase, at = (stored.get(name) for name in ("cron", "every", "phase", "at"))
    if isinstance(cron, str):
        return Cron(cron)
    if isinstance(every, int) and isinstance(phase, int):
        return Every(timedelta(seconds=every), timedelta(seconds=phase))
    if isinstance(at, str):
        return At(datetime.fromisoformat(at))
    raise UsageError("PR107", f"a stored timing has neither 'cron', 'every' nor 'at' but {sorted(stored)}")
