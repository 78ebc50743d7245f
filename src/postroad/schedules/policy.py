"""What the policies of a schedule are, and the words of every decision about an occurrence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from postroad.clock import hours

if TYPE_CHECKING:
    from postroad.schedules.timing import Timing


class Missed(StrEnum):
    """What becomes of occurrences that could not start in time (within a minute), as after an outage."""

    LATEST = "latest"
    """The latest of them runs, once; the older ones are recorded as superseded."""
    SKIP = "skip"
    """None runs; each is recorded."""
    ALL = "all"
    """Each runs, oldest first, up to `max_catch_up`; one after the other unless `Overlap.ALLOW`."""


class Overlap(StrEnum):
    """What becomes of an occurrence that is to start while an earlier one runs (or is queued, or is unknown)."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    """The first one waits for the end of the run, later ones are skipped."""
    QUEUE_ALL = "queue_all"
    """All wait, up to `limit`."""
    ALLOW = "allow"
    """It runs beside the others, up to `limit`."""
    CANCEL_RUNNING = "cancel_running"
    """The run is asked to stop, and the latest occurrence starts once it has ended."""


class Kind(StrEnum):
    """Why there is an occurrence."""

    SCHEDULED = "scheduled"
    MANUAL = "manual"
    BACKFILL = "backfill"


class Act(StrEnum):
    """What a decision does with an occurrence."""

    WAIT = "wait"
    """It is due and recorded: it starts at `Occurrence.starts_at` (jitter), or when the schedule is resumed."""
    QUEUE = "queue"
    """It starts when what runs has ended."""
    START = "start"
    SKIP = "skip"
    """It never starts, because of others: see `Reason`."""
    MISS = "miss"
    """It never starts, because its time has passed: see `Reason`. `Decision.count` may be more than one."""
    CANCEL = "cancel"
    """A running occurrence is asked to stop."""
    PAUSE = "pause"
    """The schedule is paused, because a run failed."""


class Reason(StrEnum):
    """Why."""

    OVERLAP = "overlap"
    SUPERSEDED = "superseded"
    QUEUE_FULL = "queue_full"
    LIMIT = "limit"
    MISSED = "missed"
    """The policy is `Missed.SKIP`."""
    TOO_OLD = "too_old"
    """Later than the catch-up window allows."""
    MAX_CATCH_UP = "max_catch_up"
    START_WITHIN = "start_within"
    FINISH_WITHIN = "finish_within"
    FAILED = "failed"


class Outcome(StrEnum):
    """How a run ended; only failures and time-outs pause a schedule that asks for it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a schedule says about its occurrences; checked where it is declared (`Schedule`)."""

    missed: Missed = Missed.LATEST
    catch_up: timedelta = hours(24)
    """How late an occurrence may still start after an outage."""
    max_catch_up: int = 100
    """How many missed occurrences are recorded one by one, and may run; the rest are one record with their count."""
    overlap: Overlap = Overlap.SKIP
    limit: int = 100
    """The most that queue, and the most that run at once under `Overlap.ALLOW`."""
    jitter: timedelta = timedelta(0)
    start_within: timedelta | None = None
    """An occurrence that has not started this long after its time (jitter included) does not start."""
    finish_within: timedelta | None = None
    """A run that has not ended this long after its start, all attempts together, is cancelled."""
    pause_on_failure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that deciding needs of a schedule; `identity` is its stable id, which jitter is hashed with."""

    identity: str
    timing: Timing
    zone: ZoneInfo
    policy: Policy = field(default_factory=Policy)
    offsets: Mapping[datetime, timedelta] = field(default_factory=dict)
    """Jitter by due time, for timelines that are played with given ones; else it is hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One run of a schedule, due at `due`; unique by (`due`, `kind`)."""

    due: datetime
    """Its nominal time, aware, UTC; a manual one's is the time of its request."""
    kind: Kind = Kind.SCHEDULED
    request: str = ""
    """The caller's id of a manual run or a backfill; kept with it."""
    starts_at: datetime
    """The earliest start: `due` plus jitter; later after a pause. Deadlines count from it."""
    overlap: Overlap | None = None
    """Its own, if it was asked for with one; else the schedule's at the time of deciding."""
    queued: bool = False
    """Whether it waits for a run to end, rather than for its time."""
    started_at: datetime | None = None
    cancelling: bool = False
    """Whether its run was asked to stop."""

    @property
    def identity(self) -> tuple[datetime, Kind]:
        """What makes it this one."""
        return self.due, self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a schedule stands; the scheduler keeps it in the database, the simulator in memory."""

    cursor: datetime
    """Every due time up to here has been decided; it only grows. A new or changed schedule's is that moment."""
    paused_at: datetime | None = None
    """Since when nothing scheduled starts; None while it is not paused."""
    waiting: tuple[Occurrence, ...] = ()
    """Recorded, not started: before their jittered time, or queued behind a run."""
    running: tuple[Occurrence, ...] = ()
    """Started, without an outcome: queued as work, running, or unknown."""

    @property
    def paused(self) -> bool:
        """Whether nothing scheduled starts."""
        return self.paused_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One thing to record, and to do."""

    act: Act
    occurrence: Occurrence | None = None
    """None for PAUSE, and for a MISS that speaks of many."""
    reason: Reason | None = None
    count: int = 1
    """Of a MISS: how many occurrences it speaks of, due from `first` to `last`."""
    first: datetime | None = None
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from an event: the new state, and the decisions in the order in which they hold."""

    state: State
    decisions: tuple[Decision, ...] = ()
