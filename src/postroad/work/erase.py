"""Erasure in `work` and `quarantine`: messages of one key become tombstones, requests of jobs that name it leave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import ContractError
from postroad.events.envelope import decode
from postroad.events.redacted import tombstone
from postroad.sql.statement import queries
from postroad.work.operate import cancel
from postroad.work.wire import headers_from_json, kept

if TYPE_CHECKING:
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.work", "erase.sql")
_ERASED: Final = b'{"redacted":true}'


def erase(
    schema: str, key: str, *, producer: str | None, by: str, dry_run: bool
) -> Pipeline[tuple[int, int, int]]:  # fmt: skip
    """Put tombstones in place of the messages of `key`: how many in work, how many of these run, and in quarantine.

    A row of work that waits is dropped when it runs; one that runs has its message in its worker's memory, too.
    """
    patterns, counts = spellings(key), []
    for table, more in (("work", ()), ("quarantine", (kept(by),))):
        rows = yield QUERIES.statement(table, schema, *patterns)
        stones = {row["id"]: stone for row in rows if (stone := _stone(row, key, producer)) is not None}
        if stones and not dry_run:
            yield QUERIES.statement(f"erase_{table}", schema, list(stones), list(stones.values()), *more)
        counts += [len(stones), sum(row["running"] for row in rows if row["id"] in stones)]
    return counts[0], counts[1], counts[2]


def erase_jobs(
    schema: str, key: str, *, by: str, reason: str, dry_run: bool
) -> Pipeline[tuple[int, int]]:  # fmt: skip
    """Cancel the jobs whose request names `key`, and erase it, in quarantine, too: how many, and how many of them run.

    A request has no key of its own: it names one where that is a whole value anywhere in it. A job that runs is asked
    to stop, and is not run again.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for query in ("jobs", "quarantined_jobs"):
        rows = yield QUERIES.statement(query, schema, *spellings(key))
        found[query] = [row for row in rows if names(bytes(row["body"]), key)]
    running = [row["id"] for row in found["jobs"] if row["running"]]
    if not dry_run:
        kept_ids = [row["id"] for row in found["quarantined_jobs"]]
        for row in found["jobs"]:
            yield from cancel(schema, row["id"], by=by, reason=reason)
        yield QUERIES.statement("erase_jobs", schema, running, _ERASED)
        yield QUERIES.statement("erase_quarantine", schema, kept_ids, [_ERASED] * len(kept_ids), kept(by))
    return sum(map(len, found.values())), len(running)


def spellings(key: str) -> tuple[bytes, bytes, str]:
    """How `key` may stand in a text, or in JSON with and without escapes: what a search begins with."""
    return key.encode(), json.dumps(key)[1:-1].encode(), json.dumps(key, ensure_ascii=False)[1:-1]


def names(body: bytes, key: str) -> bool:
    """Whether `key` is a whole value, or the name of one, anywhere in the JSON document `body`."""
    try:
        left: list[object] = [json.loads(body)]
    except (ValueError, RecursionError):
        return False
    while left:
        value = left.pop()
        if value == key:
            return True
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
    return False


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
