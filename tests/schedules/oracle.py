"""Due times found by going through every minute of a calendar: slow, and written apart from what it checks."""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
LIMIT = timedelta(hours=3)


def numbers(text: str, least: int, most: int) -> set[int]:
    """The values of a field of numbers, stars, lists, ranges and steps."""
    found: set[int] = set()
    for item in text.split(","):
        base, _, step = item.partition("/")
        low, _, high = base.partition("-")
        first = least if base == "*" else int(low)
        last = most if base == "*" or (step and not high) else int(high or low)
        found.update(range(first, last + 1, int(step or 1)))
    return found


def matches(fields: list[str], day: date) -> bool:
    """Whether the day fields and the month match, by Vixie's rule."""
    if day.month not in numbers(fields[3], 1, 12):
        return False
    if fields[2] == "L":
        in_month = day.day == calendar.monthrange(day.year, day.month)[1]
    else:
        in_month = day.day in numbers(fields[2], 1, 31)
    in_week = day.isoweekday() % 7 in {number % 7 for number in numbers(fields[4], 0, 7)}
    if fields[2].startswith("*") or fields[4].startswith("*"):
        return in_month and in_week
    return in_month or in_week


def instants(fields: list[str], zone: ZoneInfo, wall: datetime) -> Iterator[datetime]:
    """When a matching wall time is due: each fold of it is looked at, and then the rule is applied."""
    folds = [wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
    shown = sorted({at for at in folds if at.astimezone(zone).replace(tzinfo=None) == wall})
    elapsed = fields[0].startswith("*") or fields[1].startswith("*")
    if shown:
        far = shown[-1] - shown[0] > LIMIT
        yield from shown if elapsed or far else shown[:1]
    elif not elapsed and abs(folds[0] - folds[1]) <= LIMIT:
        at = min(folds).replace(second=0, microsecond=0)
        while at.astimezone(zone).replace(tzinfo=None) < wall:
            at += MINUTE
        yield at


def due(text: str, zone: ZoneInfo, *, after: datetime, until: datetime) -> list[datetime]:
    """Every due instant in (`after`, `until`]."""
    fields = text.split()
    hours, minutes = numbers(fields[1], 0, 23), numbers(fields[0], 0, 59)
    found: set[datetime] = set()
    day = after.date() - timedelta(days=1)
    while day <= until.date() + timedelta(days=1):
        if matches(fields, day):
            for hour in hours:
                for minute in minutes:
                    found.update(instants(fields, zone, datetime.combine(day, time(hour, minute))))
        day += timedelta(days=1)
    return sorted(at for at in found if after < at <= until)
