"""Cron text: five fields read strictly, and the instants at which they are due in a zone."""

from __future__ import annotations

import calendar
import re
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from cronsim import CronSim, CronSimError

from postroad.errors import UsageError
from postroad.schedules.zones import DAY, Span, instant, seconds_of, spans

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

FAR: Final = 50 * 366
"""How many days ahead a due time is looked for; beyond it, never."""

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
_DAYS: Final = "SUN MON TUE WED THU FRI SAT".split()


@dataclass(frozen=True, slots=True)
class _Field:
    """A place in the text: its name, the values that it takes, and their names."""

    name: str
    least: int
    most: int
    names: dict[str, int] = field(default_factory=dict)


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    _Field("day of week", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)
_DAY, _WEEKDAY = _FIELDS[2], _FIELDS[4]
_ITEM: Final = re.compile(r"(?:\*|([0-9]{1,9}|[A-Z]{3})(?:-([0-9]{1,9}|[A-Z]{3}))?)(?:/([0-9]{1,9}))?")
_NTH: Final = re.compile(r"([0-9]{1,9}|[A-Z]{3})(?:L|#([0-9]{1,9}))")
_WEEKS: Final = 5
_MOST_SHOWN: Final = 60
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
        parts = _read(self.text)
        try:
            rule = CronSim(" ".join(parts), datetime(1970, 1, 1, tzinfo=UTC))
        except CronSimError as error:  # All else was read already: only a day that its months do not have is left.
            raise _never(self.text, parts) from error
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
            raise _never(self.text, parts)

    def next(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        """The first instant strictly later than `after` (aware) at which it is due in `zone`, in UTC; None for never.

        Never means not within 50 years.
        """
        least = seconds_of(after) + 1
        day = least // DAY
        last = day + FAR
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
        return sum(self._due_in(span, least, most) for day in range(least // DAY, most // DAY + 1) for span in spans(zone, day))

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
        if self._rule.day_and:
            starred = f"day of month {days!r}" if days.startswith("*") else f"day of week {weekdays!r}"
            return [
                f"{starred} begins with a star, so a day must match BOTH day fields, as with Debian's cron; "
                "other schedulers run when either matches"
            ]
        return [
            "both day fields are given, so it runs on days that match EITHER; "
            "some schedulers (Cronos, Temporal) want both, Quartz refuses it"
        ]

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
                moved = int(missing is not None and self._first(span.start + span.offset, span.start + span.offset + 1) is None)
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


def _read(text: object) -> list[str]:
    """The five fields with their names as numbers, each checked."""
    if not isinstance(text, str):
        raise UsageError("PR107", f"cron is no text but {type(text).__name__}; write it, as cron='15 2 * * *'")
    stripped = text.strip(" \t")
    if stripped.startswith("@"):
        return _nickname(text, stripped)
    parts = re.split(r"[ \t]+", stripped)
    if len(parts) != len(_FIELDS) or not stripped:
        count = len(parts) if stripped else 0
        hint = "write minute, hour, day of month, month, day of week, as '15 2 * * *'"
        if count in {6, 7}:
            hint = "leave out seconds and year: five fields are read; for seconds, use every="
        raise _refused(text, f"it has {count} fields and not 5", hint)
    return [_items(text, place, part.upper()) for place, part in zip(_FIELDS, parts, strict=True)]


def _nickname(text: str, given: str) -> list[str]:
    found = NICKNAMES.get(given.lower())
    if found is None:
        hint = f"use one of {', '.join(NICKNAMES)}"
        if given.lower().startswith("@every"):
            hint = "use every=, an interval"
        if given.lower() == "@reboot":
            hint = "a schedule has no start of a machine; use one of " + ", ".join(NICKNAMES)
        raise _refused(text, f"the nickname {given[:_MOST_SHOWN]!r} is not known", hint)
    return found.split()


def _items(text: str, place: _Field, part: str) -> str:
    items = part.split(",")
    if "" in items:
        raise _refused(text, f"{place.name}: {_shown(part)} has an empty item", "remove the comma too many")
    return ",".join(_item(text, place, item) for item in items)


def _item(text: str, place: _Field, item: str) -> str:
    if place is _DAY and item == "L":
        return item
    nth = _NTH.fullmatch(item) if place is _WEEKDAY else None
    if nth is not None:
        return _nth(text, place, item, (nth[1], nth[2]))
    match = _ITEM.fullmatch(item)
    if match is None:
        raise _refused(text, f"{place.name}: {_shown(item)} cannot be read", _hint(place, item))
    first, last, step = match.groups()
    made = "*"
    if first is not None:
        low = _value(text, place, first)
        made = str(low)
        if last is not None:
            high = _value(text, place, last)
            made = f"{low}-{high}"
            if high < low:
                raise _refused(text, f"{place.name}: the range {item!r} is reversed", _reversed(place, low, high))
    return made if step is None else f"{made}/{_step(text, place, item, int(step))}"


def _nth(text: str, place: _Field, item: str, found: tuple[str, str | None]) -> str:
    weekday = _value(text, place, found[0])
    if found[1] is None:
        return f"{weekday}L"
    if not 1 <= int(found[1]) <= _WEEKS:
        raise _refused(text, f"{place.name}: {_shown(item)}: the number after # is 1 to 5", "for the last, write 5L")
    return f"{weekday}#{int(found[1])}"


def _value(text: str, place: _Field, given: str) -> int:
    if given.isdigit():
        value = int(given)
        if place.least <= value <= place.most:
            return value
        hint = f"it takes {place.least} to {place.most}"
        raise _refused(text, f"{place.name}: {given} is out of range", hint)
    if given in place.names:
        return place.names[given]
    hint = f"write a number, or one of {', '.join(place.names)}" if place.names else "write a number"
    raise _refused(text, f"{place.name}: the name {given!r} is not known", hint)


def _step(text: str, place: _Field, item: str, step: int) -> int:
    size = place.most - place.least + 1
    if step == 0:
        raise _refused(text, f"{place.name}: {_shown(item)} has a step of zero", f"a step is 1 to {size - 1}")
    if step >= size:
        what = f"{place.name}: the step of {_shown(item)} is as large as the field, so it would pick one value"
        raise _refused(text, what, f"a step is 1 to {size - 1}; for one value, write it alone")
    return step


def _reversed(place: _Field, low: int, high: int) -> str:
    if place is _WEEKDAY and high == 0:
        return f"Sunday is 7 at the end of a range: write {low}-7"
    second = f"{place.least}-{high}" if high > place.least else f"{high}"
    return f"write it as two: {low}-{place.most},{second}"


def _hint(place: _Field, item: str) -> str:
    """What the author may have meant, by what other schedulers read."""
    if not item.isascii():
        return "write ASCII digits, names and signs only"
    if item == "?":
        return "write *"
    if "W" in item and place is _DAY:
        return "nearest weekdays (W) are not read; name days, or L for the last"
    if "L" in item and place is _DAY:
        return "days before the last are not read; write L alone, or name days"
    if item == "L" and place is _WEEKDAY:
        return "write the weekday before it, as 5L for the last Friday"
    if "#" in item and place is not _WEEKDAY:
        return "# belongs to the day of week, as 5#2 for the second Friday"
    if item.startswith("H"):
        return "hashed values are not read; use jitter="
    return f"it takes {place.least} to {place.most}, *, lists (1,5), ranges (1-5) and steps (*/5)"


def _shown(item: str) -> str:
    return repr(item if len(item) <= _MOST_SHOWN else item[:_MOST_SHOWN] + "...")


def _never(text: str, parts: list[str]) -> UsageError:
    weekday = "" if parts[4] == "*" else f" with day of week {parts[4]!r}"
    what = f"day of month: {parts[2]!r} does not occur in month {parts[3]!r}{weekday}"
    return _refused(text, what, "it would never run; correct the day or the month")


def _refused(text: str, what: str, hint: str) -> UsageError:
    return UsageError("PR107", f"cron {_shown(text)}: {what}; {hint}")
