"""What the tests of reconciliation share: queries of two tables, and ways to fill and to tamper with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncpg

BOOKED = "SELECT key, amount::text FROM booked WHERE key > $1 ORDER BY key LIMIT $2"
APPLIED = "SELECT key, amount::text FROM applied WHERE key > $1 ORDER BY key LIMIT $2"
STANDS = "SELECT key, kind, state FROM drift WHERE resolved_at IS NULL ORDER BY key"
PAST = "SELECT key, resolution FROM drift WHERE resolved_at IS NOT NULL ORDER BY key"


async def fill(sql: asyncpg.Connection[asyncpg.Record], count: int) -> None:
    """The same `count` rows in both tables."""
    for table in ("booked", "applied"):
        await sql.execute(
            f"INSERT INTO {table} SELECT 'k' || lpad(n::text, 8, '0'), n FROM generate_series(1, $1) AS n", count
        )
        await sql.execute(f"ANALYZE {table}")


async def tamper(sql: asyncpg.Connection[asyncpg.Record]) -> None:
    """Delete, alter and invent a row of the projection."""
    await sql.execute("DELETE FROM applied WHERE key = 'k00000002'")
    await sql.execute("UPDATE applied SET amount = -1 WHERE key = 'k00000003'")
    await sql.execute("INSERT INTO applied VALUES ('k00000003a', 7)")


TAMPERED = [
    ("k00000002", "missing", "open"), ("k00000003", "mismatched", "open"), ("k00000003a", "extra", "open"),
]  # fmt: skip
