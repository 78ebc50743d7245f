"""Staging: the rows that a publish leaves in the author's transaction, in one statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from postroad.errors import AccessRefused, PostroadError, SchemaError
from postroad.sql.statement import Pipeline, queries

QUERIES: Final = queries(__package__, "stage.sql")

MOST_ROWS: Final = 2_000
MOST_BYTES: Final = 8 * 1024 * 1024

# Appendix A of PostgreSQL's manual: undefined_table, invalid_schema_name, insufficient_privilege.
_MISSING: Final = frozenset({"42P01", "3F000"})
_REFUSED: Final = "42501"


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

    Only beyond `MOST_ROWS` or `MOST_BYTES` is it several. Nothing is read, and nothing but INSERT and the sequences'
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
        for part in _parts(rows):
            yield QUERIES.statement("stage_many", schema, *map(list, zip(*part, strict=True)))
    except Exception as error:
        told = _told(schema, getattr(error, "sqlstate", None))
        if told is None:
            raise
        raise told from error


def _told(schema: str, state: object) -> PostroadError | None:
    """What is to be done where no publish can work; None for any other error of the driver, whichever it is."""
    if state in _MISSING:
        message = f"schema {schema!r} is missing in the database of this connection; run `postroad migrate` there"
        return SchemaError("PR202", f"{message} (or set POSTROAD_SCHEMA)")
    if state == _REFUSED:
        message = f"the role of this connection may not publish in schema {schema!r}; give it the grants"
        return AccessRefused("PR303", f"{message}: `postroad migrate --author-role ROLE` as the owner")
    return None


def _parts(rows: Sequence[StagedEvent]) -> Iterator[list[StagedEvent]]:
    part: list[StagedEvent] = []
    size = 0
    for row in rows:
        size += len(row.envelope)
        if part and (len(part) == MOST_ROWS or size > MOST_BYTES):
            yield part
            part, size = [], len(row.envelope)
        part.append(row)
    if part:
        yield part
