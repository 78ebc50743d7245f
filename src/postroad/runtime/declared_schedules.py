"""What an App may declare of schedules: each a job of its own, under a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from postroad.schedules.schedule import Schedule

if TYPE_CHECKING:
    from postroad.work.job import Job


def scheduled(given: object, jobs: Sequence[Job[Any]]) -> tuple[list[Schedule], list[str]]:
    """The schedules, and what is wrong with them: what is none, and what starts a job that the App does not have."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        return [], [f"schedules is {type(given).__name__}, not a list of Schedule values"]
    items = list(given)
    strangers = dict.fromkeys(type(item).__name__ for item in items if not isinstance(item, Schedule))
    problems = [f"schedules holds {name}, not a Schedule" for name in strangers]
    found = [item for item in items if isinstance(item, Schedule)]
    functions = {id(job.function) for job in jobs}
    problems += [
        f"schedule {one.name!r} starts job {one.job.name!r}, which is not among the App's jobs; add it to jobs=[...]"
        for one in found
        if id(one.job.function) not in functions
    ]
    return found, problems


def double_schedules(schedules: Sequence[Schedule]) -> list[str]:
    """Names that two schedules share."""
    counts = Counter(one.name for one in schedules)
    return [f"schedule {name!r} is declared twice; rename one" for name, count in counts.items() if count > 1]
