"""Checks of the database as a place to stand on: reach, version, roles and rights, schema, connections."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from postroad.errors import PostroadError, SchemaError
from postroad.runtime.doctor import checks, structure, upkeep
from postroad.runtime.doctor.findings import Finding, Severity
from postroad.runtime.doctor.stalled import stalled
from postroad.runtime.doctor.subject import Limits, Subject
from postroad.runtime.operations import connected, refuse_pooler
from postroad.sql import migrations, queries

if TYPE_CHECKING:
    from postroad.runtime.settings import Settings

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

QUERIES = queries(__package__, "database.sql")
OLDEST: Final = 14
NEWEST: Final = 18
_DEFAULT: Final = Limits()
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the looks at one database share."""

    settings: Settings
    subject: Subject | None
    author: str | None
    limits: Limits


Look: TypeAlias = Callable[["Connection", Case], Awaitable[list[Finding]]]


async def examine_database(
    settings: Settings, subject: Subject | None = None, *, author: str | None = None, limits: Limits = _DEFAULT
) -> list[Finding]:
    """Look at the database, as the runtime role, and at the rights of the role `author`. Changes nothing.

    What cannot be looked at because an earlier check failed is left out; nothing is raised for it.
    """
    case = Case(settings=settings, subject=subject, author=author, limits=limits)
    found: list[Finding] = []
    try:
        async with connected(settings) as connection:
            found.append(checks.DATABASE.ok("reachable"))
            for look in _GROUND:
                found += await look(connection, case)
            for looks in (_BUILT, _INSIDE):
                if not any(item.severity is Severity.ERROR for item in found):
                    for look in looks:
                        found += await look(connection, case)
    except PostroadError as error:
        found.append(checks.DATABASE.error(str(error)))
    return [*found, *await _direct(settings)]


async def _server(connection: Connection, _case: Case) -> list[Finding]:
    row = await _row(connection, QUERIES.text("server", "postroad"))
    shown, major = f"PostgreSQL {row['shown']}", row["version"] // 10_000
    version = checks.VERSION.ok(shown)
    if major < OLDEST:
        version = checks.VERSION.error(shown)
    elif major > NEWEST:
        version = checks.VERSION.warning(f"{shown}, newer than what is tested")
    away = not nearby(row["client"])
    open_ = checks.TLS.warning("the connection leaves the machine and is not encrypted")
    told = "encrypted" if row["encrypted"] else "on this machine"
    return [version, open_ if away and not row["encrypted"] else checks.TLS.ok(told)]


def nearby(address: str) -> bool:
    """Whether an address is this machine's: loopback, a socket, or ``localhost``."""
    try:
        return address in {"", "localhost"} or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


async def _role(connection: Connection, case: Case) -> list[Finding]:
    row = await _row(connection, QUERIES.text("role", "postroad"), case.settings.schema)
    if row["super"]:
        return [checks.ROLE.warning(f"{row['role']} is a superuser")]
    if row["powers"]:
        return [checks.ROLE.warning(f"{row['role']} has {_some(row['powers'])}")]
    return [checks.ROLE.ok(row["role"])]


async def _rights(connection: Connection, case: Case) -> list[Finding]:
    schema = case.settings.schema
    usable = await connection.fetchval(QUERIES.text("usable", schema), schema)
    if usable is False:
        return [checks.RIGHTS.error(f"lacking USAGE on schema {schema}")]
    rows = [] if usable is None else await connection.fetch(QUERIES.text("rights", schema), schema)
    if rows:
        return [checks.RIGHTS.error(f"lacking {_some(row['lacking'] for row in rows)}")]
    return [] if usable is None else [checks.RIGHTS.ok("those of the runtime role")]


async def _schema(connection: Connection, case: Case) -> list[Finding]:
    schema = case.settings.schema
    try:
        number = await migrations.check(connection, schema=schema)
    except SchemaError as error:
        return [checks.SCHEMA.error(str(error))]
    except asyncpg.InsufficientPrivilegeError:
        return [checks.SCHEMA.not_checked("the role may not read it; see database.rights")]
    return [checks.SCHEMA.ok(f"{schema} stands at {number}, this release is for {migrations.CODE_NUMBER}")]


