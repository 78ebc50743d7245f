"""What an operator may do with schedules, without any printing; each act and its audit are one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from postroad.errors import Unavailable, UsageError
from postroad.runtime.operations import connected
from postroad.schedules import operate
from postroad.sql import drive, migrations
from postroad.sql.asyncpg import AsyncpgHand
from postroad.work.wire import kept

if TYPE_CHECKING:
    from postroad.runtime.settings import Settings
    from postroad.schedules.operate import Backfilled, Changed, Listed, Past, Triggered
    from postroad.schedules.policy import Overlap

LONGEST_REASON: Final = 500
_PATIENCE: Final = "5s"


async def schedules(settings: Settings, *, app: str | None = None, retired: bool = False) -> Sequence[Listed]:
    """The schedules of one App or of all, by name; `retired` ones too.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away, or the row was held for five seconds. Every act here raises these three.
    """
    async with _hand(settings) as hand:
        return await drive(operate.listed(settings.schema, app=app, retired=retired), hand)


async def show(settings: Settings, name: str) -> Listed:
    """One schedule, with all its properties.

    Raises:
        UsageError: PR107, there is none of that name. Every act that names one raises it.
    """
    async with _hand(settings) as hand:
        return await drive(operate.shown(settings.schema, name), hand)


async def history(
    settings: Settings, name: str, *, state: str | None = None, limit: int = 100
) -> tuple[Listed, Sequence[Past], Sequence[Mapping[str, Any]]]:
    """A schedule, its occurrences with the latest due first, and its backfills."""
    async with _hand(settings) as hand:
        return await drive(operate.history(settings.schema, name, state=state, limit=limit), hand)


async def pause(settings: Settings, name: str, *, by: str, reason: str | None = None) -> Changed:
    """Have nothing scheduled start, as `by`, through deploys too, until `resume`. Safe to repeat."""
    async with _hand(settings) as hand:
        return await drive(operate.pause(settings.schema, name, by=_name(by), reason=_reason(reason)), hand)


async def resume(settings: Settings, name: str, *, by: str, reason: str | None = None) -> Changed:
    """Let a paused schedule start again from now on, as `by`. Safe to repeat."""
    async with _hand(settings) as hand:
        return await drive(operate.resume(settings.schema, name, by=_name(by), reason=_reason(reason)), hand)


async def trigger(
    settings: Settings, name: str, *, request: str, by: str, reason: str | None = None, overlap: Overlap | None = None
) -> Triggered:
    """Ask for a run now, as `by`, paused or not. The same `request` is one run, however often it is asked for."""
    async with _hand(settings) as hand:
        pipeline = operate.trigger(
            settings.schema, name, request=request, by=_name(by), reason=_reason(reason), overlap=overlap
        )
        return await drive(pipeline, hand)


async def backfill(
    settings: Settings, name: str, *, first: datetime, last: datetime, overlap: Overlap, by: str, rerun: bool = False,
    reason: str | None = None, dry_run: bool = False,
) -> Backfilled:  # fmt: skip
    """Ask for the due times from `first` to `last` (aware), both inclusive, as `by`; a dry run writes nothing.

    The scheduler works them off, a few at a time; a range that was asked for is gone on with after any crash.

    Raises:
        UsageError: PR107, the range is reversed, lies ahead or is too long.
    """
    async with _hand(settings) as hand:
        pipeline = operate.backfill(
            settings.schema, name, first=first.astimezone(UTC), last=last.astimezone(UTC), overlap=overlap,
            rerun=rerun, by=_name(by), reason=_reason(reason), dry_run=dry_run,
        )  # fmt: skip
        return await drive(pipeline, hand)


def _name(by: str) -> str:
    return kept(by) or ""


def _reason(reason: str | None) -> str | None:
    if reason is not None and (len(reason) > LONGEST_REASON or not reason.isprintable()):
        raise UsageError("PR107", f"the reason is one line of at most {LONGEST_REASON} characters")
    return reason


@asynccontextmanager
async def _hand(settings: Settings) -> AsyncIterator[AsyncpgHand]:
    """One transaction on a connection of its own; a schedule that a tick holds is waited for."""
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
                yield AsyncpgHand(connection)
        except asyncpg.LockNotAvailableError as error:
            message = "the schedule is held by another transaction; nothing was changed, try again"
            raise Unavailable("PR304", message) from error
