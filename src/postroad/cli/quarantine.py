"""``postroad quarantine``, also called ``dlq``."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from postroad.cli import show

app = typer.Typer(no_args_is_help=True, help="What is kept until a person decides: dead letters, poison messages.")


@app.callback()
def _group() -> None:
    """Keep the group a group."""


@app.command("list")
def list_(
    *,
    queue: Annotated[str | None, typer.Option(help="Only this consumer's (its name is its queue's).")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, latest first.")] = 100,
    json: show.AsJson = False,
) -> None:
    """List what lies in quarantine (dead letters), latest first. Bodies are never printed."""
    from postroad.runtime import operations

    rows = asyncio.run(operations.quarantined(operations.database_settings(), queue=queue, limit=limit))
    if json:
        show.document([operations.as_row(row) for row in rows])
        return
    shown = [
        (row.id, row.queue, row.event_type, row.code, row.reason, f"{row.quarantined_at:%Y-%m-%d %H:%M}")
        for row in rows
    ]
    show.table(f"{len(rows)} in quarantine", ("id", "queue", "type", "code", "reason", "since (UTC)"), shown)
