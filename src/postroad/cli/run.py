"""``postroad run``."""

from __future__ import annotations

from typing import Annotated

import typer

from postroad.cli.load import HELP, load


def run(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help=HELP)],
    only: Annotated[
        str | None,
        typer.Option(
            metavar="ROLES",
            help="What this process does, with commas: dispatch (relay the outbox), consume, work (jobs and "
            "retries), schedule (plan schedules), maintain (partitions). Default: POSTROAD_ROLES, else everything.",
        ),
    ] = None,
) -> None:
    """Run an App until SIGTERM or SIGINT: dispatcher (outbox relay), consumers, workers.

    On SIGTERM it takes nothing more, finishes or gives back what is in flight within POSTROAD_GRACE_SECONDS, and logs
    a receipt. A second signal skips to the end. Settings come from the environment; every wrong one is named.
    """
    from postroad.errors import UsageError
    from postroad.runtime.settings import read_roles

    try:
        roles = None if only is None else read_roles(only)
    except ValueError as error:
        raise UsageError("PR107", f"--only {error}") from None
    raise typer.Exit(int(load(app).execute(only=roles)))
