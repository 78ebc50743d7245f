"""What is done beside the ticks: runs that have ended are noted, backfills go on; each in a fenced transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad import audit
from postroad.schedules import decide, store
from postroad.schedules.held import Held, apply
from postroad.schedules.planner import fenced
from postroad.schedules.policy import Act, Decision, Kind, Occurrence, Outcome, Overlap, Reason, State
from postroad.schedules.sheet import BY, summary
from postroad.schedules.timing import dues
from postroad.signals.catalog import OccurrenceEnded, OccurrencesPassed, SchedulePaused
from postroad.work.planned import TOO_LATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.schedules.planner import Office
    from postroad.schedules.store import Over
    from postroad.signals import Signal
    from postroad.sql import Pipeline

BATCH: Final = 1000
PACE: Final = 10
"""How many occurrences of a backfill are written at once; no more are until all of those have started."""
_OPEN: Final = 10
_INSTANT: Final = timedelta(microseconds=1)
_FAILED: Final = "a run failed"
_MISSED: Final = "missed"
_GONE: Final = "its row of work is gone"
_ENDS: Final = {"handled": Outcome.SUCCEEDED, "dropped": Outcome.SUCCEEDED, "cancelled": Outcome.CANCELLED}
_STATES: Final = {
    Outcome.SUCCEEDED: "succeeded", Outcome.FAILED: "failed", Outcome.TIMED_OUT: "failed",
    Outcome.CANCELLED: "cancelled",
}  # fmt: skip
_RESULTS: Final = {"succeeded": "ok", "failed": "failed", "cancelled": "cancelled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How many rows were dealt with; `told` is for after the commit."""

    count: int
    told: Sequence[Signal] = ()


def settle(schema: str, office: Office, *, now: datetime | None = None, limit: int = BATCH) -> Pipeline[Settled]:
    """Note how up to `limit` runs of the App ended; run it in a transaction.

    What has no row of work any more is over: finished, or failed where it lies in quarantine; or missed, where no
    worker was free before its start deadline. A schedule that asks for it is paused after a failure. One that somebody
    holds is left to the next time. What was queued behind a run is looked at by the next tick. `now` is the database's
    time unless it is given.

    Raises:
        LeaseLost: PR401, the lease is another's by now: roll back.
    """
    yield from fenced(schema, office)
    found = yield from store.over(schema, office.app, limit=limit)
    rows = {row["id"]: row for row in (yield from store.hold(schema, {one.schedule for one in found}))}
    found = [one for one in found if one.schedule in rows]
    if not found:
        return Settled(count=0)
    told: list[Signal] = []
    ends: list[tuple[int, str, str | None, datetime]] = []
    failures = {number: row["failures"] for number, row in rows.items()}
    paused: dict[UUID, int] = {}
    for one in found:
        outcome, state, reason = _end(one)
        ends.append((one.id, state, reason, one.ended_at))
        failures[one.schedule] = _counted(failures[one.schedule], outcome)
        told.append(_signal(rows[one.schedule]["name"], one, state))
        if state == _MISSED:
            yield from audit.record(schema, _missed(rows[one.schedule]["name"], one))
        if _pauses(office, rows[one.schedule], one, outcome):
            paused[one.schedule] = failures[one.schedule]
    yield from store.end(schema, ends)
    yield from store.count_failures(schema, failures)
    for number, count in paused.items():
        told.append((yield from _pause(schema, office, rows[number], failures=count, given=now)))
    return Settled(count=len(found), told=told)


def _end(one: Over) -> tuple[Outcome, str, str | None]:
    """How it ended: for the policy, for the table, and why. What no worker began in time has been missed."""
    if one.outcome == Outcome.CANCELLED and one.reason == TOO_LATE:
        return Outcome.CANCELLED, _MISSED, str(Reason.START_WITHIN)
    outcome, reason = _outcome(one)
    return outcome, _STATES[outcome], reason


def _missed(name: str, one: Over) -> audit.Act:
    """It was decided to start, and has been missed after all: the row of the audit tells of the later decision."""
    due = one.occurrence.due
    return summary(name, Decision(act=Act.MISS, reason=Reason.START_WITHIN, first=due, last=due))


def _outcome(one: Over) -> tuple[Outcome, str | None]:
    if one.outcome is not None:
        outcome = _ENDS.get(one.outcome, Outcome.FAILED)
        if outcome is Outcome.CANCELLED and one.asked == Reason.FINISH_WITHIN:
            return Outcome.TIMED_OUT, one.asked
        return outcome, one.reason or one.asked
    if one.code is not None:
        return Outcome.FAILED, f"{one.reason} [{one.code}]"
    return Outcome.FAILED, one.asked or _GONE


