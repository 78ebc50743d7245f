"""Partitions of the log and of finished work, made ahead of time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import asyncpg

from postroad.sql.statement import queries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

DAYS_AHEAD: Final = 14
QUERIES = queries("postroad.sql", "partitions.sql")


async def make_ahead(connection: Connection, *, schema: str, days: int = DAYS_AHEAD) -> Mapping[str, int]:
    """Make and attach what is missing from today (UTC) to `days` ahead; how many were made, kept and busy.

    Each partition is a transaction of its own, which waits at most 50 ms for a lock and ends within 250 ms: an author
    never waits longer for it. To attach one the server reads the whole DEFAULT partition under a lock, so that a table
    whose DEFAULT holds too much for that is tried once and left. *busy* ones are tried again by the next run; *kept*
    days stay in the DEFAULT partition, where authors' rows already are. Safe to repeat, and from several processes at
    once.
    """
    missing = await connection.fetch(QUERIES.text("missing", schema), days, schema)
    outcome: Counter[str] = Counter(made=0, kept=0, busy=0)
    slow: set[str] = set()
    for row in missing:
        parent = row["parent"]
        result = "busy" if parent in slow else await _make(connection, schema, parent, row["day"])
        if result == "slow":
            slow.add(parent)
            result = "busy"
        outcome[result] += 1
    return outcome


async def _make(connection: Connection, schema: str, parent: str, day: object) -> str:
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '50ms'; SET LOCAL statement_timeout = '250ms'")
            return str(await connection.fetchval(QUERIES.text("make", schema), parent, day))
    except asyncpg.LockNotAvailableError:
        return "busy"
    except asyncpg.QueryCanceledError:
        return "slow"
    except (asyncpg.DuplicateTableError, asyncpg.UniqueViolationError):
        return "exists"
    except asyncpg.CheckViolationError:  # an author's row came into the DEFAULT between the look and the attaching
        return "kept"


async def days_ahead(connection: Connection, *, schema: str) -> int:
    """For how many days from today every table has its partition: 0 means that authors' rows land in the DEFAULT."""
    return int(await connection.fetchval(QUERIES.text("days_ahead", schema), schema))
