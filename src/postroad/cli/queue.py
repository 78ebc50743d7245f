"""``postroad queue``: how queues of work stand, and their pauses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from postroad.cli import show
from postroad.cli.quarantine import By, who

if TYPE_CHECKING:
    from postroad.work.operate import QueueState

app = typer.Typer(no_args_is_help=True, help="Queues of work: what waits in them, and pausing them.")

_NAME: Final = typer.Argument(metavar="NAME", help="The queue: a job's, or a consumer's name for its retries.")
_COLUMNS: Final = ("queue", "scheduled", "ready", "waiting", "running", "oldest ready", "paused")


@app.command("list")
def list_(*, json: show.AsJson = False) -> None:
    """List the queues that have open rows, or that somebody has paused."""
    from dataclasses import asdict

    from postroad.runtime import operations, work_acts

    found = asyncio.run(work_acts.queues(operations.database_settings()))
    if json:
        show.document([show.plain(asdict(one)) for one in found])
        return
    rows = [
        (one.name, one.scheduled, one.ready, one.waiting, one.running, _age(one.oldest_seconds), _paused(one))
        for one in found
    ]
    show.table(show.count(len(found), "queue"), _COLUMNS, rows)


@app.command("pause")
def pause(
    name: Annotated[str, _NAME],
    *,
    reason: Annotated[str | None, typer.Option(help="Why; it is shown until the queue is resumed.")] = None,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Have no process claim from a queue until `resume`. What runs goes on; enqueueing does, too."""
    from postroad.runtime import operations, work_acts

    changed, state = asyncio.run(work_acts.pause(operations.database_settings(), name, by=who(by), reason=reason))
    _tell(state, changed=changed, as_json=json, said="paused" if changed else "was paused already")


@app.command("resume")
def resume(name: Annotated[str, _NAME], *, by: By = None, json: show.AsJson = False) -> None:
    """Have processes claim from a queue again."""
    from postroad.runtime import operations, work_acts

    changed, state = asyncio.run(work_acts.resume(operations.database_settings(), name, by=who(by)))
    _tell(state, changed=changed, as_json=json, said="resumed" if changed else "was not paused")


def _tell(state: QueueState, *, changed: bool, as_json: bool, said: str) -> None:
    from dataclasses import asdict

    if as_json:
        show.document({"changed": changed, **show.plain(asdict(state))})
        return
    paused = f" ({_paused(state)})" if state.paused_at else ""
    counts = f"{state.ready} ready, {state.scheduled} scheduled, {state.running} running"
    empty = "" if state.ready + state.scheduled + state.waiting + state.running else " (no row is in this queue)"
    show.line(f"queue {state.name}: {said}{paused}; {counts}{empty}")


def _paused(state: QueueState) -> str:
    if state.paused_at is None:
        return ""
    why = f": {state.reason}" if state.reason else ""
    return f"by {state.paused_by} since {state.paused_at:%Y-%m-%d %H:%M:%S} UTC{why}"


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.0f} s"
