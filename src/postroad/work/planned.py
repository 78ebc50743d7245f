"""What a schedule notes in the headers of the rows that it enqueues, and what is read from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zoneinfo import ZoneInfo

from postroad.errors import UsageError
from postroad.retry import Backoff

if TYPE_CHECKING:
    from postroad.work.job import Job
    from postroad.work.store import ClaimedRow

A = TypeVar("A")

_TIMES: Final = ("first", "most", "max_age")
TOO_LATE: Final = "the start deadline had passed when a worker was free"


def note(
    *, schedule: str, due: datetime, zone: str, start_within: timedelta | None = None,
    max_runtime: timedelta | None = None, retry: Backoff | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The headers of a run of `schedule`, due at `due` in `zone`: it begins within `start_within` or never.

    `max_runtime` and `retry` stand in the place of the job's own.
    """
    noted: dict[str, Any] = {"schedule": schedule, "due": due.isoformat(), "zone": zone}
    if start_within is not None:
        noted["start_within"] = f"{start_within.total_seconds():f}"
    if max_runtime is not None:
        noted["max_runtime"] = f"{max_runtime.total_seconds():f}"
    if retry is not None:
        times = {name: getattr(retry, name).total_seconds() for name in _TIMES}
        noted["retry"] = json.dumps({**times, "factor": retry.factor, "attempts": retry.attempts})
    return noted


def tuned(job: Job[A], headers: Mapping[str, Any]) -> Job[A]:
    """The job as a schedule wants it run; itself, where nothing else is noted that can be read."""
    if not headers:  # Most rows.
        return job
    changes: dict[str, Any] = {}
    try:
        if "max_runtime" in headers:
            changes["max_runtime"] = timedelta(seconds=float(headers["max_runtime"]))
        if "retry" in headers:
            given = json.loads(headers["retry"])
            changes["retry"] = Backoff(**given | {name: timedelta(seconds=given[name]) for name in _TIMES})
    except (TypeError, ValueError, KeyError, OverflowError, UsageError):
        return job
    return replace(job, **changes) if changes else job


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
