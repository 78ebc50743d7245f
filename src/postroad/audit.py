"""Who did what, to what, when and why: one row for each act of an operator, never changed and never deleted.

An act is recorded in the transaction that carries it out, so that neither is there without the other. `before` and
`after` tell what changed in names, counts and times; payloads, keys of persons and passwords do not belong there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from postroad.sql.statement import queries

if TYPE_CHECKING:
    from postroad.sql.statement import Pipeline

QUERIES: Final = queries("postroad", "audit.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What somebody does: `act` is noun and verb (``queue.pause``), `subject` the name or number it is done to.

    `items` is how many rows it touched; `before` and `after` are JSON objects of what changed.
    """

    by: str
    act: str
    subject: str
    items: int = 1
    reason: str | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """An act as it was recorded; `at` is the database's time."""

    id: int
    at: datetime
    by: str
    act: str
    subject: str
    items: int
    reason: str | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which acts a person wants to see: on a subject, of an act or of all that begin so, by somebody, since a time."""

    subject: str | None = None
    act: str | None = None
    by: str | None = None
    since: datetime | None = None


def record(schema: str, act: Act) -> Pipeline[None]:
    """Add `act`; it commits with the transaction that it is part of."""
    texts = (_text(act.by), act.act, _text(act.subject), act.items, None if act.reason is None else _text(act.reason))
    args = (*texts, _json(act.before), _json(act.after))
    yield QUERIES.statement("add", schema, *args)


def entries(schema: str, chosen: Chosen, *, limit: int) -> Pipeline[Sequence[Entry]]:
    """The acts that are `chosen`, latest first, at most `limit`."""
    args = (chosen.subject, chosen.act, chosen.by, chosen.since, limit)
    rows = yield QUERIES.statement("entries", schema, *args)
    return [
        Entry(
            row["id"], row["at"], row["by"], row["act"], row["subject"], row["items"], row["reason"],
            _object(row["before"]), _object(row["after"]),
        )
        for row in rows
    ]  # fmt: skip


def _text(given: str) -> str:
    """`given` without what a PostgreSQL text cannot hold: names come from command lines and from strangers' rows."""
    return given.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(dict(value), default=str).replace("\\u0000", "\\ufffd")


def _object(value: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return json.loads(value) if isinstance(value, str) else value
