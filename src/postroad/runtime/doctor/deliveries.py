"""Checks of what waits in `work` for consumers, and of what a transport that is used no more may still hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import asyncpg

from postroad.errors import PostroadError
from postroad.runtime.doctor import checks
from postroad.runtime.doctor.subject import Limits
from postroad.runtime.doctor.upkeep import span
from postroad.runtime.operations import connected
from postroad.runtime.settings import is_postgres
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.transport.postgres import store
from postroad.transport.postgres.transport import besides, lacking, subscriptions_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.runtime.doctor.findings import Finding
    from postroad.runtime.doctor.subject import Subject
    from postroad.runtime.settings import Settings
    from postroad.sql import Pipeline
    from postroad.transport.postgres.store import Subscriptions, Waiting

_DEFAULT: Final = Limits()


async def examine_deliveries(
    settings: Settings, subject: Subject | None = None, *, limits: Limits = _DEFAULT
) -> list[Finding]:
    """Look at subscriptions and waiting deliveries in the database. Changes nothing."""
    if not settings.broker_url:
        return [checks.DELIVERIES.not_checked("POSTROAD_BROKER_URL is not set: it names the transport")]
    try:
        async with connected(settings) as connection:
            rows, standing, bound = await drive(_looked(settings.schema), AsyncpgHand(connection))
    except (PostroadError, asyncpg.PostgresError):
        return [checks.DELIVERIES.not_checked("the database does not show it; see database and schema")]
    if not is_postgres(settings.broker_url):
        return judge_left(rows)
    found = judge_waiting(rows, standing, limits)
    found += judge_subscriptions(subject, standing)
    return [*found, judge_former(bound)]


def _looked(schema: str) -> Pipeline[tuple[Sequence[Waiting], Subscriptions, str | None]]:
    rows = yield from store.waiting(schema)
    standing = yield from store.subscriptions(schema)
    bound = yield store.QUERIES.statement("bound", schema)
    return rows, standing, bound[0]["broker"] if bound else None


def judge_left(rows: Sequence[Waiting]) -> list[Finding]:
    """What lies in the database while a broker carries events. Pure."""
    found = [
        checks.FORMER.warning(f"{row.count} in the database for consumer {row.consumer!r}, the oldest for {_age(row)}")
        for row in rows
    ]
    return found or [checks.FORMER.ok("no delivery is left in the database")]


def judge_waiting(rows: Sequence[Waiting], standing: Subscriptions, limits: Limits) -> list[Finding]:
    """What waits for each consumer. Pure."""
    subscribed = {consumer for consumer, _ in standing}
    found = []
    for row in rows:
        told = f"{row.count} for {row.consumer!r}, the oldest for {_age(row)}, {row.running} in hand"
        if row.consumer not in subscribed:
            found.append(checks.DELIVERIES.warning(f"{told}; it subscribes to nothing any more"))
        elif row.oldest >= limits.waiting_age:
            found.append(checks.DELIVERIES.warning(told))
    return found or [checks.DELIVERIES.ok(f"{sum(row.count for row in rows)}, none for long")]


def judge_subscriptions(subject: Subject | None, standing: Subscriptions) -> list[Finding]:
    """What an App declares against what stands. Pure."""
    if subject is None:
        return [checks.TOPOLOGY.not_checked("no App was given")]
    wanted = subscriptions_in(subject.topology)
    found = [checks.TOPOLOGY.error(f"{one.kind} {one.name!r} {one.problem}") for one in lacking(wanted, standing)]
    found += [checks.TOPOLOGY.warning(f"{one.kind} {one.name!r} {one.problem}") for one in besides(wanted, standing)]
    return found or [checks.TOPOLOGY.ok("every subscription stands")]


def judge_former(bound: str | None) -> Finding:
    """Whether a broker has carried events before. Pure."""
    if bound is None:
        return checks.FORMER.ok("no broker has carried events of this database")
    return checks.FORMER.note(f"{bound} carried events before: what lies in its queues stays there")


def _age(row: Waiting) -> str:
    return span(row.oldest.total_seconds())
