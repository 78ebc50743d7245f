"""What a schedule notes in the headers of the rows that it enqueues, and what is read from there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from postroad.work.wire import kept

if TYPE_CHECKING:
    from postroad.work.store import ClaimedRow

TOO_LATE: Final = "the start deadline had passed when a worker was free"


def note(*, schedule: str, due: datetime, zone: str, start_within: timedelta | None) -> dict[str, Any]:
    """The headers of a run of `schedule` that is due at `due` in `zone`, and begins within that time or never."""
    noted: dict[str, Any] = {"schedule": kept(schedule), "due": due.isoformat(), "zone": zone}
    return noted if start_within is None else {**noted, "start_within": f"{start_within.total_seconds():f}"}


def due_of(headers: Mapping[str, Any]) -> datetime | None:
    """The due time that a schedule noted, aware and in its zone; None where there is none that can be read."""
    try:
        due = datetime.fromisoformat(headers["due"])
        return due.astimezone(ZoneInfo(headers["zone"]))
    except (KeyError, TypeError, ValueError, OSError, OverflowError):  # Anybody may write a row.
        return None


def too_late(row: ClaimedRow) -> str | None:
    """Why a row that has never begun is not to begin any more, by the database's clock; None where it is."""
    if "start_within" not in row.wire.headers or row.attempt or row.suspect:
        return None
    try:
        late = row.age.total_seconds() > float(row.wire.headers["start_within"])
    except (TypeError, ValueError):
        return None
    return TOO_LATE if late else None
