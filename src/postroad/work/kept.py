"""What a person sees of quarantine and chooses of it: groups by fault, rows, one row, and what is discarded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from postroad.sql import queries
from postroad.work.store import Kept
from postroad.work.wire import headers_from_json, kept

if TYPE_CHECKING:
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.work", "kept.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which open rows of quarantine are meant; of each None means all.

    `failure` is the failure's class; `since` and `until` (not itself) bound the time at which a row was quarantined.
    """

    id: int | None = None
    queue: str | None = None
    fingerprint: str | None = None
    failure: str | None = None
    code: str | None = None
    event_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What was said, by name."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Group:
    """What lies in quarantine for the same fault: failure class, code, type of error and own frame are the same.

    `reason` is the latest one's.
    """

    fingerprint: str
    count: int
    oldest: datetime
    latest: datetime
    queues: Sequence[str]
    event_types: Sequence[str]
    failure: str
    code: str
    error_type: str
    reason: str


@dataclass(frozen=True, slots=True)
class Total:
    """How much was chosen of one queue, and the age of the oldest in seconds; `last` is the latest id.

    `unreleasable` are deliveries without a key: nothing vouches for their identity.
    """

    queue: str
    count: int
    oldest_seconds: float
    last: int
    unreleasable: int


@dataclass(frozen=True, slots=True)
class Whole(Kept):
    """One row of quarantine, open or resolved; `body` and `headers` only where they were asked for."""

    resolved_at: datetime | None = None
    resolution: str | None = None
    resolved_by: str | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, Any] | None = field(default=None, repr=False)


def groups(schema: str, chosen: Chosen, *, limit: int = 100) -> Pipeline[list[Group]]:
    """What lies open by fault, the group that has lain longest first."""
    rows = yield QUERIES.statement("groups", schema, *_args(chosen), limit)
    return [Group(*row.values()) for row in rows]


def listed(schema: str, chosen: Chosen, *, limit: int = 100) -> Pipeline[list[Kept]]:
    """The open rows that are `chosen`, latest first."""
    rows = yield QUERIES.statement("list", schema, *_args(chosen), limit)
    return [Kept(*row.values()) for row in rows]


def totals(schema: str, chosen: Chosen) -> Pipeline[list[Total]]:
    """How many are `chosen` in each queue."""
    rows = yield QUERIES.statement("totals", schema, *_args(chosen))
    return [Total(*row.values()) for row in rows]


def following(schema: str, chosen: Chosen, *, after: int, last: int, limit: int) -> Pipeline[list[tuple[int, str]]]:
    """Id and kind of the next rows behind `after` and up to `last`, in order of id, locked until the transaction ends.

    Rows that somebody else resolves meanwhile are left out.
    """
    rows = yield QUERIES.statement("next", schema, *_args(chosen), after, last, limit)
    return [(row["id"], row["kind"]) for row in rows]


def show(schema: str, id: int, *, payload: bool) -> Pipeline[Whole | None]:  # noqa: A002 - the column
    """The row, open or resolved; None where there is none, or no more."""
    rows = yield QUERIES.statement("show", schema, id, payload)
    if not rows:
        return None
    *told, history, body, headers = rows[0].values()
    history = json.loads(history) if isinstance(history, str) else history
    entries = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
    return Whole(*[*told, entries, body, None if headers is None else headers_from_json(headers)])


def discard(schema: str, ids: Sequence[int], *, by: str, reason: str) -> Pipeline[int]:
    """Resolve those of `ids` that are open as *discarded*; how many. They are never tried again."""
    return len((yield QUERIES.statement("discard", schema, list(ids), kept(by), kept(reason))))


def _args(chosen: Chosen) -> tuple[Any, ...]:
    return tuple(kept(value) if isinstance(value, str) else value for value in astuple(chosen))
