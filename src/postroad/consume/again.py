"""What a consumer forgets so that messages are handled once more: their marks, and the last sequences of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from postroad.sql.statement import queries

if TYPE_CHECKING:
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.consume", "again.sql")


def forget(schema: str, consumer: str, messages: Sequence[UUID], keys: Sequence[str]) -> Pipeline[int]:
    """Take away the marks of `messages` that were handled or dropped, and the order guard of `keys`; how many marks.

    What waits in `work` or lies in quarantine keeps its mark: its row owns it.
    """
    rows = yield QUERIES.statement("forget", schema, consumer, list(messages))
    yield QUERIES.statement("unguard", schema, consumer, list(keys))
    return len(rows)
