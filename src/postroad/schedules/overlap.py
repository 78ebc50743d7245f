"""The overlap policies: which occurrences that may start do start, beside what runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from postroad.schedules.policy import Act, Decision, Kind, Occurrence, Overlap, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.schedules.policy import Policy


@dataclass(slots=True)
class Admission:
    """What has been decided so far: what runs, what queues, and the decisions in order."""

    policy: Policy
    now: datetime
    running: list[Occurrence]
    queued: list[Occurrence] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def start(self, one: Occurrence) -> None:
        """It starts now."""
        started = replace(one, queued=False, started_at=self.now)
        self.running.append(started)
        self.decisions.append(Decision(act=Act.START, occurrence=started))

    def queue(self, one: Occurrence) -> None:
        """It waits for a run to end; said once."""
        waiting = replace(one, queued=True)
        self.queued.append(waiting)
        if not one.queued:
            self.decisions.append(Decision(act=Act.QUEUE, occurrence=waiting))

    def skip(self, one: Occurrence, reason: Reason) -> None:
        """It never starts."""
        self.decisions.append(Decision(act=Act.SKIP, occurrence=one, reason=reason))

    def cancel_running(self) -> None:
        """Ask what runs to stop; each is asked once."""
        for place, one in enumerate(self.running):
            if not one.cancelling:
                self.running[place] = replace(one, cancelling=True)
                self.decisions.append(
                    Decision(act=Act.CANCEL, occurrence=self.running[place], reason=Reason.OVERLAP)
                )  # fmt: skip

    @property
    def in_queue(self) -> int:
        """How many queue, backfills apart: those were asked for by number."""
        return sum(one.kind is not Kind.BACKFILL for one in self.queued)


def admit(policy: Policy, ready: Sequence[Occurrence], running: Sequence[Occurrence], now: datetime) -> Admission:
    """Decide for each that is `ready`, in order, by its own overlap policy or else the schedule's."""
    done = Admission(policy, now, list(running))
    chosen = [one.overlap or policy.overlap for one in ready]
    last = {own: place for place, own in enumerate(chosen) if ready[place].kind is Kind.SCHEDULED}
    cancels = max((place for place, own in enumerate(chosen) if own is Overlap.CANCEL_RUNNING), default=-1)
    for place, (one, overlap) in enumerate(zip(ready, chosen, strict=True)):
        if place < cancels:
            _make_way(done, one, overlap)
        else:
            _BY_POLICY[overlap](done, one, one.kind is Kind.SCHEDULED and place < last[overlap])
    return done


def _make_way(done: Admission, one: Occurrence, overlap: Overlap) -> None:
    """What would be cancelled at once, by one that is ready too, is never started."""
    if overlap is Overlap.QUEUE_ALL or (overlap is Overlap.QUEUE_ONE and (one.queued or not done.in_queue)):
        done.queue(one)
    elif done.running and overlap is not Overlap.CANCEL_RUNNING:
        done.skip(one, Reason.OVERLAP)
    else:
        done.skip(one, Reason.SUPERSEDED)


def _skip(done: Admission, one: Occurrence, followed: bool) -> None:  # noqa: FBT001 - of a table of functions
    """Of several that are ready together, the latest starts."""
    if done.running:
        done.skip(one, Reason.OVERLAP)
    elif followed:
        done.skip(one, Reason.SUPERSEDED)
    else:
        done.start(one)


def _queue_one(done: Admission, one: Occurrence, _: bool) -> None:  # noqa: FBT001 - of a table of functions
    """The first one waits."""
    if not done.running:
        done.start(one)
    elif done.in_queue:
        done.skip(one, Reason.OVERLAP)
    else:
        done.queue(one)


def _queue_all(done: Admission, one: Occurrence, _: bool) -> None:  # noqa: FBT001 - of a table of functions
    """All wait, up to the limit, which a bounded catch-up may pass."""
    most = max(done.policy.limit, done.policy.max_catch_up) if one.overlap else done.policy.limit
    if not done.running:
        done.start(one)
    elif one.queued or one.kind is Kind.BACKFILL or done.in_queue < most:
        done.queue(one)
    else:
        done.skip(one, Reason.QUEUE_FULL)


def _allow(done: Admission, one: Occurrence, _: bool) -> None:  # noqa: FBT001 - of a table of functions
    """It runs beside the others."""
    if len(done.running) < done.policy.limit:
        done.start(one)
    elif one.kind is Kind.BACKFILL:
        done.queue(one)
    else:
        done.skip(one, Reason.LIMIT)


def _cancel_running(done: Admission, one: Occurrence, _: bool) -> None:  # noqa: FBT001 - of a table of functions
    """It waits for the end of what it has cancelled; what has started beside since then is not its to cancel."""
    if not done.running:
        done.start(one)
        return
    if not one.queued:
        done.cancel_running()
    done.queue(one)


_BY_POLICY: dict[Overlap, Callable[[Admission, Occurrence, bool], None]] = {
    Overlap.SKIP: _skip,
    Overlap.QUEUE_ONE: _queue_one,
    Overlap.QUEUE_ALL: _queue_all,
    Overlap.ALLOW: _allow,
    Overlap.CANCEL_RUNNING: _cancel_running,
}
