"""What a tick has decided and is to write: gathered schedule by schedule, without touching anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad import audit
from postroad.schedules import decide
from postroad.schedules.policy import Act, Kind
from postroad.schedules.store import Change, New, state_of

if TYPE_CHECKING:
    from postroad.schedules.policy import Decision, Occurrence, Plan, Step
    from postroad.schedules.schedule import Schedule
    from postroad.schedules.store import Standing, Visited

BY: Final = "postroad"
"""Who acts, where nobody has asked for it."""

_STATES: Final = {
    Act.WAIT: "pending", Act.QUEUE: "queued", Act.START: "started", Act.SKIP: "skipped", Act.MISS: "missed",
}  # fmt: skip
_WAITING: Final = {"pending", "queued"}


@dataclass(frozen=True, slots=True)
class Known:
    """A schedule as this process declares it, with the plan of its stored id."""

    schedule: Schedule
    plan: Plan


@dataclass(frozen=True, slots=True)
class Start:
    """An occurrence to start: its row, or (0) the row that is yet to be added under its key."""

    known: Known
    occurrence: Occurrence
    id: int
    key: str


@dataclass(slots=True)
class Sheet:
    """Everything that one tick is to write, and what it is to tell after its commit."""

    now: datetime
    new: list[New] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    cancels: list[tuple[int, str]] = field(default_factory=list)
    """Rows of work to be cancelled, and why."""
    moves: list[tuple[UUID, datetime, datetime | None]] = field(default_factory=list)
    acts: list[audit.Act] = field(default_factory=list)
    due: Counter[str] = field(default_factory=Counter)
    passed: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def visit(self, row: Visited, known: Known, found: Sequence[Standing]) -> None:
        """Decide about one schedule.

        Nothing is noted before all of it is decided: what is raised concerns that schedule alone.
        """
        state = state_of(row.cursor, paused_at=row.paused_at, found=found)
        step = decide.tick(known.plan, state, self.now)
        next_at = decide.wakes_at(known.plan, step.state)
        self._note(row, known, found, step)
        self.moves.append((row.id, step.state.cursor, next_at))

    def _note(self, row: Visited, known: Known, found: Sequence[Standing], step: Step) -> None:
        rows = {one.occurrence.identity: one for one in found}
        last: dict[Any, Decision] = {}
        for decision in step.decisions:
            if decision.act is Act.CANCEL:
                self._cancel(rows, decision)
            elif decision.occurrence is None:
                self._summarise(row, decision)
            else:
                last[decision.occurrence.identity] = decision
        for identity, decision in last.items():
            self._become(row, known, rows.get(identity), decision)

    def _become(self, row: Visited, known: Known, standing: Standing | None, decision: Decision) -> None:
        occurrence, state = decision.occurrence, _STATES[decision.act]
        assert occurrence is not None
        reason = None if decision.reason is None else str(decision.reason)
        new = New(schedule=row.id, occurrence=occurrence, state=state, reason=reason, revision=row.revision)
        if standing is None:
            self.new.append(new)
            self.due[row.name] += occurrence.kind is Kind.SCHEDULED
        else:
            self.changes.append(Change(standing.id, state, reason, occurrence.overlap))
        if state == "started":
            self.starts.append(Start(known, occurrence, 0 if standing is None else standing.id, new.key))
        elif state not in _WAITING:
            self.passed[row.name, state, reason or ""] += 1

    def _cancel(self, rows: dict[Any, Standing], decision: Decision) -> None:
        assert decision.occurrence is not None
        standing, reason = rows[decision.occurrence.identity], str(decision.reason or "cancelled")
        if standing.work_id is not None:
            self.cancels.append((standing.work_id, reason))
        self.changes.append(Change(standing.id, "started", reason, standing.occurrence.overlap))

    def _summarise(self, row: Visited, decision: Decision) -> None:
        self.due[row.name] += decision.count
        self.passed[row.name, "missed", str(decision.reason)] += decision.count
        self.acts.append(summary(row.name, decision))


def summary(name: str, decision: Decision) -> audit.Act:
    """Many missed occurrences of a schedule at once: one row of the audit, with their count and range."""
    after = {"count": decision.count, "first": _text(decision.first), "last": _text(decision.last)}
    return audit.Act(
        by=BY, act="schedule.miss", subject=name, items=decision.count, reason=str(decision.reason), after=after
    )


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
