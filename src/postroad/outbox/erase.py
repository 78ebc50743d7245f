"""Erasure in the log: the events of one key become tombstones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from postroad.events.redacted import tombstone
from postroad.sql.statement import queries

if TYPE_CHECKING:
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.outbox", "erase.sql")


def erase(schema: str, key: str, *, producer: str | None, dry_run: bool) -> Pipeline[tuple[int, int]]:
    """Put tombstones in place of the events of `key`; how many, and how many of them wait in the outbox.

    What waits is sent as its tombstone, but for what a dispatcher has in its hands already. Safe to repeat.
    """
    rows = yield QUERIES.statement("events", schema, key, producer)
    if rows and not dry_run:
        places = ([row[name] for row in rows] for name in ("retention", "recorded", "seq"))
        stones = [tombstone(json.loads(bytes(row["envelope"]))) for row in rows]
        yield QUERIES.statement("erase", schema, *places, stones)
    return len(rows), sum(row["unsent"] for row in rows)
