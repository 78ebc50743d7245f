"""How long work that is over is shown: 7 days, what failed 90; open rows never leave by age."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from postroad.sql import queries

if TYPE_CHECKING:
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.work", "retention.sql")
BATCH: Final = 5000

_THIN: Final = timedelta(days=9)  # Partitions leave whole after seven full days; a day more to try, and one for today.
_FAILURES: Final = timedelta(days=91)
_RESOLVED: Final = timedelta(days=90)


def thin_finished(schema: str, *, now: datetime) -> Pipeline[int]:
    """Delete a batch of old `finished` rows that stand in a partition that could not be dropped; how many."""
    rows = yield QUERIES.statement("thin_finished", schema, now - _THIN, now - _FAILURES, BATCH)
    return len(rows)


def forget_resolved(schema: str, *, now: datetime) -> Pipeline[int]:
    """Delete a batch of `quarantine` rows resolved 90 days ago; how many. Open rows stay, whatever their age."""
    rows = yield QUERIES.statement("forget_resolved", schema, now - _RESOLVED, BATCH)
    return len(rows)
