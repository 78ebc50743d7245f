"""Shows the coming due times as a clock on the wall would, and what that clock does around them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from postroad.schedules.cron import Cron
from postroad.schedules.timing import dues
from postroad.schedules.zones import changes

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from postroad.schedules.timing import Timing

_LATELY = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Coming:
    """One due time: in UTC, on the zone's clock, and what its clock has done lately; None for nothing."""

    due: datetime
    local: datetime
    change: str | None


def coming(timing: Timing, zone: ZoneInfo, *, after: datetime, count: int) -> list[Coming]:
    """The next `count` due times strictly later than `after`; fewer if there are no more."""
    found = []
    before = after
    for due in islice(dues(timing, zone, after=after), count):
        told = [*_moved(timing, zone, max(before, due - _LATELY), due), *_twice(zone, due)]
        found.append(Coming(due, due.astimezone(zone), "; ".join(told) or None))
        before = due
    return found


def _moved(timing: Timing, zone: ZoneInfo, after: datetime, due: datetime) -> list[str]:
    """The changes of the clock in (`after`, `due`], in words."""
    told = []
    for at, old, new in changes(zone, after, due):
        wall = at.replace(tzinfo=None)
        told.append(f"the clock goes from {_clock(wall + old)} to {_clock(wall + new)} at {at:%H:%M} UTC")
        if isinstance(timing, Cron) and timing.fixed and new > old and at == due and not _shows(timing, wall + new):
            told.append("a time between is due, and runs now")
    return told


def _twice(zone: ZoneInfo, due: datetime) -> list[str]:
    """Whether the clock shows this time of day twice."""
    local = due.astimezone(zone)
    first, second = local.replace(fold=0).utcoffset(), local.replace(fold=1).utcoffset()
    if first is None or second is None or first <= second:
        return []
    return [f"the clock shows {_clock(local)} twice, and this is the {'second' if local.fold else 'first'} time"]


def _shows(timing: Cron, wall: datetime) -> bool:
    """Whether the text names that time itself."""
    return timing.matches(wall.date()) and wall.hour in timing.hours and wall.minute in timing.minutes


def _clock(wall: datetime) -> str:
    return f"{wall:%H:%M}" if not wall.second else f"{wall:%H:%M:%S}"
