"""Decides what becomes of a schedule's occurrences: pure functions of its plan, its state and one event.

The scheduler drives them with the database clock and applies the decisions in one transaction with the new state; the
simulator drives the same functions on a manual clock. After each other event a `tick` with its time says what follows.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Final

from postroad.clock import hours, minutes
from postroad.errors import UsageError
from postroad.schedules.overlap import admit
from postroad.schedules.policy import (
    Act,
    Decision,
    Kind,
    Missed,
    Occurrence,
    Outcome,
    Overlap,
    Reason,
    Step,
)
from postroad.schedules.timing import dues, newest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroad.schedules.policy import Plan, State

LATE: Final = minutes(1)
"""An occurrence that starts later than this after its time has been missed; the missed-run policy decides."""
JUMP: Final = hours(3)
"""A clock that gains more than this between two ticks is reported (Debian's cron takes it for a correction)."""
_NOTHING: Final = timedelta(0)
_TICK: Final = timedelta(microseconds=1)
_FAILED: Final = frozenset({Outcome.FAILED, Outcome.TIMED_OUT})


def tick(plan: Plan, state: State, now: datetime) -> Step:
    """Decide everything that is due by `now`.

    Each due time gets one decision, or is one of the `count` of a MISS. Repeating it with the state that it returned
    decides nothing again. A `now` before the cursor, as of a clock that was set back, creates nothing. Call it at
    `wakes_at`, after each other event, and when a run has ended.
    """
    decisions = _overdue(plan, state, now)
    asked = {decision.occurrence.identity for decision in decisions if decision.occurrence is not None}
    running = [replace(one, cancelling=True) if one.identity in asked else one for one in state.running]
    state, new, missed = _arrivals(plan, state, now)
    decisions += missed
    held, ready = _split(state, new, now)
    fresh = {one.identity for one in new}
    decisions += [Decision(act=Act.WAIT, occurrence=one) for one in held if one.identity in fresh]
    ready, late = _late(plan, ready, now)
    admitted = admit(plan.policy, ready, running, now)
    return Step(
        replace(state, waiting=(*admitted.queued, *held), running=tuple(admitted.running)),
        (*decisions, *late, *admitted.decisions),
    )


def ended(plan: Plan, state: State, now: datetime, *, identity: tuple[datetime, Kind], outcome: Outcome) -> Step:
    """A run has ended: forget it, and pause if the policy says so. An unknown `identity` changes nothing."""
    running = tuple(one for one in state.running if one.identity != identity)
    if len(running) == len(state.running):
        return Step(state)
    state = replace(state, running=running)
    if not plan.policy.pause_on_failure or state.paused or outcome not in _FAILED:
        return Step(state)
    step = pause(plan, state, now)
    return Step(step.state, (*step.decisions, Decision(act=Act.PAUSE, reason=Reason.FAILED)))


def pause(plan: Plan, state: State, now: datetime) -> Step:
    """Nothing scheduled starts from now on; what runs goes on. Pausing twice changes nothing.

    What was due before, but not decided yet, waits: it is not lost.
    """
    if state.paused:
        return Step(state)
    step = arrive(plan, state, now)
    return Step(replace(step.state, paused_at=now), step.decisions)


def arrive(plan: Plan, state: State, now: datetime) -> Step:
    """What came due by `now`, and is not decided yet, waits: so a pause or a change of times does not lose it."""
    state, new, decisions = _arrivals(plan, state, now)
    decisions += [Decision(act=Act.WAIT, occurrence=one) for one in new]
    return Step(replace(state, waiting=(*state.waiting, *new)), tuple(decisions))


def resume(state: State, now: datetime) -> Step:
    """Occurrences start again. What came due meanwhile is neither run nor missed; what waited is as late as it was."""
    if state.paused_at is None:
        return Step(state)
    waiting = tuple(replace(one, starts_at=_rebased(one, state.paused_at, now)) for one in state.waiting)
    return Step(replace(state, paused_at=None, cursor=max(state.cursor, now), waiting=waiting))


def trigger(state: State, now: datetime, *, request: str = "", overlap: Overlap | None = None) -> Step:
    """Ask for a run now, paused or not; its due time is `now`. A `request` that waits or runs already is not repeated.

    It obeys the schedule's overlap policy unless it brings its own. Two at one instant are one: the caller sees to it
    that each has an instant of its own.
    """
    open_ = [one for one in (*state.waiting, *state.running) if one.kind is Kind.MANUAL]
    if any((request and one.request == request) or one.due == now for one in open_):
        return Step(state)
    asked = Occurrence(due=now, kind=Kind.MANUAL, request=request, starts_at=now, overlap=overlap)
    return Step(replace(state, waiting=(*state.waiting, asked)))


def backfill(
    state: State, dues: Iterable[datetime], now: datetime, *, request: str = "", overlap: Overlap = Overlap.QUEUE_ALL
) -> Step:
    """Ask for past due times (see `backfill_dues`), paused or not; each keeps its due time, and starts from `now` on.

    The catch-up window, the start deadline and the queue's limit do not apply. A due time whose backfill waits or runs
    already is not repeated.
    """
    open_ = {one.identity for one in (*state.waiting, *state.running)}
    asked = [
        Occurrence(due=due, kind=Kind.BACKFILL, request=request, starts_at=now, overlap=overlap)
        for due in sorted(set(dues))
        if (due, Kind.BACKFILL) not in open_
    ]
    return Step(replace(state, waiting=(*state.waiting, *asked)))


def backfill_dues(plan: Plan, first: datetime, last: datetime, *, most: int) -> list[datetime]:
    """The due times from `first` to `last`, both inclusive.

    Raises:
        UsageError: PR107, the range is reversed, or has more than `most`.
    """
    if last < first:
        raise UsageError("PR107", f"--to {last.isoformat()} is before --from {first.isoformat()}; exchange them")
    found = list(islice(dues(plan.timing, plan.zone, after=first - _TICK, until=last), most + 1))
    if len(found) > most:
        raise UsageError("PR107", f"the range has more than {most} due times; ask for a part of it at a time")
    return found


def wakes_at(plan: Plan, state: State) -> datetime | None:
    """When `tick` has something to do next by the clock alone; None if only an event can change anything."""
    policy = plan.policy
    times = [] if state.paused else [plan.timing.next(state.cursor, plan.zone)]
    for one in state.waiting:
        if state.paused and one.kind is Kind.SCHEDULED:
            continue
        if not one.queued or not state.running:
            times.append(one.starts_at)
        elif policy.start_within is not None and one.kind is Kind.SCHEDULED:
            times.append(one.starts_at + policy.start_within + _TICK)
    if policy.finish_within is not None:
        left = [one.started_at for one in state.running if one.started_at is not None and not one.cancelling]
        times += [at + policy.finish_within for at in left]
    return min((at for at in times if at is not None), default=None)


def jitter(identity: str, due: datetime, *, most: timedelta, gap: timedelta | None) -> timedelta:
    """The delay of one occurrence, from a hash of schedule and due time: the same at each restart and everywhere.

    It is below `most`, and below `gap`, the time to the next due one.
    """
    bound = most if gap is None else min(most, gap)
    hashed = blake2b(f"{identity}\0{due.astimezone(UTC).isoformat()}".encode(), digest_size=8).digest()
    return timedelta(microseconds=(bound // _TICK) * int.from_bytes(hashed, "big") >> 64)


def jumped(before: datetime, now: datetime, *, steady: timedelta) -> timedelta | None:
    """How far the clock has gained on a steady one between two ticks, if it is more than `JUMP`."""
    gained = now - before - steady
    return gained if gained > JUMP else None


def _overdue(plan: Plan, state: State, now: datetime) -> list[Decision]:
    most = plan.policy.finish_within
    return [
        Decision(act=Act.CANCEL, occurrence=replace(one, cancelling=True), reason=Reason.FINISH_WITHIN)
        for one in state.running
        if most is not None and one.started_at is not None and not one.cancelling and now - one.started_at >= most
    ]


def _arrivals(plan: Plan, state: State, now: datetime) -> tuple[State, list[Occurrence], list[Decision]]:
    """What came due since the cursor: the newest one by one, older ones beyond the bound as one MISS."""
    if state.paused or now <= state.cursor:
        return state, [], []
    most = plan.policy.max_catch_up
    found = list(islice(dues(plan.timing, plan.zone, after=state.cursor, until=now), most + 1))
    decisions = []
    if len(found) > most:
        first = found[0]
        found, older, last = newest(plan.timing, plan.zone, after=state.cursor, until=now, most=most)
        decisions = [Decision(act=Act.MISS, reason=Reason.MAX_CATCH_UP, count=older, first=first, last=last)]
    if not found:
        return state, [], []
    # Where a cursor was brought back, what waits or runs is met once more.
    there = {one.due for one in (*state.waiting, *state.running) if one.kind is Kind.SCHEDULED}
    new = [Occurrence(due=due, starts_at=due + _offset(plan, due)) for due in found if due not in there]
    return replace(state, cursor=found[-1]), new, decisions


def _offset(plan: Plan, due: datetime) -> timedelta:
    given = plan.offsets.get(due)
    if given is not None or plan.policy.jitter == _NOTHING:
        return given or _NOTHING
    following = plan.timing.next(due, plan.zone)
    gap = None if following is None else following - due
    return jitter(plan.identity, due, most=plan.policy.jitter, gap=gap)


def _split(state: State, new: list[Occurrence], now: datetime) -> tuple[list[Occurrence], list[Occurrence]]:
    """Those that stay waiting, and those that may start: first what is queued, then by their times."""
    held: list[Occurrence] = []
    ready: list[Occurrence] = []
    for one in (*state.waiting, *new):
        stays = (state.paused and one.kind is Kind.SCHEDULED) or one.starts_at > now
        (held if stays else ready).append(one)
    return held, sorted(ready, key=lambda one: (not one.queued, one.starts_at, one.due))


def _late(plan: Plan, ready: list[Occurrence], now: datetime) -> tuple[list[Occurrence], list[Decision]]:
    """Apply deadline, window and missed-run policy to what is ready; those that are left, and the decisions."""
    policy = plan.policy
    newest_due = max((one.due for one in ready if one.kind is Kind.SCHEDULED and not one.queued), default=None)
    left: list[Occurrence] = []
    decisions: list[Decision] = []
    for one in ready:
        reason = _missed(plan, one, now, newest_due)
        if reason is not None:
            decisions.append(Decision(act=Act.MISS, occurrence=one, reason=reason))
        elif policy.missed is Missed.ALL and _is_late(one, now) and _overlap(plan, one) in _LOSING:
            left.append(replace(one, overlap=Overlap.QUEUE_ALL))
        else:
            left.append(one)
    return left, decisions


_LOSING: Final = frozenset({Overlap.SKIP, Overlap.QUEUE_ONE})


def _missed(plan: Plan, one: Occurrence, now: datetime, newest_due: datetime | None) -> Reason | None:
    policy = plan.policy
    if one.kind is not Kind.SCHEDULED:
        return None
    if policy.start_within is not None and now - one.starts_at > policy.start_within:
        return Reason.START_WITHIN
    if not _is_late(one, now):
        return None
    if now - one.starts_at > policy.catch_up:
        return Reason.TOO_OLD
    if policy.missed is Missed.SKIP:
        return Reason.MISSED
    return Reason.SUPERSEDED if policy.missed is Missed.LATEST and one.due != newest_due else None


def _is_late(one: Occurrence, now: datetime) -> bool:
    """Whether it has missed its time; what is queued behind a run has not, it was decided in time."""
    return one.kind is Kind.SCHEDULED and not one.queued and now - one.starts_at > LATE


def _overlap(plan: Plan, one: Occurrence) -> Overlap:
    return one.overlap or plan.policy.overlap


def _rebased(one: Occurrence, paused_at: datetime, now: datetime) -> datetime:
    """Its start as if the pause had not been: as late as it was then, and no earlier than it was to be."""
    return max(one.starts_at, now - max(paused_at - one.starts_at, _NOTHING))
