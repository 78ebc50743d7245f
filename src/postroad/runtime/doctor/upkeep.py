"""Checks of what goes on inside the database: partitions, vacuum, durability, windows, and what waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from postroad.clock import seconds
from postroad.runtime.doctor import checks
from postroad.sql import queries
from postroad.sql.partitions import days_ahead

if TYPE_CHECKING:
    import asyncpg

    from postroad.consume.consumer import Consumer
    from postroad.runtime.doctor.findings import Finding
    from postroad.runtime.doctor.subject import Limits

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Look: TypeAlias = Callable[[Connection, str, Limits], Awaitable[list[Finding]]]

QUERIES = queries(__package__, "upkeep.sql")
_MANY: Final = 100_000


async def _ahead(connection: Connection, schema: str, limits: Limits) -> list[Finding]:
    days = await days_ahead(connection, schema=schema)
    told = f"{days} days ahead"
    return [checks.PARTITIONS.ok(told) if days >= limits.days_ahead else checks.PARTITIONS.warning(told)]


async def _leftovers(connection: Connection, schema: str, _limits: Limits) -> list[Finding]:
    names = [row["name"] for row in await connection.fetch(QUERIES.text("leftovers", schema))]
    if names:
        return [checks.LEFTOVERS.warning(f"rows in {', '.join(names)}")]
    return [checks.LEFTOVERS.ok("empty")]


async def _horizon(connection: Connection, schema: str, limits: Limits) -> list[Finding]:
    found = []
    for row in await connection.fetch(QUERIES.text("holders", schema)):
        old = row["seconds"] is not None and seconds(row["seconds"]) >= limits.vacuum_age
        if old or row["transactions"] >= limits.vacuum_transactions:
            found.append(checks.HORIZON.warning(holder(row)))
    return found or [checks.HORIZON.ok("nothing old holds it back")]


async def _floor(connection: Connection, schema: str, limits: Limits) -> list[Finding]:
    row = await connection.fetchrow(QUERIES.text("writers", schema))
    if row is None:
        return [checks.FLOOR.ok("no transaction holds it back")]
    if row["seconds"] is None:
        why = "its age is only shown to members of pg_read_all_stats; grant that to the runtime role"
        return [checks.FLOOR.not_checked(f"held by {holder(row)}: {why}")]
    old = seconds(row["seconds"]) >= limits.writer_age
    return [checks.FLOOR.warning(f"held by {holder(row)}") if old else checks.FLOOR.ok("only young transactions")]


def holder(row: Any) -> str:
    """Who holds something back, since when; application names are the operator's own."""
    application = f" of {row['application']!r}" if row["application"] else ""
    age = "" if row["seconds"] is None else f", open for {span(row['seconds'])}"
    return f"{row['kind']} {row['name']}{application}{age}, {row['transactions']} transactions back"


async def _durability(connection: Connection, schema: str, _limits: Limits) -> list[Finding]:
    row = await connection.fetchrow(QUERIES.text("durability", schema))
    assert row is not None
    return [judge_commit(row), judge_standbys(row)]


def judge_commit(row: Any) -> Finding:
    """Whether what was committed survives a crash of the server."""
    off = [name for name in ("fsync", "full_page_writes") if row[name] == "off"]
    if off:
        return checks.COMMIT.error(f"{' and '.join(off)} is off")
    if row["synchronous_commit"] == "off":
        return checks.COMMIT.warning("synchronous_commit is off for this role")
    return checks.COMMIT.ok(f"synchronous_commit is {row['synchronous_commit']}")


def judge_standbys(row: Any) -> Finding:
    """Whether what was committed survives a fail-over."""
    if not row["standbys"]:
        return checks.STANDBY.ok("no standby is connected")
    if not row["names"]:
        return checks.STANDBY.warning(f"{row['standbys']} connected, asynchronous")
    if row["synchronous_commit"] in {"off", "local"}:
        return checks.STANDBY.warning(f"synchronous_commit is {row['synchronous_commit']}: no standby is waited for")
    return checks.STANDBY.ok("synchronous")


async def _waiting(connection: Connection, schema: str, limits: Limits) -> list[Finding]:
    row = await connection.fetchrow(QUERIES.text("waiting", schema))
    assert row is not None
    refused = await connection.fetch(QUERIES.text("refused", schema))
    told = [
        checks.REFUSED.warning(f"{one['count']} on {one['route']}, up to {one['attempts']} attempts: {one['reason']}")
        for one in refused
    ]
    return [judge_waiting(row["count"], row["seconds"], limits), *(told or [checks.REFUSED.ok("none")])]


def judge_waiting(count: int, age: float | None, limits: Limits) -> Finding:
    """What `count` waiting events mean, the oldest `age` seconds old."""
    if not count or age is None:
        return checks.WAITING.ok("none")
    told = f"{'more than ' if count > _MANY else ''}{min(count, _MANY)}, the oldest for {span(age)}"
    return checks.WAITING.warning(told) if seconds(age) >= limits.waiting_age else checks.WAITING.ok(told)


async def unserved(connection: Connection, schema: str, declared: frozenset[str], limits: Limits) -> list[Finding]:
    """Queues of which nothing runs; `declared` are the queues of the App that is looked at."""
    rows = await connection.fetch(QUERIES.text("unserved", schema))
    return judge_unserved(rows, declared, limits)


def judge_unserved(rows: Sequence[Any], declared: frozenset[str], limits: Limits) -> list[Finding]:
    """What ready rows mean of which none runs. Other Apps' processes cannot be seen from here."""
    found = []
    for row in rows:
        ours = row["queue"] in declared
        if seconds(row["seconds"]) < (limits.waiting_age if ours else limits.orphan_age):
            continue
        why = "it is paused" if row["paused"] else "this App declares it" if ours else "no App given here declares it"
        told = f"queue {row['queue']}: {row['ready']} ready for {span(row['seconds'])}, nothing runs it; {why}"
        found.append(checks.WORK.warning(told))
    return found or [checks.WORK.ok("no queue waits for a process")]


async def _quarantine(connection: Connection, schema: str, _limits: Limits) -> list[Finding]:
    row = await connection.fetchrow(QUERIES.text("quarantined", schema))
    assert row is not None
    if not row["count"]:
        return [checks.QUARANTINE.ok("empty")]
    return [checks.QUARANTINE.warning(f"{row['count']}, the oldest for {span(row['seconds'])}")]


LOOKS: Final[tuple[Look, ...]] = (
    _ahead, _leftovers, _horizon, _floor, _durability, _waiting, _quarantine,
)  # fmt: skip


def judge_inbox(window: timedelta, consumers: Sequence[Consumer[Any]]) -> Finding:
    """Whether marks kept for `window` outlive the retry budgets of `consumers`."""
    short = [consumer for consumer in consumers if consumer.retry.max_age >= window]
    if not short:
        return checks.INBOX.ok(f"marks are kept for {span(window.total_seconds())}")
    named = ", ".join(f"{one.name!r} may retry for {span(one.retry.max_age.total_seconds())}" for one in short)
    return checks.INBOX.error(f"marks are kept for {span(window.total_seconds())}, but {named}")


def span(age: float) -> str:
    """A number of seconds as people say it."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if age >= 2 * size:
            return f"{age / size:.0f} {unit}"
    return f"{age:.0f} seconds"
