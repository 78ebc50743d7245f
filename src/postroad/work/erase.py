"""Erasure in `work` and `quarantine`: the messages of one key become tombstones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import ContractError
from postroad.events.envelope import decode
from postroad.events.redacted import tombstone
from postroad.sql.statement import queries
from postroad.work.wire import headers_from_json, kept

if TYPE_CHECKING:
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.work", "erase.sql")


def erase(
    schema: str, key: str, *, producer: str | None, by: str, dry_run: bool
) -> Pipeline[tuple[int, int, int]]:  # fmt: skip
    """Put tombstones in place of the messages of `key`: how many in work, how many of these run, and in quarantine.

    A row of work that waits is dropped when it runs; one that runs has its message in its worker's memory, too.
    """
    patterns = (key.encode(), json.dumps(key)[1:-1].encode(), json.dumps(key, ensure_ascii=False)[1:-1])
    counts = []
    for table, more in (("work", ()), ("quarantine", (kept(by),))):
        rows = yield QUERIES.statement(table, schema, *patterns)
        stones = {row["id"]: stone for row in rows if (stone := _stone(row, key, producer)) is not None}
        if stones and not dry_run:
            yield QUERIES.statement(f"erase_{table}", schema, list(stones), list(stones.values()), *more)
        counts += [len(stones), sum(row["running"] for row in rows if row["id"] in stones)]
    return counts[0], counts[1], counts[2]


def _stone(row: Mapping[str, Any], key: str, producer: str | None) -> bytes | None:
    """The tombstone of a row whose message is of `key`; None for any other: the key only stands somewhere in it."""
    headers = headers_from_json(row["headers"])
    try:
        found = decode(bytes(row["body"]), content_type=row["content_type"], headers=headers)
    except ContractError:
        return None
    if found.key != key or (producer is not None and found.owner != producer):
        return None
    return tombstone({
        "specversion": "1.0", "id": found.id, "source": found.source, "type": found.type,
        "time": None if found.time is None else found.time.isoformat(),
        "recordedtime": None if found.recorded is None else found.recorded.isoformat(),
        "schemaversion": found.version, "datacontenttype": "application/json",
    })  # fmt: skip