def _counted(before: int, outcome: Outcome) -> int:
    match outcome:
        case Outcome.SUCCEEDED:
            return 0
        case Outcome.CANCELLED:
            return before
        case _:
            return before + 1


def _signal(name: str, one: Over, state: str) -> Signal:
    if state == _MISSED:
        return OccurrencesPassed(name, state, str(Reason.START_WITHIN), 1)
    delays = () if one.began is None else ((one.began - one.occurrence.starts_at).total_seconds(),)
    return OccurrenceEnded(name, _RESULTS[state], one.ended_at.timestamp(), delays)


def _pauses(office: Office, row: Mapping[str, Any], one: Over, outcome: Outcome) -> bool:
    known = office.known.get(one.schedule)
    if known is None:
        return False
    state = State(cursor=row["cursor"], paused_at=row["paused_at"], running=(one.occurrence,))
    step = decide.ended(known.plan, state, row["cursor"], identity=one.occurrence.identity, outcome=outcome)
    return any(decision.act is Act.PAUSE for decision in step.decisions)


def _pause(
    schema: str, office: Office, row: Mapping[str, Any], *, failures: int, given: datetime | None
) -> Pipeline[SchedulePaused]:  # fmt: skip
    """Pause a schedule as an operator would: what was due already is not lost."""
    time, _ = yield from store.begin(schema, office.app)
    now = given or time
    found = yield from store.standing(schema, [row["id"]])
    held = Held(
        id=row["id"], name=row["name"], revision=row["revision"], tz_version=office.tz_version, cursor=row["cursor"],
        paused_at=None, now=now, plan=office.known[row["id"]].plan, found=found.get(row["id"], []),
    )  # fmt: skip
    yield from apply(schema, held, decide.pause(held.plan, held.state, now))
    yield from store.pause(schema, row["id"], by=BY, reason=_FAILED)
    yield from audit.record(schema, audit.Act(by=BY, act="schedule.pause", subject=row["name"], reason=_FAILED))
    return SchedulePaused(row["name"], failures)


# --- backfills --------------------------------------------------------------------------------------------------------


def backfill(schema: str, office: Office, *, pace: int = PACE) -> Pipeline[Settled]:
    """Write the next occurrences of each backfill that is not done, `pace` at most; run it in a transaction.

    Occurrences and the backfill's own cursor are one commit, so that a crash repeats nothing and leaves nothing out.

    Raises:
        LeaseLost: PR401, the lease is another's by now: roll back.
    """
    yield from fenced(schema, office)
    count = 0
    for row in (yield from store.backfills(schema, office.app, limit=_OPEN)):
        known = office.known.get(row["schedule"])
        if known is not None and row["waiting"] < pace:
            count += yield from _go_on(schema, office, row, pace)
    return Settled(count=count)


def _go_on(schema: str, office: Office, row: Mapping[str, Any], pace: int) -> Pipeline[int]:
    plan = office.known[row["schedule"]].plan
    after = row["cursor"] or row["from_at"] - _INSTANT
    found = list(islice(dues(plan.timing, plan.zone, after=after, until=row["to_at"]), pace))
    now, _ = yield from store.begin(schema, office.app)
    by = store.Written(office.lease.token, office.tz_version, now)
    again, ran = 0, frozenset[datetime]()
    if found and row["rerun"]:
        again = yield from _again(schema, row, found, by)
    elif found:
        ran = yield from store.ran(schema, row["schedule"], found)
    new = [
        store.New(
            schedule=row["schedule"], state="pending", reason=None, revision=row["revision"],
            occurrence=Occurrence(
                due=due, kind=Kind.BACKFILL, request=str(row["id"]), starts_at=now, overlap=Overlap(row["overlap"])
            ),
        )
        for due in found
        if due not in ran
    ]  # fmt: skip
    planned = again + len((yield from store.add(schema, new, by)))
    yield from store.go_on(
        schema, row["id"], cursor=found[-1] if found else row["to_at"], planned=planned,
        passed=len(found) - planned, done=len(found) < pace,
    )  # fmt: skip
    if planned:
        yield from store.look_now(schema, row["schedule"])
    return planned


def _again(schema: str, row: Mapping[str, Any], dues: Sequence[datetime], by: store.Written) -> Pipeline[int]:
    """Have the rows of earlier backfills that ended run once more; what they came to is kept in the audit. How many."""
    before = yield from store.again(schema, row, dues, by)
    if before:
        act = audit.Act(
            by=row["by"], act="schedule.rerun", subject=row["name"], items=len(before), reason=row["reason"],
            before={"runs": before}, after={"backfill": row["id"]},
        )  # fmt: skip
        yield from audit.record(schema, act)
    return len(before)
