"""``postroad work``: the rows of the table `work`, and what became of them."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from postroad.cli import show
from postroad.cli.quarantine import By, who

app = typer.Typer(no_args_is_help=True, help="Open work: jobs (tasks), and the retries of consumers.")

_ID: Final = typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="The row's id, from `work list` or an enqueue.")
_TIME: Final = "%Y-%m-%d %H:%M:%S"


class State(StrEnum):
    """The states of an open row."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"


@app.command("list")
def list_(
    *,
    queue: Annotated[str | None, typer.Option(help="Only of this queue (a consumer's retries have its name).")] = None,
    state: Annotated[State | None, typer.Option(help="Only in this state.")] = None,
    job: Annotated[str | None, typer.Option(help="Only jobs of this name.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, latest first.")] = 100,
    json: show.AsJson = False,
) -> None:
    """List open rows, latest first, and count them by state. Payloads are never printed."""
    from dataclasses import asdict

    from postroad.runtime import operations, work_acts
    from postroad.work.operate import Chosen

    chosen = Chosen(queue=queue, state=None if state is None else str(state), job=job)
    rows, counts = asyncio.run(work_acts.rows(operations.database_settings(), chosen, limit=limit))
    if json:
        show.document({"counts": counts, "rows": [show.plain(asdict(row)) for row in rows]})
        return
    shown = [
        ((row.id, row.kind, row.state, row.attempt, show.moment(row.run_at), row.queue, row.event_type), _doing(row))
        for row in rows
    ]
    told = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing is open"
    show.listing(told, ("id", "kind", "state", "attempts", "run at (UTC)", "queue", "job or type"), shown)


def _doing(row: Any) -> str:
    parts = [
        "cancel asked" if row.cancel_at else "",
        "" if row.progress is None else f"{row.progress:.0%}",
        row.note or "",
    ]
    return " ".join(part for part in parts if part)


@app.command("show")
def show_(
    row: Annotated[int, _ID],
    *,
    payload: Annotated[
        bool, typer.Option("--payload", help="Also the request or message itself, and headers.")
    ] = False,
    json: show.AsJson = False,
) -> None:
    """Show one row, wherever it is by now: open, finished or in quarantine. Its payload only with --payload."""
    from dataclasses import asdict

    from postroad.runtime import operations, work_acts

    found = asyncio.run(work_acts.row(operations.database_settings(), row, payload=payload))
    fields = {**show.plain(asdict(found)), **show.payload(found.body)}
    if not payload:
        del fields["headers"]
    if json:
        show.document(fields)
        return
    show.fields(fields)


@app.command("cancel")
def cancel(
    row: Annotated[int, _ID],
    *,
    reason: Annotated[str | None, typer.Option(help="Why; it is kept.")] = None,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Cancel a job: at once where it does not run; else its worker is asked to, and hears within seconds.

    What a running job has committed stays. A consumer's retry is a delivery, and is not cancelled.
    """
    from dataclasses import asdict

    from postroad.runtime import operations, work_acts

    done = asyncio.run(work_acts.cancel(operations.database_settings(), row, by=who(by), reason=reason))
    if json:
        show.document(asdict(done))
        return
    said = "cancelled" if done.result == "done" else "it runs; its worker is asked to stop it"
    show.line(f"row {done.id} of {done.queue}: {said}, by {done.by}")


@app.command("retry")
def retry(row: Annotated[int, _ID], *, by: By = None, json: show.AsJson = False) -> None:
    """Run a row again now: one that is scheduled at once, a job out of quarantine (redrive) as a new row."""
    from dataclasses import asdict

    from postroad.runtime import operations, work_acts

    done = asyncio.run(work_acts.retry(operations.database_settings(), row, by=who(by)))
    if json:
        show.document(asdict(done))
        return
    became = "ready now" if done.number == done.id else f"released as row {done.number}"
    show.line(f"row {done.id} of {done.queue}: was {done.was}, {became}, by {done.by}")
