"""``postroad doctor``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli import show
from postroad.cli.load import HELP, load

if TYPE_CHECKING:
    from postroad.runtime import doctor as room


def doctor(
    reference: Annotated[str | None, typer.Argument(metavar="[MODULE:APP]", help=HELP)] = None,
    *,
    author_role: Annotated[
        str | None,
        typer.Option(envvar="POSTROAD_AUTHOR_ROLE", help="The role that only publishes: it is looked at too."),
    ] = None,
    json: show.AsJson = False,
) -> None:
    """Look at everything that a process stands on; what is not well is told with its cost and its remedy.

    Database, roles and rights, connections, partitions, vacuum, what waits; broker, and with an App its topology and
    limits. It changes nothing. Exit code 1 where there is an error; warnings alone are 0.
    """
    from postroad.runtime import doctor as room
    from postroad.runtime import operations

    settings = operations.database_settings()
    subject = None if reference is None else _subject(reference)

    alone = subject is not None and subject.without_broker(settings)

    async def examine() -> list[room.Finding]:
        found = [
            *room.examine_settings(settings),
            *await room.examine_database(settings, subject, author=author_role),
            *await room.examine_broker(settings, subject),
        ]
        if not alone:
            found += await room.examine_installation(settings)
            found += await room.examine_deliveries(settings, subject)
        return found

    findings = asyncio.run(examine())
    findings += [] if alone else room.examine_management(settings, subject)
    errors = [one for one in findings if one.severity is room.Severity.ERROR]
    if json:
        show.document({"ok": not errors, "findings": [one.as_json() for one in findings]})
    else:
        _print(findings)
    if errors:
        raise typer.Exit(1)


def _subject(reference: str) -> room.Subject:
    from postroad.runtime import doctor as room
    from postroad.runtime.wires import Wires

    app = load(reference)
    return room.Subject(app.declarations, Wires(app.declarations, {}).connections)


def _print(findings: list[room.Finding]) -> None:
    for one in findings:
        show.line(f"{one.severity:<12} {one.name:<22} {one.found}")
        if one.lost:
            show.line(f"{'':12} lost: {one.lost}")
            show.line(f"{'':12} do:   {one.remedy}")
    counts = {severity: sum(one.severity == severity for one in findings) for severity in ("error", "warning", "note")}
    unseen = sum(one.severity == "not checked" for one in findings)
    show.line(", ".join(show.count(count, name) for name, count in counts.items()) + f", {unseen} not checked")
