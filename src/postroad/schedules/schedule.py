"""The declaration of a schedule: when a job runs by itself, and what happens when it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from postroad.clock import hours
from postroad.schedules.policy import Missed, Overlap

if TYPE_CHECKING:
    from postroad.retry import Backoff
    from postroad.schedules.policy import Plan, Policy
    from postroad.schedules.timing import Timing
    from postroad.work.job import Job


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Schedule:
    """A job that runs by itself. After construction: `name`, `timing`, `zone` (ZoneInfo), `job` (Job), `policy`,
    `max_runtime`, `retry` (None: the job's own)."""

    name: str

    def __init__(
        self,
        name: str,
        *,
        job: Callable[..., Any] | Job[Any],
        cron: str | None = None,
        every: timedelta | None = None,
        phase: timedelta = timedelta(0),
        at: datetime | None = None,
        zone: str = "UTC",
        args: Callable[[datetime], Any] | None = None,
        missed: Missed = Missed.LATEST,
        catch_up: timedelta = hours(24),
        max_catch_up: int = 100,
        overlap: Overlap = Overlap.SKIP,
        limit: int = 100,
        jitter: timedelta = timedelta(0),
        start_within: timedelta | None = None,
        max_runtime: timedelta | None = None,
        finish_within: timedelta | None = None,
        retry: Backoff | None = None,
        pause_on_failure: bool = False,
    ) -> None:
        """Raises UsageError PR101, one line that names everything that is wrong, field by field."""
        raise NotImplementedError

    def request(self, due: datetime) -> Any:
        """The job's request for the occurrence due at `due` (any zone; `args` gets it aware, in the schedule's)."""
        raise NotImplementedError

    def plan(self, identity: str) -> Plan:
        """What the policy functions (`postroad.schedules.decide`) need; `identity` is the stored id."""
        raise NotImplementedError

    def stored(self) -> dict[str, object]:
        """Every property as plain JSON values: what is kept of a declared schedule."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """A short hash of `stored()`: two releases that declare the same have the same."""
        raise NotImplementedError


def plan_of(stored: dict[str, object], identity: str) -> Plan:
    """The plan of a stored schedule, for commands and processes that do not declare it."""
    raise NotImplementedError
