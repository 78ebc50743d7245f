"""``postroad doctor``."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load


def doctor(
    reference: Annotated[str | None, typer.Argument(metavar="[MODULE:APP]", help=HELP)] = None,
    *,
    json: show.AsJson = False,
) -> None:
    """Look at everything that a process stands on; what is not well is told with its cost and its remedy.

    Database and broker reachable, versions, role and rights, schema, partitions ahead, and with an App its topology.
    It changes nothing. Exit code 1 where there is a problem; warnings alone are 0.
    """
    from postroad.runtime import doctor as room
    from postroad.runtime import operations

    settings = operations.database_settings()
    topology = None if reference is None else load(reference).topology

    async def examine() -> list[room.Finding]:
        return [
            *room.examine_settings(settings),
            *await room.examine_database(settings),
            *await room.examine_broker(settings, topology),
        ]

    findings = asyncio.run(examine())
    problems = [one for one in findings if one.judgement is room.Judgement.PROBLEM]
    if json:
        show.document({"ok": not problems, "findings": [one.as_json() for one in findings]})
    else:
        rows = [(one.judgement.value, one.check, one.found, one.remedy) for one in findings]
        show.table(f"{len(problems)} problems", ("", "check", "found", "what would be lost, what to do"), rows)
    if problems:
        raise typer.Exit(1)
