"""Times as people write them on a command line: a date with its zone, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import UsageError

HELP: Final = "2026-05-04T02:15:00+02:00, or 90m, 12h, 7d ago"
_AGO: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(option: str, text: str | None) -> datetime | None:
    """The time that `text`, given for `option`, means; None where there is none.

    Raises:
        UsageError: PR107, it is no time, or one without a zone.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return SYSTEM_CLOCK.now() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text)
        if found.utcoffset() is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise UsageError("PR107", f"{option} {text!r} is not a time with a zone; write it as {HELP}")


def span(options: tuple[str, str], since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """The two ends of a range, given for `options`; None where one is open.

    Raises:
        UsageError: PR107, one is no time, or the range is reversed or empty.
    """
    begin, end = (moment(option, text) for option, text in zip(options, (since, until), strict=True))
    if begin is not None and end is not None and end <= begin:
        raise UsageError("PR107", f"{options[1]} {until!r} is not after {options[0]} {since!r}: nothing lies between")
    return begin, end
