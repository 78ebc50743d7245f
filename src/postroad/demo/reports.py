"""Asks for the daily reports of past days, as operators would: by backfills of the schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from postroad.demo import flights
from postroad.runtime import operations, schedule_acts
from postroad.schedules.policy import Overlap

if TYPE_CHECKING:
    from pathlib import Path

SCHEDULE: Final = "punctuality.daily"
ZONE: Final = ZoneInfo("America/New_York")
BY: Final = ("postroad demo", "postroad demo, again")
"""Everything is asked for twice: what is planned already is passed over."""
_DAY: Final = timedelta(days=1)


def last_day(now: datetime) -> date:
    """The last day in New York whose report has certainly been due."""
    return now.astimezone(ZONE).date() - 2 * _DAY


def days_of(csv: Path, *, until: date) -> list[date]:
    """The days of the flights in `csv` up to `until`, in order."""
    return sorted(
        {line.day for line in flights.read(csv) if isinstance(line, flights.Flight) and line.day <= until}
    )  # fmt: skip


def ask(url: str, days: Iterable[date]) -> None:
    """Ask for the reports of `days` at the database `url`: each is due in the night after its day."""
    settings = operations.database_settings({"POSTROAD_DATABASE_URL": url})
    for by in BY:
        for first, last in _stretches(days):
            asyncio.run(
                schedule_acts.backfill(
                    settings, SCHEDULE, first=_midnight(first + _DAY), last=_midnight(last + 2 * _DAY),
                    overlap=Overlap.ALLOW, by=by,
                )
            )  # fmt: skip


def _stretches(days: Iterable[date]) -> list[tuple[date, date]]:
    """Days in a row, as their first and last."""
    found: list[tuple[date, date]] = []
    for day in days:
        if found and day == found[-1][1] + _DAY:
            found[-1] = found[-1][0], day
        else:
            found.append((day, day))
    return found


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=ZONE)
