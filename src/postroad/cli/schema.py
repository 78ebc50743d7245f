"""``postroad migrate`` and ``postroad maintain``."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Final, TypeAlias

import typer

from postroad.cli import show

Role: TypeAlias = str | None

_NEEDS: Final = {
    "outbox": "since an event of that day waits to be sent",
    "quarantine": "since an event of that day (or of a day that its row does not say) lies open in quarantine",
    "failures": "since finished work that failed is kept 90 days",
}


def migrate(
    *,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead, with the named roles' grants.")] = False,
    runtime_role: Annotated[
        Role, typer.Option(envvar="POSTROAD_RUNTIME_ROLE", help="The role that processes use; it gets its grants.")
    ] = None,
    author_role: Annotated[
        Role, typer.Option(envvar="POSTROAD_AUTHOR_ROLE", help="The role that only publishes; it gets its grants.")
    ] = None,
    json: show.AsJson = False,
) -> None:
    """Bring the schema up to this release, under a lock, as the owner role. Safe to repeat.

    Old processes go on on the new schema. Reads POSTROAD_DIRECT_URL (or POSTROAD_DATABASE_URL) and POSTROAD_SCHEMA.
    """
    from postroad.runtime import operations
    from postroad.sql.migrations import Roles, script

    roles = Roles(runtime=runtime_role or None, author=author_role or None)
    if sql:
        schema = os.environ.get("POSTROAD_SCHEMA") or "postroad"
        text = script(schema=schema, roles=roles)
        show.document({"schema": schema, "sql": text}) if json else show.line(text)
        return
    settings = operations.database_settings()
    applied = list(asyncio.run(operations.migrate(settings, roles=roles)))
    if json:
        show.document({"schema": settings.schema, "applied": applied})
    else:
        steps = f"applied {', '.join(f'{number:04}' for number in applied)}" if applied else "up to date"
        show.line(f"schema {settings.schema}: {steps}")


def maintain(*, json: show.AsJson = False) -> None:
    """One round of maintenance: partitions of the coming days are made, what was kept long enough is let go.

    `postroad run` does the same each hour in its role maintain; schedule this daily where the runtime role may not.
    Safe to repeat; authors never wait for it, and nothing that is undelivered or quarantined goes.
    """
    from dataclasses import asdict

    from postroad.runtime import operations

    done = asyncio.run(operations.maintain(operations.database_settings()))
    if json:
        show.document(asdict(done))
        return
    show.line(
        f"ahead: {done.made} partitions made, {done.days_ahead} days, {done.kept} kept in DEFAULT, {done.busy} busy"
    )
    if done.busy:
        show.line("busy ones are tried again by the next run; if they stay so, a DEFAULT partition is too full")
    show.line(f"expired: {len(done.dropped)} partitions dropped {' '.join(done.dropped)}".rstrip())
    for leaf in done.needed:
        show.line(f"kept: {leaf.name}, {_NEEDS[leaf.why]}")
    for name in done.held:
        show.line(f"kept: {name}, in use at the moment; the next round tries again")
    rows = f"{done.events} events in DEFAULT, {done.finished} finished, {done.resolved} resolved in quarantine"
    marks = f"{done.marks} inbox marks before {done.marks_before:%Y-%m-%d %H:%M} UTC"
    show.line(f"rows deleted: {rows}, {marks}, {done.leases} leases, {done.starts} starts")
