"""``postroad jobs``: the jobs of an App, and enqueueing one by hand."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load
from postroad.cli.quarantine import By, who
from postroad.errors import UsageError

if TYPE_CHECKING:
    from postroad.work.enqueue import NewJob

app = typer.Typer(no_args_is_help=True, help="Jobs (tasks) of an App.")

_MOST_READ: Final = 8 * 1024 * 1024


@app.command("list")
def list_(
    reference: Annotated[str, typer.Argument(metavar="MODULE:APP", help=HELP)], *, json: show.AsJson = False
) -> None:
    """List the jobs that an App declares, with their limits. It needs no database."""
    found = [
        {
            "job": each.name, "queue": each.queue, "concurrency": each.concurrency, "fleet": each.fleet,
            "max_runtime_seconds": each.max_runtime.total_seconds(), "attempts": each.retry.attempts,
            "max_age_seconds": each.retry.max_age.total_seconds(), "threaded": each.threaded,
        }
        for each in sorted(load(reference).declarations.jobs, key=lambda each: each.name)
    ]  # fmt: skip
    if json:
        show.document(found)
        return
    columns = ("job", "queue", "concurrency", "fleet", "max runtime", "attempts", "max age", "kind")
    rows = [
        (
            one["job"], one["queue"], one["concurrency"], one["fleet"], f"{one['max_runtime_seconds']:g} s",
            one["attempts"], f"{one['max_age_seconds']:g} s", "def" if one["threaded"] else "async def",
        )
        for one in found
    ]  # fmt: skip
    show.table(show.count(len(found), "job"), columns, rows)


@app.command("enqueue")
def enqueue(
    reference: Annotated[str, typer.Argument(metavar="MODULE:APP", help=HELP)],
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="JSON; or @FILE that holds it, or - to read it.")],
    *,
    run_at: Annotated[str | None, typer.Option(help="Not before: 2026-05-04T02:15:00+02:00; now by default.")] = None,
    priority: Annotated[int, typer.Option(min=-(2**15), max=2**15 - 1, help="Lower runs first.")] = 0,
    queue: Annotated[str | None, typer.Option(help="Another queue of the App's jobs than the job's own.")] = None,
    unique: Annotated[str | None, typer.Option(help="Nothing is written while one with this key is open.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, show the row, write nothing.")] = False,
    payload: Annotated[bool, typer.Option("--payload", help="Show the request as it is (would be) written.")] = False,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Enqueue one job. The request is checked against the job's own type, as in code."""
    from postroad.runtime import operations, work_acts

    declared = load(reference).declarations
    row = work_acts.prepared(
        declared, job, _text(request), run_at=_moment(run_at), priority=priority, queue=queue, unique=unique,
        by=who(by),
    )  # fmt: skip
    fields = _fields(row, payload=payload)
    if dry_run:
        _tell({"written": False, **fields}, as_json=json, said=f"{job} would be enqueued in {row.queue}")
        return
    done = asyncio.run(work_acts.put(operations.database_settings(), row, by=who(by)))
    if done.new:
        _tell(
            {"written": True, "id": done.id, **fields}, as_json=json, said=f"{job} enqueued in {row.queue} as {done.id}"
        )
    else:
        _tell({"written": False, **fields}, as_json=json, said=f"{job}: one with this unique key is open already")


def _fields(row: NewJob, *, payload: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "job": row.name, "queue": row.queue, "unique": row.key, "priority": row.priority,
        "run_at": None if row.run_at is None else row.run_at.isoformat(), "size": len(row.body),
    }  # fmt: skip
    return {**shown, "payload": row.body.decode()} if payload else shown


def _tell(fields: dict[str, Any], *, as_json: bool, said: str) -> None:
    if as_json:
        show.document(fields)
        return
    told = {name: value for name, value in fields.items() if value is not None and name not in {"written", "id"}}
    show.line(f"{said}: {', '.join(f'{name} {value}' for name, value in told.items())}")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = f"--run-at {text!r} is not a time; write it as 2026-05-04T02:15:00+02:00"
        raise UsageError("PR107", message) from None
    if moment.utcoffset() is None:
        message = f"--run-at {text!r} is not a time with a zone; write it as 2026-05-04T02:15:00+02:00"
        raise UsageError("PR107", message)
    return moment


def _text(given: str) -> bytes:
    """The request: as given, from a file, or from standard input; never more than 8 MiB of it."""
    if given == "-":
        found = sys.stdin.buffer.read(_MOST_READ + 1)
    elif given.startswith("@"):
        try:
            with Path(given[1:]).open("rb") as file:
                found = file.read(_MOST_READ + 1)
        except (OSError, ValueError) as error:
            raise UsageError("PR107", f"file {given[1:]!r} cannot be read ({type(error).__name__})") from None
    else:
        found = given.encode("utf-8", "surrogateescape")
    if len(found) > _MOST_READ:
        raise UsageError("PR106", "the request is longer than 8 MiB; enqueue a reference")
    return found
