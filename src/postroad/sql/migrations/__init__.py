"""Numbered migrations: the schema, its grants, and the check that code and schema serve each other."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import asyncpg

from postroad.errors import AccessRefused, SchemaError, Unavailable, UsageError
from postroad.sql.manager import connect, masked, translated
from postroad.sql.partitions import make_ahead
from postroad.sql.statement import Queries, render

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOCK_TIMEOUT = "5s"
_SERVES = re.compile(r"^-- serves: (\d+)$", re.MULTILINE)
_ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,62}")
LEDGER = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.migration (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    serves     integer     NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The database roles that get their grants: names of roles that exist. None leaves a role out.

    The owner is whoever migrates; its grant is one that only the database's owner can give (`grants_of`).
    """

    runtime: str | None = None
    author: str | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step. `serves` is the lowest schema number whose code still works after it."""

    number: int
    name: str
    serves: int
    text: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, to notice an edited step."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@cache
def steps() -> tuple[Migration, ...]:
    """Every step, in order."""
    found = sorted(path.name for path in files(__package__).iterdir() if re.match(r"\d{4}_", path.name))
    return tuple(_read(name) for name in found)


def _read(filename: str) -> Migration:
    text = files(__package__).joinpath(filename).read_text("utf-8")
    serves = _SERVES.search(text)
    if serves is None:
        message = f"migration {filename} does not say which release it serves"
        raise ValueError(message)
    return Migration(int(filename[:4]), filename[5:-4], int(serves[1]), text)


CODE_NUMBER: Final = 9
"""The schema number that this release's code was written for; a test keeps it equal to the last step's."""


def script(*, schema: str, roles: Roles) -> str:
    """The whole migration as SQL for `schema`, for people who apply it by hand: ``postroad migrate --sql``."""
    parts = ["BEGIN;", render(LEDGER, schema)]
    for step in steps():
        parts += [f"-- {step.number:04} {step.name}", _body(step, schema), _record(step, schema)]
    return "\n".join([*parts, *_grants(schema, roles), "COMMIT;"])


def _body(step: Migration, schema: str) -> str:
    return render(step.text.replace("{schema_text}", f"'{schema}'"), schema)


def _record(step: Migration, schema: str) -> str:
    values = f"({step.number}, '{step.name}', {step.serves}, '{step.checksum}')"
    return render(f"INSERT INTO {{schema}}.migration (number, name, serves, checksum) VALUES {values};", schema)  # noqa: S608


def grants_of(schema: str, roles: Roles) -> dict[str, str]:
    """The SQL that gives each named role the least that it needs, by what it is; the owner's comes first.

    Raises:
        UsageError: PR107, a name is none that can stand in SQL as it is.
    """
    texts = Queries(files(__package__).joinpath("grants.sql").read_text("utf-8"), source="grants.sql")
    given = {"owner": roles.owner, "runtime": roles.runtime, "author": roles.author}
    for role in given.values():
        if role is not None and not _ROLE.fullmatch(role):
            message = f"role name {role!r} is not letters, digits and underscores"
            raise UsageError("PR107", message)
    return {kind: texts.text(kind, schema).replace("{role}", f'"{role}"') + ";" for kind, role in given.items() if role}


def _grants(schema: str, roles: Roles) -> list[str]:
    """What the owner gives; its own rights it has."""
    return [text for kind, text in grants_of(schema, roles).items() if kind != "owner"]


async def migrate(url: str, *, schema: str, roles: Roles, days_ahead: int = 14) -> Sequence[int]:
    """Bring the schema up to this release under a lock, give the grants, and make partitions ahead.

    Returns the numbers that were applied now (none when all stood already): running it again is harmless, and two
    at once wait for each other. Each run is one transaction: a crash leaves the schema as it was. A step waits at
    most five seconds for a lock that authors hold.

    Raises:
        SchemaError: the schema is newer than this release, or a step was edited after it was applied.
        UsageError: a role does not exist.
        AccessRefused: the URL's user may not create the schema, or does not own it.
        Unavailable: the database is away, or a lock could not be had in time; nothing was changed.
    """
    with translated(url):
        connection = await connect(url)
        try:
            applied = await _apply(connection, schema, roles)
            await make_ahead(connection, schema=schema, days=days_ahead)
        except asyncpg.LockNotAvailableError as error:
            message = f"a lock on schema {schema!r} was not to be had within {_LOCK_TIMEOUT}; try again"
            raise Unavailable("PR304", message) from error
        except asyncpg.InsufficientPrivilegeError as error:
            message = f"the user of {masked(url)} may not migrate schema {schema!r}; use the role that owns it"
            raise AccessRefused("PR303", message) from error
        except asyncpg.UndefinedObjectError as error:
            message = (
                f"{_unknown(error, roles)} does not exist in {masked(url)}; create it (CREATE ROLE), or leave it out"
            )
            raise UsageError("PR107", message) from error
        finally:
            await connection.close()
    return applied


def _unknown(error: Exception, roles: Roles) -> str:
    """The role that the server does not know; its words may be of any language, the quoted name is not."""
    given = [name for name in (roles.runtime, roles.author) if name is not None]
    named = [name for name in given if f'"{name}"' in str(error)]
    return f"role {named[0]!r}" if named else f"role {' or '.join(map(repr, given))}"


async def _apply(connection: asyncpg.Connection[asyncpg.Record], schema: str, roles: Roles) -> list[int]:
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('postroad.migrate.' || $1, 0))", schema)
        await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        await connection.execute(render(LEDGER, schema))
        rows = await connection.fetch(render("SELECT number, checksum FROM {schema}.migration", schema))
        standing = {row["number"]: row["checksum"] for row in rows}
        _refuse_strangers(standing, schema)
        fresh = [step for step in steps() if step.number not in standing]
        for step in fresh:
            await connection.execute(_body(step, schema))
            await connection.execute(_record(step, schema))
        for grant in _grants(schema, roles):
            await connection.execute(grant)
    return [step.number for step in fresh]


def _refuse_strangers(standing: dict[int, str], schema: str) -> None:
    newest = max(standing, default=0)
    if newest > CODE_NUMBER:
        message = f"schema {schema!r} stands at {newest}, newer than this release ({CODE_NUMBER}); upgrade postroad"
        raise SchemaError("PR204", message)
    for step in steps():
        if standing.get(step.number, step.checksum) != step.checksum:
            message = f"migration {step.number} of schema {schema!r} differs from this release's; restore the release"
            raise SchemaError("PR204", message)


async def check(connection: asyncpg.Connection[asyncpg.Record], *, schema: str) -> int:
    """Prove that the schema and this release serve each other; its number.

    Raises:
        SchemaError: it is missing, too old for this code, or no longer serves it.
    """
    table = await connection.fetchval("SELECT to_regclass($1)", render("{schema}.migration", schema))
    if table is None:
        message = f"schema {schema!r} is missing; run `postroad migrate` (or set POSTROAD_SCHEMA)"
        raise SchemaError("PR202", message)
    row = await connection.fetchrow(
        render("SELECT max(number) AS number, max(serves) AS serves FROM {schema}.migration", schema)
    )
    number, serves = (row["number"] or 0, row["serves"] or 0) if row else (0, 0)
    if number < CODE_NUMBER:
        message = f"schema {schema!r} stands at {number}, this release needs {CODE_NUMBER}; run `postroad migrate`"
        raise SchemaError("PR203", message)
    if serves > CODE_NUMBER:
        message = f"schema {schema!r} serves releases from {serves}, this one is {CODE_NUMBER}; upgrade postroad"
        raise SchemaError("PR204", message)
    return int(number)
