"""The end of the log's days: expired partitions are dropped, and what lies in the DEFAULT ones is deleted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import asyncpg

from postroad.sql.partitions import QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from postroad.sql.asyncpg import Connection

TRIES: Final = 3
"""How often a round tries a partition that somebody holds; the next round tries again."""
PAUSE_SECONDS: Final = 0.5
BATCH: Final = 5000
CLASSES: Final = ("event_7", "event_30", "event_90", "event_400")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One day of a partitioned table, and why it stands: 'dropped' if it does not."""

    name: str
    why: str


async def drop_expired(connection: Connection, *, schema: str) -> Sequence[Leaf]:
    """Drop every partition that is older than its class keeps, each in a transaction of its own; what became of each.

    What is needed stays: *outbox* (an event waits to be sent), *quarantine* (one is kept there, or was written by a
    release that did not say which), *failures* (finished work that failed is kept 90 days). *busy* is one that others
    read or write: each lock is given up after 50 ms, so that no publish waits longer, and tried again up to `TRIES`
    times and in the next round. Safe to repeat, and from several processes at once; a crash leaves a day whole.
    """
    rows = await connection.fetch(QUERIES.text("expired", schema), schema)
    left = [(row["parent"], row["day"]) for row in rows]
    found: dict[tuple[str, date], str] = {}
    for number in range(TRIES):
        if number and left:
            await asyncio.sleep(PAUSE_SECONDS)
        for parent, day in left:
            found[parent, day] = await _drop(connection, schema, parent, day)
        left = [key for key in left if found[key] == "busy"]
    return [Leaf(f"{parent}_{day:%Y%m%d}", why) for (parent, day), why in found.items() if why != "gone"]


async def expire_rest(connection: Connection, *, schema: str) -> int:
    """Delete the expired events of the DEFAULT partitions in batches, passing over those that are needed; how many."""
    count = 0
    for parent in CLASSES:
        deleted = BATCH
        while deleted == BATCH:
            deleted = int(await connection.fetchval(QUERIES.text("expire_rest", schema), parent, BATCH))
            count += deleted
    return count


async def _drop(connection: Connection, schema: str, parent: str, day: date) -> str:
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL statement_timeout = '5s'")
            return str(await connection.fetchval(QUERIES.text("drop", schema), parent, day))
    except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.DeadlockDetectedError):
        return "busy"
