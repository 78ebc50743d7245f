"""What an operator may do with leases: see who holds what, and take a name away."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from postroad.audit import Act, record
from postroad.errors import Unavailable, UsageError
from postroad.leases import PREFIX, interrupt, listed
from postroad.runtime.operations import connected
from postroad.sql import drive, migrations
from postroad.sql.asyncpg import AsyncpgHand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.leases import Listed
    from postroad.runtime.settings import Settings
    from postroad.sql import Pipeline

LONGEST_REASON: Final = 500
_PATIENCE: Final = "SET lock_timeout = '5s'"


async def leases(settings: Settings) -> Sequence[Listed]:
    """Every lease: those of authors (`user:`) and ours, held or free, in order of name. Changes nothing.

    Raises:
        AccessRefused: the role may not read them, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away.
    """
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        return await drive(listed(settings.schema), AsyncpgHand(connection))


async def fence(settings: Settings, name: str, *, by: str, reason: str = "") -> Listed:
    """Take the lease `name` away from its holder, as `by`; an author's name goes with or without ``user:``.

    Safe at any time, and to repeat. From its commit on the holder's fenced writes are refused; it hears of it at its
    next renewal, a third of the ttl later at most, and stops. The name is free for others at once.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away, or the holder's transaction was open for five seconds; nothing was changed.
        UsageError: PR107, there is no such lease, or the reason is not valid.
    """
    if len(reason) > LONGEST_REASON or not reason.isprintable():
        raise UsageError("PR107", f"the reason is one line of at most {LONGEST_REASON} characters")
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        await connection.execute(_PATIENCE)
        for row in (name, PREFIX + name):
            try:
                async with connection.transaction():
                    fenced = await drive(_fenced(settings.schema, row, by, reason), AsyncpgHand(connection))
            except asyncpg.LockNotAvailableError as error:
                message = (
                    f"a fenced transaction of lease {name!r} has been open for 5 s; nothing was changed, try again"
                )
                raise Unavailable("PR304", message) from error
            except asyncpg.CharacterNotInRepertoireError:
                break  # No name holds a NUL.
            if fenced is not None:
                return fenced
    raise UsageError("PR107", f"there is no lease {name[:100]!r}; see `postroad lease list`")


def _fenced(schema: str, name: str, by: str, reason: str) -> Pipeline[Listed | None]:
    fenced = yield from interrupt(schema, name, by=by, reason=reason)
    if fenced is not None:
        after = {"token": fenced.token}
        yield from record(schema, Act(by=by, act="lease.fence", subject=name, reason=reason or None, after=after))
    return fenced


def as_row(lease: Listed) -> dict[str, Any]:
    """A lease as values for JSON."""
    values = asdict(lease)
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in values.items()}
