"""``postroad events``."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from postroad.cli import show
from postroad.cli.progress import agreed
from postroad.cli.quarantine import By, DryRun, Yes, who

if TYPE_CHECKING:
    from postroad.runtime.erasure import Redacted

app = typer.Typer(no_args_is_help=True, help="Events that are kept: erasing those of a person.")

_REFUSED: Final = 1


@app.callback()
def _group() -> None:
    """Keep the group a group."""


@app.command("redact")
def redact(
    *,
    key: Annotated[str, typer.Option(help="The key of the events, as they were published with it.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept. No personal data here.")],
    producer: Annotated[str | None, typer.Option(help="Only of this producer's event types.")] = None,
    jobs: Annotated[bool, typer.Option("--jobs", help="Also cancel jobs whose request names the key.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    json: show.AsJson = False,
) -> None:
    """Erase the events of one key: a tombstone of the same id takes the place of their bytes.

    That is in the log, in work and in quarantine of this database, and in the commands of effects; it cannot be
    undone. Repeat it in the database of every service that consumes them. What is on a broker, or was copied by
    handlers, is not reached.
    """
    from dataclasses import asdict

    from postroad.runtime import erasure, operations

    redact_ = partial(
        erasure.redact, operations.database_settings(), key, reason=reason, by=who(by), producer=producer, jobs=jobs
    )
    found = asyncio.run(redact_(dry_run=True))
    if dry_run or not yes:
        if json and dry_run:
            show.document({"dry_run": True, **asdict(found)})
        elif not json:
            show.line(_told(found, "would be erased", jobs=jobs))
        if dry_run:
            return
        if not agreed("Erase them for good?"):
            raise typer.Exit(_REFUSED)
    done = asyncio.run(redact_())
    if json:
        show.document({"dry_run": False, **asdict(done)})
        return
    show.line(_told(done, "erased", jobs=jobs))


def _told(found: Redacted, verb: str, *, jobs: bool) -> str:
    ended = (
        verb.replace("erased", "cancelled and erased") if jobs else "left as they are (--jobs cancels and erases them)"
    )
    parts = [
        f"{found.log} in the log, {found.work} in work, {found.quarantine} in quarantine {verb} ({found.subject})",
        f"{show.count(found.effects, 'effect')}: the command {verb}" if found.effects else "",
        f"{found.in_doubt} in doubt: the command stays until there is an outcome" if found.in_doubt else "",
        f"{show.count(found.jobs, 'job')} with the key in the request: {ended}" if found.jobs else "",
        f"{show.count(found.replays, 'replay')} asked for the key" if found.replays else "",
        f"{found.unsent} wait to be sent and go as tombstones" if found.unsent else "",
        f"{found.running} are running now" if found.running else "",
    ]
    return "; ".join(filter(None, parts))
