"""One schedule, locked, with its state for the policy; and how what an event made of that state is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from postroad import audit
from postroad.schedules import store
from postroad.schedules.policy import Act
from postroad.schedules.sheet import summary

if TYPE_CHECKING:
    from postroad.schedules.policy import Plan, State, Step
    from postroad.sql import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A schedule that is locked until the transaction ends; `now` is the database's time."""

    id: UUID
    name: str
    revision: int
    tz_version: str | None
    cursor: datetime
    paused_at: datetime | None
    now: datetime
    plan: Plan
    found: Sequence[store.Standing]

    @property
    def state(self) -> State:
        """Where it stands, for the policy."""
        return store.state_of(self.cursor, paused_at=self.paused_at, found=self.found)


def apply(schema: str, held: Held, step: Step) -> Pipeline[int]:
    """Write what an event (a pause, a resume, a trigger) made of a schedule's state; how many occurrences are new.

    A tick that follows decides about them. What has an occurrence already is passed over.
    """
    standing = {one.occurrence.identity: one for one in held.found if not one.running}
    waits = [(one, "pending", None) for one in step.state.waiting if one.identity not in standing]
    missed = [
        (one.occurrence, "missed", str(one.reason))
        for one in step.decisions
        if one.act is Act.MISS and one.occurrence is not None
    ]
    rows = [
        store.New(schedule=held.id, occurrence=one, state=state, reason=reason, revision=held.revision)
        for one, state, reason in [*waits, *missed]
    ]
    added = yield from store.add(schema, rows, store.Written(None, held.tz_version, held.now))
    moved = {
        standing[one.identity].id: one.starts_at
        for one in step.state.waiting
        if one.identity in standing and standing[one.identity].occurrence.starts_at != one.starts_at
    }
    yield from store.restart(schema, moved)
    for decision in step.decisions:
        if decision.act is Act.MISS and decision.occurrence is None:
            yield from audit.record(schema, summary(held.name, decision))
    yield from store.move(schema, [(held.id, step.state.cursor, held.now)])
    return len(added)