async def _author(connection: Connection, case: Case) -> list[Finding]:
    schema, author = case.settings.schema, case.author
    if not author:
        return [checks.AUTHOR.not_checked("POSTROAD_AUTHOR_ROLE is not set")]
    if not await connection.fetchval(QUERIES.text("author_exists", schema), author):
        return [checks.AUTHOR.error(f"role {author!r} does not exist")]
    rows = await connection.fetch(QUERIES.text("author", schema), schema, author)
    found = []
    lacking = [row["what"] for row in rows if not row["held"]]
    if lacking:
        found.append(checks.AUTHOR.error(f"{author} lacks {_some(lacking)}"))
    beyond = [row["what"] for row in rows if row["held"]]
    if beyond:
        found.append(checks.AUTHOR.warning(f"{author} also has {_some(beyond)}"))
    return found or [checks.AUTHOR.ok(f"{author}: INSERT and USAGE, no more")]


async def _connections(connection: Connection, case: Case) -> list[Finding]:
    if case.subject is None:
        return [checks.CONNECTIONS.not_checked("no App was given")]
    bill = case.subject.bill(case.settings)
    row = await _row(connection, QUERIES.text("room", case.settings.schema))
    places = {
        name: (row[name], row[f"{name}_taken"]) for name in ("server", "database", "role") if row[name] is not None
    }
    name, (most, taken) = min(
        ((name, place) for name, place in places.items() if place[0] >= 0), key=lambda item: item[1][0] - item[1][1]
    )
    each = ", ".join(f"{role} {count}" for role, count in bill.items())
    told = f"one process takes up to {each} (its heartbeat included); the {name} allows {most}, {taken} are taken"
    if bill["together"] > most:
        return [checks.CONNECTIONS.error(told)]
    if bill["together"] > most - taken:
        return [checks.CONNECTIONS.warning(told)]
    return [checks.CONNECTIONS.ok(told)]


async def _work(connection: Connection, case: Case) -> list[Finding]:
    declared: frozenset[str] = frozenset() if case.subject is None else case.subject.queues
    return await upkeep.unserved(connection, case.settings.schema, declared, case.limits)


_GROUND: Final[tuple[Look, ...]] = (_server, _role, _rights, _schema)
_BUILT: Final[tuple[Look, ...]] = (lambda connection, case: structure.build(connection, case.settings.schema),)
_INSIDE: Final[tuple[Look, ...]] = (
    _author, _connections, *(lambda connection, case, look=look: look(connection, case.settings.schema, case.limits)
                             for look in (*upkeep.LOOKS, *structure.LOOKS)), lambda _connection, case: _inbox(case),
    _work, lambda connection, case: stalled(connection, case.settings.schema, case.subject, case.limits),
)  # fmt: skip


async def _inbox(case: Case) -> list[Finding]:
    consumers = () if case.subject is None else case.subject.consumers
    compared = () if case.subject is None else case.subject.declarations.reconciliations
    window = case.settings.inbox_window
    return [upkeep.judge_inbox(window, consumers), structure.judge_windows(window, compared)]


async def _direct(settings: Settings) -> list[Finding]:
    try:
        await refuse_pooler(settings)
        if settings.direct_url == settings.database_url:
            return [checks.DIRECT.ok("the database URL itself, and no transaction pooler")]
        installations = []
        for direct in (False, True):
            async with connected(settings, direct=direct) as connection:
                installations.append(await connection.fetchval(QUERIES.text("installation", settings.schema)))
    except PostroadError as error:
        return [checks.DIRECT.error(str(error))]
    except asyncpg.PostgresError:  # No such table there, for one.
        return [checks.DIRECT.error("POSTROAD_DIRECT_URL has no such schema, or not the same")]
    if installations[0] != installations[1]:
        return [checks.DIRECT.error("POSTROAD_DIRECT_URL and POSTROAD_DATABASE_URL lead to different databases")]
    return [checks.DIRECT.ok("the same database, past any pooler")]


async def _row(connection: Connection, text: str, *arguments: Any) -> asyncpg.Record:
    row = await connection.fetchrow(text, *arguments)
    assert row is not None
    return row


def _some(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:_SHOWN]) + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else "")
