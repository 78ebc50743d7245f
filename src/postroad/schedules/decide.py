"""Decides what becomes of a schedule's occurrences: pure functions of its plan, its state and one event.

The scheduler drives them with the database clock and applies the decisions in one transaction with the new state; the
simulator drives the same functions on a manual clock.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from postroad.clock import minutes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroad.schedules.policy import Kind, Occurrence, Outcome, Overlap, Plan, State, Step

LATE: Final = minutes(1)
"""An occurrence that starts later than this after its time has been missed; the missed-run policy decides."""


def tick(plan: Plan, state: State, now: datetime) -> Step:
    """Decide everything that is due by `now`.

    Repeating it with the state that it returned decides nothing again. A `now` before the cursor, as of a clock that
    was set back, creates nothing. Call it at `wakes_at`, after each other event, and when a run has ended.
    """
    raise NotImplementedError


def ended(plan: Plan, state: State, identity: tuple[datetime, Kind, str], outcome: Outcome, now: datetime) -> Step:
    """A run has ended: forget it, and pause if the policy says so. A `tick` then starts what was queued behind it."""
    raise NotImplementedError


def pause(state: State) -> Step:
    """An operator pauses: nothing scheduled starts; what runs goes on. Pausing twice changes nothing."""
    raise NotImplementedError


def resume(state: State, now: datetime) -> Step:
    """An operator resumes: what came due meanwhile is neither run nor missed; what already waited starts now."""
    raise NotImplementedError


def trigger(state: State, now: datetime, *, request: str = "", overlap: Overlap | None = None) -> Step:
    """An operator asks for a run now, paused or not; a `tick` then starts or skips it. A repeated `request` is one."""
    raise NotImplementedError


def backfill(
    state: State, dues: Iterable[datetime], now: datetime, *, request: str, overlap: Overlap | None = None
) -> Step:
    """An operator asks for past due times (see `backfill_dues`), paused or not; each keeps its due time."""
    raise NotImplementedError


def backfill_dues(plan: Plan, first: datetime, last: datetime, *, most: int) -> list[datetime]:
    """The due times from `first` to `last`, both inclusive.

    Raises:
        UsageError: PR107, the range is reversed, or has more than `most`.
    """
    raise NotImplementedError


def wakes_at(plan: Plan, state: State) -> datetime | None:
    """When `tick` has something to do next by the clock alone; None if only an event can change anything."""
    raise NotImplementedError


def jitter(identity: str, due: datetime, *, most: timedelta, gap: timedelta | None) -> timedelta:
    """The delay of one occurrence, from a hash of schedule and due time: the same at each restart and everywhere.

    It is below `most`, and below `gap`, the time to the next due one.
    """
    raise NotImplementedError
