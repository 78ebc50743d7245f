"""``postroad lease``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from postroad.cli import show
from postroad.cli.quarantine import user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.leases import Listed

app = typer.Typer(no_args_is_help=True, help="Who holds which name: leases (leader election, mutex) and their tokens.")

PREFIX: Final = "user:"  # `postroad.leases.PREFIX`, which a look at the help need not import
_SHORT: Final = 8


@app.callback()
def _group() -> None:
    """Keep the group a group."""


@app.command("list")
def list_(
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Each of Postroad's own, too, instead of one line for each kind.")
    ] = False,
    json: show.AsJson = False,
) -> None:
    """List leases, held and free: the authors' first, then Postroad's own (shards, workers, dispatchers).

    JSON holds each of them under its whole name; an author's begins with `user:` there.
    """
    from postroad.runtime import lease_acts, operations

    rows = asyncio.run(lease_acts.leases(operations.database_settings()))
    if json:
        show.document([lease_acts.as_row(row) for row in rows])
        return
    authors = [row for row in rows if row.name.startswith(PREFIX)]
    own = [row for row in rows if not row.name.startswith(PREFIX)]
    shown = [_line(row) for row in authors + (own if every else [])]
    columns = ("state", "token", "holder", "acquired (UTC)", "expires (UTC)", "name")
    show.listing(f"{sum(row.held for row in rows)} of {len(rows)} leases held", columns, shown)
    for line in [] if every else _folded(own):
        show.line(line)


def _line(row: Listed) -> tuple[tuple[object, ...], str]:
    holder = "" if row.holder is None else str(row.holder)[:_SHORT]
    times = (show.moment(row.acquired_at), show.moment(row.expires_at))
    fenced = f"fenced by {row.fenced_by}{f': {row.reason}' if row.reason else ''}" if row.fenced_by else ""
    return ("held" if row.held else "free", row.token, holder, *times, row.name.removeprefix(PREFIX)), fenced


def _folded(rows: Sequence[Listed]) -> list[str]:
    """Postroad's own by kind, which is what stands before the colon."""
    kinds: dict[str, list[Listed]] = {}
    for row in rows:
        kinds.setdefault(row.name.partition(":")[0], []).append(row)
    return [
        f"{kind}: {sum(row.held for row in each)} of {len(each)} held,"
        f" holders: {', '.join(sorted({str(row.holder)[:_SHORT] for row in each if row.held})) or 'none'}"
        for kind, each in kinds.items()
    ]


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
