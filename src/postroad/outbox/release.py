"""The release of an event that the broker refused: from quarantine back into the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.errors import UsageError
from postroad.events.envelope import key_hash, shard_of
from postroad.sql.statement import queries
from postroad.work import release as work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.sql import Pipeline
    from postroad.work.release import Quarantined

QUERIES: Final = queries("postroad.outbox", "release.sql")

_REPLAY: Final = ".replay"


def released(schema: str, row: Quarantined, *, by: str) -> Pipeline[int]:
    """Put the event of `row` (kind *event*, locked) back into the outbox and resolve it, both or neither; its place.

    It keeps its id, its seq and its bytes, which come from the log, and the replay that it belongs to; its place is
    fresh, so it goes after the events of its key that were staged meanwhile. One that waits for the same consumer
    already stands for it. Refused again it comes back to quarantine.

    Raises:
        UsageError: PR112, the log does not hold it any more.
    """
    event = yield from _logged(schema, row)
    if event is None:
        message = f"row {row.id} of quarantine: the log holds no event {row.key}; it must be published anew"
        raise UsageError("PR112", message)
    hashed = None if event["key"] is None else key_hash(event["key"])
    shard = shard_of(event["seq"] if hashed is None else hashed)
    target = row.routing_key if (row.exchange or "").endswith(_REPLAY) else None
    (placed,) = yield QUERIES.statement(
        "put_back", schema, shard, event["seq"], event["recorded"], event["retention"],
        f"{event['type']}.v{event['version']}", hashed if target is None else None, target,
        None if row.replay is None else UUID(row.replay),
    )  # fmt: skip
    yield from work.resolve(schema, row.id, by=by)
    return int(placed["place"])


def _logged(schema: str, row: Quarantined) -> Pipeline[Mapping[str, Any] | None]:
    if row.seq is not None:
        rows = yield QUERIES.statement("logged", schema, row.retention, row.recorded, row.seq)
    else:
        rows = yield QUERIES.statement("logged_by_id", schema, UUID(row.key))
    return rows[0] if rows else None
