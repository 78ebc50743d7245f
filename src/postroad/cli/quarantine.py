"""``postroad quarantine``, also called ``dlq``."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, TypeAlias

import typer

from postroad.cli import show

By: TypeAlias = Annotated[
    str | None, typer.Option("--by", help="Who decides; the user of the operating system by default.")
]

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
        ((row.id, show.moment(row.quarantined_at), row.code, row.queue, row.event_type), row.reason) for row in rows
    ]
    show.listing(f"{len(rows)} in quarantine", ("id", "since (UTC)", "code", "queue", "type"), shown)


@app.command("retry")
def retry(
    row: Annotated[int, typer.Argument(metavar="ID", min=1, help="The row's id, from `quarantine list`.")],
    *,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Release (redrive) one row, once what was wrong is put right, such as a consumer's upgrade.

    A delivery becomes a retry of its consumer and runs as a first delivery does, with a fresh budget, and a job a new
    row of its queue; an event that the broker refused goes back into the outbox. Identity and bytes stay; what was
    handled already is not handled again.
    """
    from dataclasses import asdict

    from postroad.runtime import operations

    done = asyncio.run(operations.retry(operations.database_settings(), row, by=who(by)))
    if json:
        show.document(asdict(done))
    else:
        show.line(f"row {done.id} of {done.queue}: released to the {done.to} as {done.number}, by {done.by}")


def who(by: str | None) -> str:
    """Whom an act is recorded under: on one line, and without what cannot be written."""
    return " ".join((by or user()).split()).encode("utf-8", "replace").decode()


def user() -> str:
    """Who runs this command, as the operating system says."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
