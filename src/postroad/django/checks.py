"""System checks: whether Django's databases can be Postroad's, and whether the schema there serves this release."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's name
from django.db import connections

from postroad.django.alias import unfit, url_of
from postroad.errors import PostroadError, SchemaError
from postroad.outbox.publish import default_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

_MIGRATE = "Run `manage.py migrate`, or name the schema by POSTROAD_SCHEMA."
_OLD = ("PR202", "PR203")


@register("postroad")  # type: ignore[untyped-decorator]
def check_backends(**_: Any) -> list[CheckMessage]:
    """One of DATABASES must be PostgreSQL, by psycopg 3."""
    problems = [unfit(connections[alias]) for alias in connections]
    if None in problems:
        return []
    hint = "Events are written by the connection of the author's own rows: their database must be PostgreSQL."
    return [Error(problem.message, hint=hint, id="postroad.E001") for problem in problems if problem is not None]


@register("postroad")  # type: ignore[untyped-decorator]
def check_schema_setting(**_: Any) -> list[CheckMessage]:
    """POSTROAD_SCHEMA means one schema, wherever it is read."""
    given, standing = getattr(settings, "POSTROAD_SCHEMA", None), os.environ.get("POSTROAD_SCHEMA")
    if given is None or given == standing:
        return []
    message = f"POSTROAD_SCHEMA is {given!r} in the settings and {standing!r} in the environment, which wins"
    return [Error(message, hint="Leave out one of them.", id="postroad.E002")]


@register("postroad", deploy=True)  # type: ignore[untyped-decorator]
def check_requests(**_: Any) -> list[CheckMessage]:
    """Whether views publish without a block of their own."""
    return [
        Warning(
            f"ATOMIC_REQUESTS is off for database {alias!r}: a view that publishes outside of atomic() is refused",
            hint="Set ATOMIC_REQUESTS, or write `with transaction.atomic():` in these views and silence this.",
            id="postroad.W001",
        )
        for alias in connections
        if unfit(connections[alias]) is None and not connections[alias].settings_dict["ATOMIC_REQUESTS"]
    ]


@register("postroad", Tags.database)  # type: ignore[untyped-decorator]
def check_schema(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Whether the schema stands, and serves this release; asks the named databases (``check --database default``)."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        if unfit(connections[alias]) is not None:
            continue
        try:
            asyncio.run(_check(url_of(alias)))
        except SchemaError as error:
            kind, number = (Warning, "W002") if error.code in _OLD else (Error, "E003")
            found.append(kind(f"database {alias!r}: {error.message}", hint=_MIGRATE, id=f"postroad.{number}"))
        except PostroadError as error:
            found.append(Warning(f"database {alias!r}: {error.message}", id="postroad.W003"))
    return found


async def _check(url: str) -> None:
    from postroad.sql.manager import connect
    from postroad.sql.migrations import check

    connection = await connect(url)
    try:
        await check(connection, schema=default_schema())
    finally:
        await connection.close()
