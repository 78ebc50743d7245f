"""``postroad schedule``: the schedules in the database, and what operators do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from postroad.cli import show
from postroad.cli.quarantine import By, who
from postroad.cli.schedule import app
from postroad.errors import UsageError

__all__ = ["app"]

if TYPE_CHECKING:
    from postroad.schedules.operate import Changed, Listed, Past
    from postroad.schedules.policy import Overlap

_NAME: Final = typer.Argument(metavar="NAME", help="The schedule, from `schedule list`.")
_REASON: Final = typer.Option(help="Why; it is kept in the audit.")
_OVERLAP: Final = typer.Option(help="What happens beside a run, for these alone.")
_COLUMNS: Final = ("state", "next due (UTC)", "last due (UTC)", "last", "open", "App", "name")


class Beside(StrEnum):
    """The overlap policies, by the words of `Overlap`."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    ALLOW = "allow"
    CANCEL_RUNNING = "cancel_running"


class State(StrEnum):
    """The states of an occurrence."""

    PENDING = "pending"
    QUEUED = "queued"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    MISSED = "missed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


@app.command("list")
def list_(
    *,
    of: Annotated[str | None, typer.Option("--app-name", help="Only of the App with this name.")] = None,
    retired: Annotated[bool, typer.Option("--retired", help="Also those that no release declares any more.")] = False,
    json: show.AsJson = False,
) -> None:
    """List the schedules (cron, periodic jobs) that Apps have declared in this database."""
    from postroad.runtime import operations, schedule_acts

    found = asyncio.run(schedule_acts.schedules(operations.database_settings(), app=of, retired=retired))
    if json:
        show.document([_fields(one) for one in found])
        return
    rows = [
        (
            (
                one.state, _moment(one.next_due), _moment(one.last_due), one.last_state or "",
                one.started + one.waiting, one.app, one.name,
            ),
            _paused(one.paused_by, one.paused_at, one.pause_reason),
        )
        for one in found
    ]  # fmt: skip
    show.listing(show.count(len(found), "schedule"), _COLUMNS, rows)


@app.command("show")
def show_(name: Annotated[str, _NAME], *, json: show.AsJson = False) -> None:
    """Show one schedule: each property, and where it comes from (declared, default, job, operator, scheduler)."""
    from postroad.runtime import operations, schedule_acts

    one = asyncio.run(schedule_acts.show(operations.database_settings(), name))
    properties = _properties(one)
    if json:
        show.document({name: {"value": value, "source": source} for name, value, source in properties})
        return
    rows = [((source, label, "none" if value is None else value), "") for label, value, source in properties]
    show.listing(f"schedule {one.name}: {one.state}", ("source", "property", "value"), rows)


@app.command("history")
def history(
    name: Annotated[str, _NAME],
    *,
    state: Annotated[State | None, typer.Option(help="Only occurrences in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the latest due first.")] = 100,
    json: show.AsJson = False,
) -> None:
    """List what became of each occurrence: whether it ran, or why not; and the backfills."""
    from dataclasses import asdict

    from postroad.runtime import operations, schedule_acts

    chosen = None if state is None else str(state)
    _, past, backfills = asyncio.run(
        schedule_acts.history(operations.database_settings(), name, state=chosen, limit=limit)
    )
    if json:
        rows = [show.plain(asdict(one)) for one in past]
        show.document({"occurrences": rows, "backfills": [show.plain(dict(one)) for one in backfills]})
        return
    lines = [
        (
            (
                one.state, one.kind, show.moment(one.due), _moment(one.started_at), _moment(one.ended_at),
                "" if one.work_id is None else one.work_id,
            ),
            _why(one),
        )
        for one in past
    ]  # fmt: skip
    columns = ("state", "kind", "due (UTC)", "started (UTC)", "ended (UTC)", "work")
    show.listing(show.count(len(past), "occurrence"), columns, lines)
    for each in backfills:
        show.line(_backfill(each))


@app.command("pause")
def pause(
    name: Annotated[str, _NAME], *, reason: Annotated[str | None, _REASON] = None, by: By = None,
    json: show.AsJson = False,
) -> None:  # fmt: skip
    """Have nothing scheduled start until `resume`, through deploys too. What runs goes on."""
    from postroad.runtime import operations, schedule_acts

    done = asyncio.run(schedule_acts.pause(operations.database_settings(), name, by=who(by), reason=reason))
    _tell(done, as_json=json, said="paused" if done.changed else "was paused already")


@app.command("resume")
def resume(
    name: Annotated[str, _NAME], *, reason: Annotated[str | None, _REASON] = None, by: By = None,
    json: show.AsJson = False,
) -> None:  # fmt: skip
    """Let a schedule start again from now on: what came due meanwhile is neither run nor missed."""
    from postroad.runtime import operations, schedule_acts

    done = asyncio.run(schedule_acts.resume(operations.database_settings(), name, by=who(by), reason=reason))
    _tell(done, as_json=json, said="resumed" if done.changed else "was not paused")


