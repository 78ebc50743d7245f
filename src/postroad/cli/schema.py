"""``postroad migrate`` and ``postroad maintain``."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, TypeAlias

import typer

from postroad.cli import show

Role: TypeAlias = str | None


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
    """Make the partitions of the coming days, once. Schedule it daily where the runtime role may not.

    `postroad run` does the same each hour in its role maintain. Safe to repeat; authors never wait for it.
    """
    from dataclasses import asdict

    from postroad.runtime import operations

    done = asyncio.run(operations.maintain(operations.database_settings()))
    if json:
        show.document(asdict(done))
    else:
        show.line(f"partitions: {done.made} made, {done.days_ahead} days ahead, {done.kept} kept, {done.busy} busy")
        if done.busy:
            show.line("busy ones are tried again by the next run; if they stay so, a DEFAULT partition is too full")
