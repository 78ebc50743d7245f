"""What an operator may do with effects, without any printing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg

from postroad.effects import operate
from postroad.errors import Unavailable
from postroad.runtime.operations import connected
from postroad.sql import drive, migrations
from postroad.sql.asyncpg import AsyncpgHand

if TYPE_CHECKING:
    from postroad.audit import Entry
    from postroad.effects.operate import Changed, Listed, Shown
    from postroad.effects.outcome import Outcome
    from postroad.runtime.settings import Settings

_PATIENCE: Final = "5s"


async def effects(
    settings: Settings, *, name: str | None, state: str | None, everything: bool, limit: int
) -> Sequence[Listed]:
    """Effects without an outcome, or also those with one.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away. Every act here raises these three.
    """
    async with _hand(settings) as hand:
        return await drive(
            operate.listed(settings.schema, name=name, state=state, everything=everything, limit=limit), hand
        )


async def effect(settings: Settings, number: int) -> tuple[Shown, Sequence[Entry]]:
    """One effect, and what was done about it.

    Raises:
        UsageError: PR114, there is none.
    """
    async with _hand(settings) as hand:
        return await drive(operate.shown(settings.schema, number), hand)


async def look_up(settings: Settings, number: int, *, by: str, reason: str | None) -> Changed:
    """Have a working process look an effect up now, as `by`.

    Raises:
        UsageError: PR114, there is none, or its outcome is not in doubt.
    """
    async with _hand(settings) as hand:
        return await drive(operate.look_up(settings.schema, number, by=by, reason=reason), hand)


async def resolve(settings: Settings, number: int, outcome: Outcome | None, *, by: str, reason: str | None) -> Changed:
    """Say what became of an effect, as `by`; None is that nothing happened.

    Raises:
        UsageError: PR114, there is none, or its outcome is not in doubt.
    """
    async with _hand(settings) as hand:
        return await drive(operate.resolve(settings.schema, number, outcome, by=by, reason=reason), hand)


@asynccontextmanager
async def _hand(settings: Settings) -> AsyncIterator[AsyncpgHand]:
    """One transaction on a connection of its own; a row that somebody holds is waited for a few seconds."""
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
                yield AsyncpgHand(connection)
        except asyncpg.LockNotAvailableError as error:
            message = "the effect is held by a transaction that notes something; nothing was changed, try again"
            raise Unavailable("PR304", message) from error
