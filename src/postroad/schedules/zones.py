"""Time zones: which names are taken, and where in a day their clocks change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, available_timezones

from postroad.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DAY: Final = 86_400
SECOND: Final = timedelta(seconds=1)
MOST_SHIFT: Final = 3 * 3600
"""A clock that changes by more than this is corrected, not changed: nothing is made up for (Debian's cron)."""

_ABBREVIATION: Final = re.compile(r"[A-Z]{2,5}(?:[+-]?[0-9]{1,2}(?:[A-Z]{3})?)?")
_NOT_A_PLACE: Final = re.compile(r"right/.*|posix/.*|posixrules|localtime|Factory")
_LINKS: Final = frozenset({"GB", "NZ", "PRC", "ROC", "ROK"})  # Countries that look like abbreviations.
_STEP: Final = 3 * 3600


def zone_named(name: object) -> ZoneInfo:
    """The zone of an IANA name, as ``America/New_York``; ``UTC`` is one.

    Raises:
        UsageError: PR107, the name is unknown, or a fixed abbreviation (``CET``, ``EST``), whose clock says nothing
            about summer time where the author lives.
    """
    if not isinstance(name, str):
        raise UsageError("PR107", f"zone is a {type(name).__name__}; write an IANA name, as zone='Europe/Paris'")
    shown = repr(name[:80])
    if name != "UTC" and name not in _LINKS and _ABBREVIATION.fullmatch(name):
        hint = "write the IANA name of a place, as 'Europe/Paris' or 'America/New_York', or 'UTC'"
        raise UsageError("PR107", f"zone {shown} is an abbreviation; {hint}")
    if not _NOT_A_PLACE.fullmatch(name):
        try:
            return ZoneInfo(name)
        except (OSError, ValueError, LookupError):  # Not found, a folder, or a path that leads elsewhere.
            pass
    lowered = {one.lower(): one for one in available_timezones()}
    near = get_close_matches(name.lower(), lowered, n=1, cutoff=0.7)
    hint = f"did you mean {lowered[near[0]]!r}?" if near else "write an IANA name, as 'Europe/Paris'"
    raise UsageError("PR107", f"zone {shown} is not known; {hint}")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one UTC day in which the offset from UTC stays the same; all in whole seconds.

    `start` and `end` are since the epoch. `before` is the offset just before `start`: another one than `offset` where
    the clock changes there. Until `repeats_until` the wall clock shows what it has shown before.
    """

    start: int
    end: int
    offset: int
    before: int
    repeats_until: int

    @property
    def gap(self) -> bool:
        """Whether the clock jumps ahead at `start`, by no more than a change of summer time does."""
        return 0 < self.offset - self.before <= MOST_SHIFT


@lru_cache(maxsize=4096)
def spans(zone: ZoneInfo, day: int) -> tuple[Span, ...]:
    """The spans of UTC day number `day` since the epoch, in order; cached, since every schedule of a zone asks."""
    start, end = day * DAY, (day + 1) * DAY
    # Of a change up to three hours before, the repeated times may reach into this day.
    found = list(_changes(zone, start - MOST_SHIFT - 1, end - 1))
    before = {at: offset_at(zone, at - 1) for at in {start, *found}}
    repeats = {at: at + old - offset_at(zone, at) for at, old in before.items()}
    starts = [start, *(at for at in found if at > start)]
    made = []
    for first, last in zip(starts, [*starts[1:], end], strict=True):
        until = [to for at, to in repeats.items() if at <= first and to - at <= MOST_SHIFT]
        made.append(Span(first, last, offset_at(zone, first), before[first], max([start, *until])))
    return tuple(made)


def changes(zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[tuple[datetime, timedelta, timedelta]]:
    """Where the clock changes in (`after`, `until`]: the instant, and the offsets before and from it on."""
    for at in _changes(zone, seconds_of(after), seconds_of(until)):
        yield instant(at), timedelta(seconds=offset_at(zone, at - 1)), timedelta(seconds=offset_at(zone, at))


def offset_at(zone: ZoneInfo, at: int) -> int:
    """The offset from UTC at an instant, in seconds."""
    offset = instant(at).astimezone(zone).utcoffset()
    return 0 if offset is None else offset // SECOND


def instant(at: int) -> datetime:
    """Seconds since the epoch as an aware time in UTC."""
    return EPOCH + timedelta(seconds=at)


def seconds_of(at: datetime) -> int:
    """An aware time as whole seconds since the epoch, rounded down."""
    return (at - EPOCH) // SECOND


def _changes(zone: ZoneInfo, after: int, until: int) -> Iterator[int]:
    """Instants in (`after`, `until`] from which on another offset holds; two within three hours count as one."""
    low, known = after, offset_at(zone, after)
    while low < until:
        high = min(low + _STEP, until)
        new = offset_at(zone, high)
        if new != known:
            left, right = low, high
            while right - left > 1:
                middle = (left + right) // 2
                left, right = (left, middle) if offset_at(zone, middle) != known else (middle, right)
            yield right
        low, known = high, new