@app.command("trigger")
def trigger(
    name: Annotated[str, _NAME],
    *,
    request: Annotated[
        str | None, typer.Option("--request", help="An id of your own: asked for twice, it runs once.")
    ] = None,
    overlap: Annotated[Beside | None, _OVERLAP] = None,
    reason: Annotated[str | None, _REASON] = None,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Ask for a run now (fire, run once), paused or not. It obeys the overlap policy, or else --overlap."""
    from dataclasses import asdict

    from postroad.runtime import operations, schedule_acts

    done = asyncio.run(
        schedule_acts.trigger(
            operations.database_settings(), name, request=request or str(uuid4()), by=who(by), reason=reason,
            overlap=_overlap(overlap),
        )
    )  # fmt: skip
    if json:
        show.document(show.plain(asdict(done)))
        return
    said = f"asked for, due {show.moment(done.due)} UTC" if done.new else "that request was asked for before"
    show.line(f"schedule {done.name}: {said} (request {done.request})")


@app.command("backfill")
def backfill(
    name: Annotated[str, _NAME],
    *,
    first: Annotated[str, typer.Option("--from", metavar="INSTANT", help="The first due time, inclusive.")],
    last: Annotated[str, typer.Option("--to", metavar="INSTANT", help="The last due time, inclusive.")],
    overlap: Annotated[Beside, _OVERLAP] = Beside.QUEUE_ALL,
    rerun: Annotated[bool, typer.Option("--rerun", help="Also those that have an occurrence already.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the due times, write nothing.")] = False,
    reason: Annotated[str | None, _REASON] = None,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Run past due times again or for the first time, paused or not, a few at a time and one after the other."""
    from postroad.runtime import operations, schedule_acts

    chosen = _overlap(overlap)
    assert chosen is not None
    done = asyncio.run(
        schedule_acts.backfill(
            operations.database_settings(), name, first=_instant("--from", first), last=_instant("--to", last),
            overlap=chosen, rerun=rerun, dry_run=dry_run, by=who(by), reason=reason,
        )
    )  # fmt: skip
    runs = [due for due in done.dues if rerun or due not in done.ran]
    if json:
        dues = [{"due": due.isoformat(), "ran": due in done.ran, "runs": due in runs} for due in done.dues]
        show.document({"name": done.name, "id": done.id, "dry_run": dry_run, "runs": len(runs), "dues": dues})
        return
    for due in done.dues if dry_run else ():
        show.line(f"{show.moment(due)} UTC{'' if due in runs else '  has an occurrence already'}")
    passed = len(done.dues) - len(runs)
    said = "would run" if dry_run else f"will run, as backfill {done.id}" if done.id else "will run"
    show.line(f"schedule {done.name}: {show.count(len(runs), 'due time')} {said}; {passed} ran before")


def _overlap(given: Beside | None) -> Overlap | None:
    from postroad.schedules.policy import Overlap

    return None if given is None else Overlap(str(given))


def _instant(option: str, text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.utcoffset() is not None else _refused(option, text)
    except (ValueError, OverflowError):
        return _refused(option, text)


def _refused(option: str, text: str) -> datetime:
    raise UsageError("PR107", f"{option} {text!r} is no instant; write it with its zone, as 2026-03-08T00:00:00Z")


def _tell(done: Changed, *, as_json: bool, said: str) -> None:
    from dataclasses import asdict

    if as_json:
        show.document(show.plain(asdict(done)))
        return
    paused = _paused(done.paused_by, done.paused_at, done.reason)
    show.line(f"schedule {done.name}: {said}{f' ({paused})' if paused else ''}")


def _fields(one: Listed) -> dict[str, Any]:
    from dataclasses import asdict

    return show.plain(asdict(one))


def _properties(one: Listed) -> list[tuple[str, Any, str]]:
    """Each property of a schedule: its name, its value, and where it comes from."""
    definition = dict(one.definition)
    sources: Mapping[str, str] = definition.pop("sources", {})
    rows = [(name, value, sources.get(name, "declared")) for name, value in definition.items()]
    release = f"release {one.release} of {one.app}"
    rows += [("app", one.app, "declared"), ("declared_by", release, "scheduler"), ("id", str(one.id), "scheduler")]
    told = _fields(one)
    names = ("state", "next_due", "cursor", "next_at", "revision", "tz_version", "failures", "started", "waiting",
             "last_due", "last_state", "last_ended_at", "created_at", "changed_at", "retired_at")  # fmt: skip
    rows += [(name, told[name], "operator") for name in ("paused_at", "paused_by", "pause_reason")]
    return rows + [(name, told[name], "scheduler") for name in names]


def _why(one: Past) -> str:
    parts = [
        one.reason or "",
        f"asked for as {one.request}" if one.kind == "manual" else "",
        f"its row of work is {one.work_state}" if one.work_state else "",
    ]
    return "; ".join(part for part in parts if part)


def _backfill(row: Mapping[str, Any]) -> str:
    ends = f"ended {show.moment(row['ended_at'])} UTC" if row["ended_at"] else "goes on"
    reach = f"{show.moment(row['from_at'])} to {show.moment(row['to_at'])} UTC"
    why = f": {show.safe(row['reason'])}" if row["reason"] else ""
    counts = f"{row['planned']} planned, {row['passed']} passed over"
    return f"backfill {row['id']} by {show.safe(row['by'])}: {reach}, {counts}, {ends}{why}"


def _paused(by: str | None, at: datetime | None, reason: str | None) -> str:
    if at is None:
        return ""
    return f"by {by} since {show.moment(at)} UTC{f': {reason}' if reason else ''}"


def _moment(at: datetime | None) -> str:
    return "" if at is None else show.moment(at)
