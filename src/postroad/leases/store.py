"""The sole owner of the table ``lease``: its statements, and the fence that other rooms put into theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from postroad.sql import Pipeline, Statement, queries

if TYPE_CHECKING:
    from postroad.leases.lease import Lease
    from postroad.sql import Rows

T = TypeVar("T")

_OWN_NAMES: Final = ("worker:", "dispatcher:", "release:")
_DEAD_AFTER: Final = timedelta(days=1)

QUERIES: Final = queries("postroad.leases", "store.sql")

FENCE: Final = """fence AS MATERIALIZED (
    SELECT lease.name
      FROM {schema}.lease AS lease
      JOIN unnest($1::text[], $2::bigint[]) AS mine (name, token)
        ON mine.name = lease.name AND mine.token = lease.token
     WHERE lease.holder = $3::uuid
     ORDER BY lease.name
       FOR SHARE OF lease
)"""
"""The fence as the first CTE of another room's statement; its parameters are names, tokens and the holder.

Make the write depend on it: ``WITH fence AS MATERIALIZED (...) DELETE .. WHERE .. IN (SELECT .. FROM fence)``.
A lease that was taken over gives no row, so nothing is written; one that is still ours cannot be taken over before
the statement's transaction ends, since the rows are locked ``FOR SHARE``. A plain ``EXISTS`` is judged on the
statement's snapshot and was seen to pass after a take-over. The rows are locked in order of name, as renewals lock
them. Keep the transaction short: while it is open, the lease is not renewed.
"""


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A name that nobody holds, and the token that it had last (0: the name was never leased)."""

    name: str
    token: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a name: the id of a process, its token, and when it is free if nothing is heard of it (aware UTC)."""

    id: UUID
    token: int
    until: datetime


@dataclass(frozen=True, slots=True)
class Listed:
    """A lease as an operator sees it; times are aware UTC. `held` is by the database's clock.

    `fenced_by` and `reason` are of the last operator who fenced it.
    """

    name: str
    held: bool
    holder: UUID | None
    token: int
    acquired_at: datetime
    expires_at: datetime
    fenced_by: str | None
    reason: str | None


def acquire(schema: str, names: Sequence[str], *, holder: UUID, ttl: timedelta) -> Statement:
    """Take what is free of `names`, and not locked; rows of `name` and `token`."""
    return QUERIES.statement("acquire", schema, list(names), holder, ttl.total_seconds())


def renew(schema: str, leases: Sequence[Lease]) -> Statement:
    """Prolong `leases` of one holder; rows of the names that were, and of those that were `locked` and may be yet."""
    return _on("renew", schema, leases)


def standing(schema: str, leases: Sequence[Lease]) -> Statement:
    """Rows of the names that nobody else took since."""
    return _on("standing", schema, leases)


def release(schema: str, leases: Sequence[Lease]) -> Statement:
    """Give `leases` of one holder up; rows of the names that were."""
    return _on("release", schema, leases)


def fence(schema: str, leases: Sequence[Lease]) -> Pipeline[frozenset[str]]:
    """Lock `leases` (of one holder) until the transaction ends; the names that are still ours.

    For transactions of several statements: run it before what it protects, and roll back when a name is missing.
    """
    rows = yield fence_statement(schema, leases)
    return frozenset(row["name"] for row in rows)


def fence_statement(schema: str, leases: Sequence[Lease]) -> Statement:
    """The statement of `fence`; rows of `name`. The server ends a transaction that then idles as long as a ttl."""
    idle = min(lease.ttl for lease in leases)
    return _on("fence", schema, leases, f"{round(idle.total_seconds() * 1000)}ms")


def _on(query: str, schema: str, leases: Sequence[Lease], *more: str) -> Statement:
    holders = {lease.holder for lease in leases}
    assert len(holders) == 1, "leases of one holder"  # the keeper has one identity for all that it holds
    names, tokens = [lease.name for lease in leases], [lease.token for lease in leases]
    return QUERIES.statement(query, schema, names, tokens, holders.pop(), *more)


def look(schema: str, name: str) -> Statement:
    """Who holds `name` now: a row, or none."""
    return QUERIES.statement("look", schema, name)


def held_by(rows: Rows) -> Holder | None:
    """What `look` found."""
    return Holder(rows[0]["holder"], rows[0]["token"], rows[0]["expires_at"]) if rows else None


def listed(schema: str, prefix: str = "") -> Pipeline[tuple[Listed, ...]]:
    """Every lease whose name starts with `prefix`, in order of name."""
    rows = yield QUERIES.statement("list", schema, prefix)
    return tuple(Listed(**row) for row in rows)


def interrupt(schema: str, name: str, *, by: str, reason: str) -> Pipeline[Listed | None]:
    """Take `name` away from whoever holds it, by a new token; the lease after that, or None where there is none.

    Safe at any time: the holder's fenced writes are refused from the commit on, and it hears of it at its next
    renewal. A fenced transaction that is open is waited for. Repeating takes it from the next holder.
    """
    rows = yield QUERIES.statement("interrupt", schema, name, by, reason)
    return Listed(**rows[0]) if rows else None


def living(schema: str, prefix: str) -> Pipeline[int]:
    """How many leases whose name starts with `prefix` are held now, by the database's clock."""
    rows = yield living_statement(schema, prefix)
    return int(rows[0]["count"])


def living_statement(schema: str, prefix: str) -> Statement:
    """The statement of `living`, for the keeper's own connection; one row with `count`."""
    return QUERIES.statement("living", schema, prefix)


def expired(schema: str, prefix: str) -> Pipeline[tuple[Lapsed, ...]]:
    """The leases whose name starts with `prefix` that ran out without a release: their holders are dead or cut off."""
    rows = yield QUERIES.statement("expired", schema, prefix)
    return tuple(Lapsed(row["name"], row["token"]) for row in rows)


def lapsed(schema: str, names: Sequence[str]) -> Pipeline[tuple[Lapsed, ...]]:
    """Those of `names` that nobody holds now: expired, released, or never leased."""
    rows = yield QUERIES.statement("lapsed", schema, list(names))
    return tuple(Lapsed(row["name"], row["token"]) for row in rows)


def advance(schema: str, name: str, token: int) -> Pipeline[bool]:
    """Fence off whoever let `name` lapse with `token`, before anything of theirs is touched; whether it was so.

    False: another process was first, or the holder came back. Run it in the transaction that takes the dead
    holder's rows, so that a crash in between leaves both undone.
    """
    rows = yield QUERIES.statement("advance", schema, name, token)
    return bool(rows)


def prune(schema: str, *, keep: Sequence[str]) -> Pipeline[int]:
    """Delete the leases of processes that have been gone for a day, but for the names `keep`; how many.

    Only names that one process draws for itself go: a name that may be taken again keeps its row, and its token.
    """
    rows = yield QUERIES.statement("prune", schema, list(_OWN_NAMES), _DEAD_AFTER, list(keep))
    return len(rows)
