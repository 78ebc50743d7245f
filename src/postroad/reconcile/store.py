"""The sole owner of the tables `reconciliation` and `drift`, as pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.reconcile.merge import Kind
from postroad.sql.statement import queries

if TYPE_CHECKING:
    from postroad.reconcile.merge import Page
    from postroad.sql.statement import Pipeline

QUERIES: Final = queries("postroad.reconcile", "store.sql")

KEPT: Final = timedelta(days=90)
"""How long resolved drift is kept."""
STATES: Final = ("open", "suspected", "repaired", "resolved")


@dataclass(frozen=True, slots=True)
class Begun:
    """A run has a reconciliation: under which token, and how far the open pass has come."""

    token: int
    number: int
    cursor: str | None
    compared: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands of a reconciliation: open drift by kind, and how much is not known to be drift.

    `wait` is in how many seconds all of that will have had its time; `oldest` is since when the oldest drift stands.
    """

    missing: int = 0
    extra: int = 0
    mismatched: int = 0
    pending: int = 0
    wait: float = 0.0
    oldest: datetime | None = None

    @property
    def drift(self) -> int:
        """How many keys have drifted."""
        return self.missing + self.extra + self.mismatched


@dataclass(frozen=True, slots=True)
class Listed:
    """A reconciliation as people see it; times are the database's.

    `began_at` is there while a pass is open, `completed_at` says when a run last came to its end.
    """

    name: str
    number: int
    compared: int
    began_at: datetime | None
    ended_at: datetime | None
    completed_at: datetime | None
    missing: int
    extra: int
    mismatched: int
    suspected: int
    repaired: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class Drifted:
    """A key that differs, as people see it. `failure` is of the last repair, `resolution` gone or repaired."""

    id: int
    reconciliation: str
    key: str
    kind: str
    state: str
    since: datetime
    repairs: int
    failure: str | None
    expected: str | None
    found: str | None
    resolved_at: datetime | None
    resolution: str | None


@dataclass(frozen=True, slots=True)
class Total:
    """How much open drift of a kind a repair would touch, since how many seconds, up to which row."""

    kind: str
    count: int
    oldest_seconds: float
    last: int


@dataclass(frozen=True, slots=True)
class Taken:
    """One open drift, locked until the transaction ends."""

    id: int
    key: str
    kind: Kind
    expected: str | None
    found: str | None
    since: datetime


def begin(schema: str, name: str, *, anew: bool, token: int | None) -> Pipeline[Begun | None]:
    """Take `name` for a run, over from any other; None where `token` is no longer the newest."""
    rows = yield QUERIES.statement("begin", schema, name, anew, token)
    return Begun(*rows[0].values()) if rows else None


def note(
    schema: str, name: str, token: int, page: Page, *, compared: int, settle: timedelta
) -> Pipeline[bool]:  # fmt: skip
    """Write down how a page compared; False where another run has taken over, and nothing was written."""
    found = page.differences
    columns = ([getattr(one, field) for one in found] for field in ("key", "kind", "expected", "found"))
    return bool((yield QUERIES.statement("note", schema, name, token, page.last, compared, *columns, settle)))


def finish(schema: str, name: str, token: int) -> Pipeline[bool]:
    """End the open pass; False where another run has taken over."""
    return bool((yield QUERIES.statement("finish", schema, name, token)))


def standing(schema: str, name: str, *, settle: timedelta) -> Pipeline[Standing]:
    """What stands of `name` now."""
    rows = yield QUERIES.statement("counts", schema, name, settle)
    drift = {row["kind"]: row["count"] for row in rows if row["state"] == "open"}
    pending = [row for row in rows if row["state"] != "open"]
    return Standing(
        **drift, pending=sum(row["count"] for row in pending), wait=max((row["wait"] for row in pending), default=0.0),
        oldest=min((row["oldest"] for row in rows if row["state"] == "open"), default=None),
    )  # fmt: skip


def complete(schema: str, name: str, token: int) -> Pipeline[None]:
    """A run has come to its end."""
    yield QUERIES.statement("complete", schema, name, token)


def listed(schema: str) -> Pipeline[Sequence[Listed]]:
    """Every reconciliation that has run here, by name."""
    rows = yield QUERIES.statement("list", schema)
    return [Listed(*row.values()) for row in rows]


def drift(
    schema: str, *, name: str | None, kind: str | None, state: str, limit: int
) -> Pipeline[Sequence[Drifted]]:  # fmt: skip
    """What differs, or did, oldest first."""
    rows = yield QUERIES.statement("drift", schema, name, kind, state, limit)
    return [Drifted(*row.values()) for row in rows]


def preview(schema: str, name: str, *, kind: str | None, key: str | None) -> Pipeline[Sequence[Total]]:
    """What a repair would touch, by kind."""
    rows = yield QUERIES.statement("preview", schema, name, kind, key)
    return [Total(*row.values()) for row in rows]


def take(
    schema: str, name: str, *, kind: str | None, key: str | None, after: int, last: int, limit: int
) -> Pipeline[Sequence[Taken]]:  # fmt: skip
    """The next open drift, locked; run it in a transaction."""
    rows = yield QUERIES.statement("take", schema, name, kind, key, after, last, limit)
    return [_taken(row) for row in rows]


def _taken(row: Any) -> Taken:
    return Taken(row["id"], row["key"], Kind(row["kind"]), row["expected"], row["found"], row["since"])


def repaired(schema: str, ids: Sequence[int]) -> Pipeline[None]:
    """Something was done about these."""
    yield QUERIES.statement("repaired", schema, list(ids))


def failed(schema: str, id: int, failure: str) -> Pipeline[None]:  # noqa: A002 - the column
    """The repair of one failed."""
    yield QUERIES.statement("failed", schema, id, failure)


def forget(schema: str, *, now: datetime, limit: int) -> Pipeline[int]:
    """Delete a batch of drift that was resolved 90 days ago; how many."""
    rows = yield QUERIES.statement("forget", schema, now - KEPT, limit)
    return len(rows)


def erase(schema: str, key: str, *, dry_run: bool) -> Pipeline[int]:
    """Delete whatever is kept under a person's key; how many rows that is (or would be). It reads the whole table."""
    (row,) = yield QUERIES.statement("of_key", schema, key)
    if row["count"] and not dry_run:
        yield QUERIES.statement("erase", schema, key)
    return int(row["count"])
