"""``postroad lease``."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from postroad.cli import show
from postroad.cli.quarantine import user

app = typer.Typer(no_args_is_help=True, help="Who holds which name: leases (leader election, mutex) and their tokens.")


@app.callback()
def _group() -> None:
    """Keep the group a group."""


@app.command("list")
def list_(*, json: show.AsJson = False) -> None:
    """List leases, held and free: the authors' (`user:`) and Postroad's own (shards, workers, dispatchers)."""
    from postroad.runtime import lease_acts, operations

    rows = asyncio.run(lease_acts.leases(operations.database_settings()))
    if json:
        show.document([lease_acts.as_row(row) for row in rows])
        return
    shown = [
        (row.name, "held" if row.held else "free", row.holder, row.token, f"{row.acquired_at:%Y-%m-%d %H:%M:%S}",
         f"{row.expires_at:%Y-%m-%d %H:%M:%S}")
        for row in rows
    ]  # fmt: skip
    columns = ("name", "state", "holder", "token", "acquired (UTC)", "expires (UTC)")
    show.table(f"{sum(row.held for row in rows)} of {len(rows)} leases held", columns, shown)


@app.command("fence")
def fence(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The lease, from `lease list`, or as its author named it.")
    ],
    *,
    reason: Annotated[str, typer.Option(help="Why; kept with the lease.")] = "",
    by: Annotated[str | None, typer.Option(help="Who decides; the user of the operating system by default.")] = None,
    json: show.AsJson = False,
) -> None:
    """Take a lease away from its holder (interrupt), safely at any time: its token grows.

    What the holder writes under its lease is refused at once; it stops at its next renewal, a third of the ttl later
    at most. The name is free for others at once, and for the same process again.
    """
    from postroad.runtime import lease_acts, operations

    who = " ".join((by or user()).split())
    done = asyncio.run(lease_acts.fence(operations.database_settings(), name, by=who, reason=reason))
    if json:
        show.document(lease_acts.as_row(done))
    else:
        show.line(f"lease {done.name} is fenced by {who}: its token is {done.token}, and it is free")
