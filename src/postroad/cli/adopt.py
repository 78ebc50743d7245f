"""``postroad adopt``."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from postroad.cli import show
from postroad.cli.quarantine import user

if TYPE_CHECKING:
    from postroad.runtime.adoption import Bound

_REFUSED: Final = 1


def adopt(
    *,
    send_waiting: Annotated[
        bool | None,
        typer.Option(
            "--send-waiting/--discard-waiting",
            help="What becomes of events that wait in this database; must be said where any do.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    by: Annotated[str | None, typer.Option(help="Who decides; the user of the operating system by default.")] = None,
    json: show.AsJson = False,
) -> None:
    """Let a copied or restored database (clone, staging copy, backup) send to the configured broker.

    Until then it is silent: its processes neither send nor take anything, since they may do what the original does.
    It shows what is bound to what, and what waits; then asks. Nothing is done where nothing is in doubt. The database
    becomes an installation of its own, and the original is not disturbed. Exit code 1 where the answer is no.
    """
    from dataclasses import asdict

    from postroad.runtime import adoption, operations

    settings = operations.bound_settings()
    bound = asyncio.run(adoption.examine(settings))
    if not json:
        _print(bound)
    if not bound.doubt:
        show.document({**asdict(bound), "adopted": None}) if json else show.line("nothing to adopt")
        return
    discard = adoption.choice(bound, send=send_waiting)
    if not yes and not _agreed():
        raise typer.Exit(_REFUSED)
    who = " ".join((by or user()).split())
    done = asyncio.run(adoption.adopt(settings, by=who, discard=discard))
    if json:
        show.document({**asdict(bound), "adopted": asdict(done)})
        return
    show.line(f"adopted by {done.by}: installation {done.installation}, {done.discarded} events discarded")
    show.line(f"the next process to look binds it to {done.configured} and sends the {done.waiting} that wait")


def _agreed() -> bool:
    from postroad.errors import UsageError

    if not sys.stdin.isatty():
        raise UsageError("PR107", "there is nobody to ask; say --yes once you have seen what `postroad adopt` shows")
    return typer.confirm("Let this database send to that broker?")


def _print(bound: Bound) -> None:
    show.line(f"installation {bound.installation}, bound to {bound.bound_to or 'nothing yet'}")
    show.line(f"configured: {bound.configured}")
    show.line(f"doubt: {bound.doubt or 'none'}")
    show.line(f"waiting: {bound.waiting} events, the oldest for {bound.oldest_seconds:.0f} s")
