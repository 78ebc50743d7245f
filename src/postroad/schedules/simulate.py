"""Plays timelines of a schedule through its policies on a manual clock, without a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import ManualClock, minutes
from postroad.errors import UsageError
from postroad.schedules import decide
from postroad.schedules.overlap import admit
from postroad.schedules.policy import Act, Decision, Kind, Occurrence, Outcome, Overlap, Policy, State, Step
from postroad.schedules.timeline import Event, Timeline, pending_of, read
from postroad.schedules.zones import EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_STEPS: Final = 20_000
"""Ticks of one timeline; more is a timeline that a person would not read either."""


@dataclass(slots=True)
class Played:
    """What a timeline came to; `decisions` in order, each with its time."""

    timeline: Timeline
    decisions: list[tuple[datetime, Decision]]
    state: State
    now: datetime
    offsets: list[tuple[str, datetime, timedelta]] = field(default_factory=list)
    """Jitter of the next occurrence, for each ``evaluate`` event that brings a seed."""

    @property
    def next(self) -> datetime | None:
        """The due time that follows."""
        plan = self.timeline.plan
        return plan.timing.next(max(self.now, self.state.cursor), plan.zone)

    def runs(self) -> Iterator[Occurrence]:
        """What started, in order."""
        return (one.occurrence for _, one in self.decisions if one.act is Act.START and one.occurrence is not None)


def play(case: object) -> Played:
    """Play one timeline to the last instant that it names.

    The scheduler works on time but while an event says that it is down. A run ends when an event says so; one of
    which no event speaks ends at once.

    Raises:
        UsageError: PR107, the case cannot be read, or a policy or event of it does not exist here.
    """
    timeline = read(case)
    simulation = _Simulation(timeline)
    for event in timeline.events:
        simulation.advance(event.at)
        simulation.happen(event)
    simulation.advance(timeline.until)
    simulation.catch_up()
    return Played(timeline, simulation.decisions, simulation.state, simulation.clock.now(), simulation.offsets)


class _Simulation:
    def __init__(self, timeline: Timeline) -> None:
        self.plan = timeline.plan
        self.clock = ManualClock(at=timeline.begins)
        self.state = State(cursor=timeline.begins, paused_at=timeline.begins if timeline.paused else None)
        self.up = timeline.up
        self.ends = [event for event in timeline.events if event.type in _ENDS]
        self.decisions: list[tuple[datetime, Decision]] = []
        self.offsets: list[tuple[str, datetime, timedelta]] = []
        self.steps = 0

    def advance(self, until: datetime) -> None:
        """Move the clock to `until`; the scheduler, if it is up, acts on the way whenever it has to."""
        while self.up:
            at = decide.wakes_at(self.plan, self.state)
            if at is None or at >= until:
                break
            self.clock.at = max(at, self.clock.at)
            self.tick()
        self.clock.at = until

    def catch_up(self) -> None:
        """What is due at the very end."""
        if self.up:
            self.tick()

    def happen(self, event: Event) -> None:
        """One event, and what the scheduler makes of it."""
        if event.type in _GOES_DOWN:
            self.catch_up()
            self.up = False
            return
        self._apply(event)
        self.up = self.up or event.type in _COMES_UP
        if self.up or event.type in _LOOKS:
            self.tick()

    def tick(self) -> None:
        """Decide, and let end what ends at once, until nothing follows."""
        while True:
            self.steps += 1
            if self.steps > _MOST_STEPS:
                raise UsageError("PR107", f"the timeline takes more than {_MOST_STEPS:,} ticks; play a shorter one")
            done = self.take(decide.tick(self.plan, self.state, self.clock.now()))
            short = [one.occurrence for one in done if one.act is Act.START and one.occurrence is not None]
            brief = [one for one in short if not self._ends_later(one)]
            for one in brief:
                self.take(self._ended(one, Outcome.SUCCEEDED))
            if not brief:
                return

    def take(self, step: Step) -> Sequence[Decision]:
        """Keep what follows from an event."""
        self.state = step.state
        self.decisions += [(self.clock.now(), one) for one in step.decisions]
        return step.decisions

    def _ended(self, one: Occurrence, outcome: Outcome) -> Step:
        return decide.ended(self.plan, self.state, self.clock.now(), identity=one.identity, outcome=outcome)

    def _ends_later(self, one: Occurrence) -> bool:
        return any(event.scheduled == one.due and event.at >= self.clock.now() for event in self.ends)

    def _apply(self, event: Event) -> None:
        now = self.clock.now()
        if event.type == "pause":
            self.take(decide.pause(self.plan, self.state, now))
        elif event.type == "unpause":
            self.take(decide.resume(self.state, now))
        elif event.type == "trigger":
            self.take(decide.trigger(self.state, now, overlap=event.overlap))
        elif event.type == "backfill":
            assert event.first is not None, "checked when read"
            assert event.last is not None, "checked when read"
            found = decide.backfill_dues(self.plan, event.first, event.last, most=_MOST_STEPS)
            self.take(decide.backfill(self.state, found, now, overlap=event.overlap or Overlap.QUEUE_ALL))
        elif event.type in _ENDS:
            for one in [one for one in self.state.running if one.due == event.scheduled]:
                self.take(self._ended(one, event.outcome))
        elif event.type in {"run_started", "run_active"}:
            runs = Occurrence(due=event.scheduled or now, starts_at=event.scheduled or now, started_at=now)
            self.state = replace(self.state, running=(*self.state.running, runs))
        elif event.seed is not None:
            self._draw(event.seed, now)

    def _draw(self, seed: str, now: datetime) -> None:
        due = self.plan.timing.next(now, self.plan.zone)
        if due is not None:
            following = self.plan.timing.next(due, self.plan.zone)
            gap = None if following is None else following - due
            self.offsets.append((seed, due, decide.jitter(seed, due, most=self.plan.policy.jitter, gap=gap)))


_ENDS: Final = frozenset({"run_finished", "run_ended_after_cancel"})
_GOES_DOWN: Final = frozenset({"scheduler_down", "leader_lost", "suspend"})
_COMES_UP: Final = frozenset({"created", "scheduler_up", "leader_elected", "resume", "enabled"})
_LOOKS: Final = frozenset({"evaluate", "tick", "refresh", "restart", "due"})


def outcome(case: object) -> dict[str, Any]:
    """What a case comes to, as plain JSON values: a timeline, or occurrences that are pending all at once.

    Raises:
        UsageError: PR107, see `play`.
    """
    if isinstance(case, Mapping) and isinstance(case.get("schedule"), Mapping) and "abstract" in case["schedule"]:
        return _admitted(case)
    return document(play(case))


def document(played: Played) -> dict[str, Any]:
    """What a timeline came to, as plain JSON values."""
    cancels = {
        one.occurrence.identity: at
        for at, one in played.decisions
        if one.act is Act.CANCEL and one.occurrence is not None
    }
    told = [{"at": shown(at), **_told(one)} for at, one in played.decisions]
    return {
        "decisions": told,
        "runs": [_run(one, cancels.get(one.identity)) for one in played.runs()],
        "skipped": [_named(one) for one in told if one["act"] == Act.SKIP],
        "missed": [_named(one) for one in told if one["act"] == Act.MISS],
        "missed_count": sum(one.count for _, one in played.decisions if one.act is Act.MISS),
        "cancelled": [{"at": one["at"], **_named(one)} for one in told if one["act"] == Act.CANCEL],
        "active_count": len(played.state.running),
        "active": [shown(one.due) for one in played.state.running],
        "waiting": [shown(one.due) for one in played.state.waiting],
        "paused": played.state.paused,
        "next": None if played.next is None else shown(played.next),
        "offsets": [
            {"seed": seed, "scheduled": shown(due), "offset_s": offset.total_seconds()}
            for seed, due, offset in played.offsets
        ],
    }


def _admitted(case: Mapping[str, Any]) -> dict[str, Any]:
    """Several occurrences that may start at one moment, each perhaps with an overlap policy of its own."""
    pending, busy = pending_of(case)
    now = EPOCH + minutes(max((number for number, _ in pending), default=0) + 1)
    numbers = {EPOCH + minutes(number): number for number, _ in pending}
    ready = [
        Occurrence(due=EPOCH + minutes(number), starts_at=EPOCH + minutes(number), overlap=overlap)
        for number, overlap in pending
    ]
    running = [Occurrence(due=EPOCH, starts_at=EPOCH, started_at=EPOCH)] if busy else []
    done = admit(Policy(), ready, running, now)
    acts = [(one.act, numbers.get(one.occurrence.due)) for one in done.decisions if one.occurrence is not None]
    return {
        "start_now": [number for act, number in acts if act is Act.START],
        "buffer": [numbers[one.due] for one in done.queued],
        "skipped_count": sum(act is Act.SKIP for act, _ in acts),
        "cancel_running": any(act is Act.CANCEL for act, _ in acts),
    }


def shown(at: datetime) -> str:
    """An instant as the timelines write it."""
    fraction = f".{at.microsecond:06d}".rstrip("0") if at.microsecond else ""
    return f"{at:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _run(one: Occurrence, cancelled_at: datetime | None) -> dict[str, Any]:
    assert one.started_at is not None, "it started"
    made: dict[str, Any] = {"scheduled": shown(one.due), "started": shown(one.started_at)}
    if one.kind is Kind.MANUAL:
        made["manual"] = True
    return made if cancelled_at is None else made | {"cancel_requested_at": shown(cancelled_at)}


def _told(one: Decision) -> dict[str, Any]:
    made: dict[str, Any] = {"act": one.act.value}
    if one.occurrence is not None:
        made |= {"scheduled": shown(one.occurrence.due), "kind": one.occurrence.kind.value}
        if one.act is Act.WAIT:
            made["starts_at"] = shown(one.occurrence.starts_at)
    if one.reason is not None:
        made["reason"] = one.reason.value
    if one.first is not None and one.last is not None:
        made |= {"count": one.count, "first": shown(one.first), "last": shown(one.last)}
    return made


def _named(told: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: told[name] for name in ("scheduled", "count", "first", "last", "reason") if name in told}
    return made | ({"manual": True} if told.get("kind") == Kind.MANUAL else {})
