"""Staging: the rows that a publish leaves in the author's transaction, in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from postroad.sql.authoring import parts, told
from postroad.sql.statement import Pipeline, queries

QUERIES: Final = queries(__package__, "stage.sql")


class StagedEvent(NamedTuple):
    """One event to stage: its columns of the log, then of the outbox, in the order of the statements' parameters.

    A tuple, since it is those parameters: on the author's path a frozen dataclass costs as much as the envelope.
    Without a key `shard` and `key_hash` are None: the statement takes the shard from the row's own number.
    """

    id: UUID
    type: str
    version: int
    key: str | None
    sequence: int | None
    occurred: datetime
    recorded: datetime
    correlation: str
    causation: str | None
    retention: int
    envelope: bytes
    route: str
    shard: int | None
    key_hash: int | None


def stage(schema: str, rows: Sequence[StagedEvent]) -> Pipeline[None]:
    """Write `rows` to the log and the outbox of `schema`, in their order: one statement, whether one row or many.

    Only beyond 2,000 rows or 8 MiB is it several. Nothing is read, and nothing but INSERT and the sequences'
    USAGE is needed. It waits for nobody: no lock is shared with other writers, no partition needs to exist. The
    rows are there when the surrounding transaction commits, or not at all.

    Raises:
        AccessRefused: PR303, the connection's role may not publish.
        SchemaError: PR202, Postroad's tables are not in this database.
    """
    try:
        if len(rows) == 1:
            yield QUERIES.statement("stage_one", schema, *rows[0])
            return
        for part in parts(rows, _size):
            yield QUERIES.statement("stage_many", schema, *map(list, zip(*part, strict=True)))
    except Exception as error:
        refusal = told(schema, error, act="publish")
        if refusal is None:
            raise
        raise refusal from error


def _size(row: StagedEvent) -> int:
    return len(row.envelope)
