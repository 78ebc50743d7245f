"""What an operator sees of schedules and may do with them, as pipelines; each act leaves its row of the audit."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad import audit
from postroad.errors import UsageError
from postroad.schedules import decide, store
from postroad.schedules.held import Held, apply
from postroad.schedules.schedule import plan_of
from postroad.sql import queries

if TYPE_CHECKING:
    from postroad.schedules.policy import Overlap
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.schedules", "operate.sql")

MOST_BACKFILL: Final = 10_000
"""How many due times one backfill may have."""
STATES: Final = ("pending", "queued", "started", "succeeded", "failed", "missed", "skipped", "cancelled")
_MOST_REQUEST: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A schedule as shown to people. `definition` holds its declared properties; times are aware UTC.

    `state` is active, paused or retired. `next_due` is its next nominal time by this process's zone data, None where
    there is none: paused, retired, or never again. `started` runs, `waiting` are before their time or queued.
    """

    id: UUID
    name: str
    app: str
    state: str
    next_due: datetime | None
    definition: Mapping[str, Any]
    revision: int
    release: int
    tz_version: str | None
    cursor: datetime
    next_at: datetime | None
    failures: int
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    retired_at: datetime | None
    created_at: datetime
    changed_at: datetime
    started: int
    waiting: int
    last_due: datetime | None
    last_state: str | None
    last_ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Past:
    """An occurrence as shown to people; `work_state` is where its row of work stands while it runs."""

    id: int
    due: datetime
    kind: str
    request: str
    state: str
    reason: str | None
    start_at: datetime
    overlap: str | None
    revision: int
    token: int | None
    tz_version: str | None
    key: str
    queue: str | None
    work_id: int | None
    work_state: str | None
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What an act did to a schedule: whether anything, and since when it is paused by whom, why."""

    name: str
    changed: bool
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggered:
    """A run that was asked for: its request, and whether that was new; its due time is that of the request."""

    name: str
    request: str
    new: bool
    due: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """A backfill: the due times in its range, those that have run before (`ran`), and its number (None: dry run)."""

    name: str
    id: int | None
    dues: Sequence[datetime]
    ran: Sequence[datetime]


def listed(
    schema: str, *, app: str | None = None, name: str | None = None, retired: bool = False
) -> Pipeline[list[Listed]]:  # fmt: skip
    """Schedules by name: of one App or all, `retired` ones too; or the one called `name`."""
    rows = yield QUERIES.statement("list", schema, app, name, retired or name is not None)
    return [_listed(row) for row in rows]


def shown(schema: str, name: str) -> Pipeline[Listed]:
    """The schedule `name`.

    Raises:
        UsageError: PR107, there is none.
    """
    rows = yield from listed(schema, name=name)
    if not rows:
        yield from _unknown(schema, name)
    return rows[0]


def history(
    schema: str, name: str, *, state: str | None = None, limit: int
) -> Pipeline[tuple[Listed, list[Past], list[Mapping[str, Any]]]]:  # fmt: skip
    """Occurrences of a schedule, the latest due first, all or those in one `state`; and what was backfilled.

    Raises:
        UsageError: PR107, there is no such schedule.
    """
    one = yield from shown(schema, name)
    rows = yield QUERIES.statement("history", schema, one.id, state, limit)
    backfills = yield QUERIES.statement("backfills", schema, one.id, limit)
    return one, [Past(*row.values()) for row in rows], [dict(row.items()) for row in backfills]


def pause(schema: str, name: str, *, by: str, reason: str | None) -> Pipeline[Changed]:
    """Have nothing scheduled start until `resume`; what runs goes on, and what was due already is not lost.

    It lasts through deploys. Pausing twice changes nothing. Run it in a transaction, as all that follow.

    Raises:
        UsageError: PR107, there is no such schedule, or it is retired.
    """
    held, row = yield from _hold(schema, name)
    if row["paused_at"] is not None:
        return _changed(row, changed=False)
    step = decide.pause(held.plan, held.state, held.now)
    yield from apply(schema, held, step)
    yield from store.pause(schema, held.id, by=by, reason=reason)
    yield from audit.record(schema, audit.Act(by=by, act="schedule.pause", subject=name, reason=reason))
    after = {**row, "paused_at": held.now, "paused_by": by, "pause_reason": reason}
    return _changed(after, changed=True)


def resume(schema: str, name: str, *, by: str, reason: str | None = None) -> Pipeline[Changed]:
    """Let a paused schedule start again: what came due meanwhile is neither run nor missed, what waited starts.

    A cursor that lies ahead, since the database's clock was, comes back to now: the audit names both. What has an
    occurrence from that time does not get another.

    Raises:
        UsageError: PR107, there is no such schedule, or it is retired.
    """
    held, row = yield from _hold(schema, name)
    if row["paused_at"] is None:
        return _changed(row, changed=False)
    step = decide.resume(held.state, held.now)
    yield from apply(schema, held, step)
    yield from store.resume(schema, held.id, cursor=held.now)
    before = {"paused_at": row["paused_at"], "paused_by": row["paused_by"], "cursor": held.cursor}
    after = {"cursor": held.now}
    act = audit.Act(by=by, act="schedule.resume", subject=name, reason=reason, before=before, after=after)
    yield from audit.record(schema, act)
    return _changed({**row, "paused_at": None, "paused_by": None, "pause_reason": None}, changed=True)


def trigger(
    schema: str, name: str, *, request: str, by: str, reason: str | None = None, overlap: Overlap | None = None
) -> Pipeline[Triggered]:  # fmt: skip
    """Ask for a run now, paused or not. The same `request` is one run, however often it is asked for.

    Raises:
        UsageError: PR107, there is no such schedule, it is retired, or the request's id cannot be kept.
    """
    if not request.isprintable() or not 0 < len(request) <= _MOST_REQUEST:
        raise UsageError("PR107", f"the id of a request is one line of 1 to {_MOST_REQUEST} characters")
    held, _ = yield from _hold(schema, name)
    step = decide.trigger(held.state, held.now, request=request, overlap=overlap)
    new = yield from apply(schema, held, step)
    if new:
        yield from store.look_now(schema, held.id)
        after = {"request": request, "due": held.now.isoformat(), "overlap": None if overlap is None else str(overlap)}
        act = audit.Act(by=by, act="schedule.trigger", subject=name, reason=reason, after=after)
        yield from audit.record(schema, act)
    return Triggered(name=name, request=request, new=bool(new), due=held.now)


def backfill(
    schema: str, name: str, *, first: datetime, last: datetime, overlap: Overlap, rerun: bool, by: str,
    reason: str | None = None, dry_run: bool = False,
) -> Pipeline[Backfilled]:  # fmt: skip
    """Ask for the due times from `first` to `last`, both inclusive, paused or not; the scheduler works them off.

    Those that have an occurrence already are passed over, unless `rerun`: then they run once more, under another key,
    as often as that is asked for. What an earlier backfill has not ended yet is not doubled: it is refused.

    Raises:
        UsageError: PR107, there is no such schedule, it is retired, the range is reversed, ahead, or too long, or with
            `rerun` some of it waits or runs as a backfill.
    """
    held, _ = yield from _hold(schema, name)
    if last > held.now:
        raise UsageError("PR107", f"--to {last.isoformat()} lies ahead; a backfill is for due times that have passed")
    dues = decide.backfill_dues(held.plan, first, last, most=MOST_BACKFILL)
    ran = (yield from store.ran(schema, held.id, dues)) if dues else frozenset()
    if rerun and dues:
        _refuse_open(name, (yield from store.backfilling(schema, held.id, dues)))
    number = None
    if not dry_run and (rerun or len(ran) < len(dues)):
        number = yield from store.add_backfill(
            schema, held.id, first=first, last=last, overlap=overlap, rerun=rerun, by=by, reason=reason
        )
        after = {"id": number, "from": first.isoformat(), "to": last.isoformat(), "rerun": rerun}
        items = len(dues) if rerun else len(dues) - len(ran)
        act = audit.Act(by=by, act="schedule.backfill", subject=name, items=items, reason=reason, after=after)
        yield from audit.record(schema, act)
    return Backfilled(name=name, id=number, dues=dues, ran=sorted(ran))


def _refuse_open(name: str, dues: Sequence[datetime]) -> None:
    if dues:
        what = f"{len(dues)} due times of that range, the first {dues[0].isoformat()},"
        hint = f"ask again once they have ended (`postroad schedule history {name}`), or leave them out"
        raise UsageError("PR107", f"--rerun: {what} wait or run by an earlier backfill; {hint}")


def _hold(schema: str, name: str) -> Pipeline[tuple[Held, Mapping[str, Any]]]:
    rows = yield store.QUERIES.statement("lock", schema, name)
    if not rows:
        yield from _unknown(schema, name)
    row: Mapping[str, Any] = dict(rows[0].items())
    if row["retired"]:
        raise UsageError("PR107", f"schedule {name!r} is retired: no release that runs declares it")
    found = yield from store.standing(schema, [row["id"]])
    held = Held(
        id=row["id"], name=row["name"], revision=row["revision"], tz_version=row["tz_version"], cursor=row["cursor"],
        paused_at=row["paused_at"], now=row["now"], plan=plan_of(json.loads(row["definition"]), str(row["id"])),
        found=found.get(row["id"], []),
    )  # fmt: skip
    return held, row


def _unknown(schema: str, name: str) -> Pipeline[None]:
    names = [one.name for one in (yield from listed(schema))]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "see `postroad schedule list`"
    raise UsageError("PR107", f"there is no schedule {name[:100]!r}; {hint}")


def _changed(row: Mapping[str, Any], *, changed: bool) -> Changed:
    return Changed(
        name=row["name"], changed=changed, paused_at=row["paused_at"], paused_by=row["paused_by"],
        reason=row["pause_reason"],
    )  # fmt: skip


def _listed(row: Mapping[str, Any]) -> Listed:
    fields = dict(row.items())
    now = fields.pop("now")
    definition = json.loads(fields.pop("definition"))
    state = "retired" if row["retired_at"] else "paused" if row["paused_at"] else "active"
    following = None
    if state == "active":
        plan = plan_of(definition, str(row["id"]))
        following = plan.timing.next(max(row["cursor"], now), plan.zone)
    return Listed(**fields, definition=definition, state=state, next_due=following)
