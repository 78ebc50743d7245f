"""Reads cron text: five fields, as strictly as they can be, each refusal with its field and what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from postroad.errors import UsageError

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


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


def read(text: object) -> list[str]:
    """The five fields with names as numbers, each checked for itself.

    Raises:
        UsageError: PR107, naming the field.
    """
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
    base = _base(text, place, item, (match[1], match[2]))
    if match[3] is None:
        return base
    step = _step(text, place, item, int(match[3]))
    # A range of one value takes no step: cronsim would read 5-5/2 as 5/2, to the end of the field.
    return base if match[2] is not None and "-" not in base else f"{base}/{step}"


def _base(text: str, place: _Field, item: str, found: tuple[str | None, str | None]) -> str:
    """What a step would be of: all, one value, or a range."""
    if found[0] is None:
        return "*"
    low = _value(text, place, found[0])
    if found[1] is None:
        return f"{low}"
    high = _value(text, place, found[1])
    if high < low:
        raise _refused(text, f"{place.name}: the range {item!r} is reversed", _reversed(place, low, high))
    return f"{low}-{high}" if high > low else f"{low}"


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
    for pattern, name, hint in _HINTS:
        if (name is None or name == place.name) and pattern.search(item):
            return hint
    return f"it takes {place.least} to {place.most}, *, lists (1,5), ranges (1-5) and steps (*/5)"


_HINTS: Final = tuple(
    (re.compile(pattern), name, hint)
    for pattern, name, hint in (
        ("[^\x21-\x7e]", None, "write ASCII digits, names and signs only"),
        (r"^\?$", None, "write *"),
        ("W", _DAY.name, "nearest weekdays (W) are not read; name days, or L for the last"),
        ("L", _DAY.name, "days before the last are not read; write L alone, or name days"),
        ("^L$", _WEEKDAY.name, "name the weekday before it, as 5L for the last Friday"),
        ("^[A-Z]{4}", _WEEKDAY.name, f"names have three letters: {', '.join(_DAYS)}"),
        ("^[A-Z]{4}", "month", f"names have three letters: {', '.join(_MONTHS)}"),
        ("^H", None, "hashed values are not read; use jitter="),
        ("#", None, "# belongs to the day of week, as 5#2 for the second Friday"),
    )
)


def _shown(item: str) -> str:
    return repr(item if len(item) <= _MOST_SHOWN else item[:_MOST_SHOWN] + "...")


def never(text: str, parts: list[str]) -> UsageError:
    """The refusal of fields that are right one by one, and together never occur."""
    weekday = "" if parts[4] == "*" else f" with day of week {parts[4]!r}"
    what = f"day of month: {parts[2]!r} does not occur in month {parts[3]!r}{weekday}"
    return _refused(text, what, "it would never run; correct the day or the month")


def _refused(text: str, what: str, hint: str) -> UsageError:
    return UsageError("PR107", f"cron {_shown(text)}: {what}; {hint}")
