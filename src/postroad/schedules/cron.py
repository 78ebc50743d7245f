"""Cron text: five fields read strictly, and the instants at which they are due in a zone."""

from __future__ import annotations

import calendar
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from cronsim import CronSim, CronSimError

from postroad.schedules.text import never, read
from postroad.schedules.zones import DAY, Span, instant, seconds_of, spans

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

FAR: Final = 50 * 366
"""How many days ahead a due time is looked for; beyond it, never."""

_AFTER_MIDNIGHT: Final = 24 * 60


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields of cron text: minute, hour, day of month, month, day of week.

    Names (``JAN``, ``MON``), 0 and 7 as Sunday, ``L`` (last day of the month), ``5L`` (last Friday), ``5#2`` (second
    Friday), lists, ranges, steps, and the nicknames from ``@hourly`` to ``@yearly`` are read. Both day fields given
    means either; where one begins with a star, both (Vixie and Debian).

    When the clock changes by up to three hours, as Debian's cron does it: fixed times that the clock leaves out run
    once, when it has jumped; those that it shows twice run the first time only. With a star at the start of minute or
    hour, the text is about elapsed time: it runs whenever the clock shows a matching time. A larger change, as of the
    date line, is a correction: nothing is made up for.

    Raises:
        UsageError: PR107, naming the field and what to write instead.
    """

    text: str
    minutes: tuple[int, ...] = field(init=False, compare=False, repr=False)
    hours: tuple[int, ...] = field(init=False, compare=False, repr=False)
    fixed: bool = field(init=False, compare=False, repr=False)
    """Whether it names times of day, rather than stretches of elapsed time."""
    _rule: CronSim = field(init=False, compare=False, repr=False)
    _daily: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Read the text, as strictly as the class says."""
        parts = read(self.text)
        try:
            rule = CronSim(" ".join(parts), datetime(1970, 1, 1, tzinfo=UTC))
        except CronSimError as error:  # All else was read already: only a day that its months do not have is left.
            raise never(self.text, parts) from error
        made = {
            "minutes": tuple(sorted(rule.minutes)),
            "hours": tuple(sorted(rule.hours)),
            "fixed": not parts[0].startswith("*") and not parts[1].startswith("*"),
            "_rule": rule,
            "_daily": parts[2:] == ["*", "*", "*"],
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)
        if not _can_occur(rule):
            raise never(self.text, parts)

    def next(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        """The first instant strictly later than `after` (aware) at which it is due in `zone`, in UTC; None for never.

        Never means not within 50 years.
        """
        least = seconds_of(after) + 1
        day = least // DAY
        last = min(day + FAR, _LAST)
        while day <= last:
            found = self._within(day, least, zone)
            if found is not None:
                return instant(found)
            day += 1
            match = self._next_date(day - 1, last)
            if match is None:
                return None
            day = max(day, match - 1)
        return None

    def count(self, after: datetime, until: datetime, zone: ZoneInfo) -> int:
        """How many due instants are in (`after`, `until`]."""
        least, most = seconds_of(after) + 1, seconds_of(until) + 1
        return sum(
            self._due_in(span, least, most) for day in range(least // DAY, most // DAY + 1) for span in spans(zone, day)
        )

    def matches(self, day: date) -> bool:
        """Whether it has times on that date of the zone's calendar."""
        return self._daily or (day.month in self._rule.months and self._rule.match_day(day))

    def explain(self) -> str:
        """The text in plain words."""
        return str(self._rule.explain())

    def warnings(self) -> list[str]:
        """What the text may mean elsewhere, or does otherwise than its author may think."""
        days, weekdays = self._rule.parts[3], self._rule.parts[5]
        if "*" in {days, weekdays}:
            return []
        if not self._rule.day_and:
            either = "both day fields are given, so it runs on days that match EITHER"
            return [f"{either}; some schedulers (Cronos, Temporal) want both, and Quartz refuses it"]
        starred = f"day of month {days!r}" if days.startswith("*") else f"day of week {weekdays!r}"
        both = f"{starred} begins with a star, so a day must match BOTH day fields, as with Debian's cron"
        return [f"{both}; other schedulers run when either matches"]

    def stored(self) -> dict[str, object]:
        """As it is kept: see `postroad.schedules.timing.timing_of`."""
        return {"cron": self.text}

    def _within(self, day: int, least: int, zone: ZoneInfo) -> int | None:
        """The first due second from `least` on, in one UTC day."""
        for span in spans(zone, day):
            if span.end <= least:
                continue
            start = max(span.start, least)
            if self.fixed:
                missing = (span.start + span.before, span.start + span.offset)
                if span.gap and span.start >= least and self._first(*missing) is not None:
                    return span.start
                start = max(start, span.repeats_until)
            wall = self._first(start + span.offset, span.end + span.offset)
            if wall is not None:
                return wall - span.offset
        return None

    def _due_in(self, span: Span, least: int, most: int) -> int:
        """How many are due in the part of a span that lies in [least, most)."""
        start, end, moved = max(span.start, least), min(span.end, most), 0
        if self.fixed:
            if span.gap and least <= span.start < most:
                missing = self._first(span.start + span.before, span.start + span.offset)
                moved = int(
                    missing is not None and self._first(span.start + span.offset, span.start + span.offset + 1) is None
                )
            start = max(start, span.repeats_until)
        return moved + (self._count(start + span.offset, end + span.offset) if start < end else 0)

    def _count(self, start: int, end: int) -> int:
        """How many matching wall times are in [start, end)."""
        first, last = -(-start // 60), -(-end // 60)
        whole = len(self.hours) * len(self.minutes)
        found = 0
        for day in range(first // _AFTER_MIDNIGHT, last // _AFTER_MIDNIGHT + 1):
            if self.matches(_date(day)):
                noon = day * _AFTER_MIDNIGHT
                upto = self._rank(last - noon) if last - noon < _AFTER_MIDNIGHT else whole
                found += upto - self._rank(max(first - noon, 0))
        return found

    def _rank(self, minute: int) -> int:
        """How many matching minutes of the day come before `minute`."""
        hour, rest = divmod(minute, 60)
        index = bisect_left(self.hours, hour)
        here = index < len(self.hours) and self.hours[index] == hour
        return index * len(self.minutes) + (bisect_left(self.minutes, rest) if here else 0)

    def _first(self, start: int, end: int) -> int | None:
        """The first matching wall time in [start, end): seconds since the epoch, as a clock would show them."""
        day, minute = divmod(-(-start // 60), _AFTER_MIDNIGHT)
        while day * DAY < end:
            time = self._time(minute) if self.matches(_date(day)) else None
            if time is not None:
                found = day * DAY + time * 60
                return found if found < end else None
            day, minute = day + 1, 0
        return None

    def _time(self, minute: int) -> int | None:
        """The first matching minute of the day from `minute` on."""
        hour, rest = divmod(minute, 60)
        index = bisect_left(self.hours, hour)
        if index < len(self.hours) and self.hours[index] == hour:
            place = bisect_left(self.minutes, rest)
            if place < len(self.minutes):
                return hour * 60 + self.minutes[place]
            index += 1
        return self.hours[index] * 60 + self.minutes[0] if index < len(self.hours) else None

    def _next_date(self, day: int, last: int) -> int | None:
        """The first matching date from number `day` on, up to `last`."""
        while day <= last + 2:
            at = _date(day)
            if at.month not in self._rule.months:
                day += calendar.monthrange(at.year, at.month)[1] - at.day + 1
            elif self.matches(at):
                return day
            else:
                day += 1
        return None


def _date(day: int) -> date:
    return date.fromordinal(day + _EPOCH_ORDINAL)


_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_LAST: Final = date.max.toordinal() - _EPOCH_ORDINAL - 7
"""A week before the calendar ends, so that no zone's clock passes its end."""


def _can_occur(rule: CronSim) -> bool:
    """Whether any day matches: every month can begin on any weekday, and February has 28 or 29 days."""
    seen = set()
    for year in range(2000, 2028):  # All fourteen calendars, leap years among them.
        for month in rule.months:
            kind = (month, calendar.monthrange(year, month))
            if kind in seen:
                continue
            seen.add(kind)
            if any(rule.match_day(date(year, month, day)) for day in range(1, kind[1][1] + 1)):
                return True
    return False
