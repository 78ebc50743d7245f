"""The doctor: looks at what a process stands on, and says what would be lost and what to do."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import PostroadError
from postroad.runtime.operations import connected, refuse_pooler
from postroad.sql import migrations, queries
from postroad.sql.partitions import days_ahead
from postroad.transport.amqp.admin import NOT_CHECKED, Session, verify
from postroad.transport.amqp.connection import Address, AmqpSettings

if TYPE_CHECKING:
    import asyncpg

    from postroad.runtime.settings import Settings
    from postroad.transport.topology import Topology

    Connection = asyncpg.Connection[asyncpg.Record]

QUERIES = queries(__package__, "doctor.sql")
OLDEST_SERVER: Final = 140000
OLDEST_BROKER: Final = (3, 10)
ENOUGH_DAYS: Final = 7


class Judgement(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found, and where it is not well, what would be lost and what to do."""

    check: str
    judgement: Judgement
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`."""
        return asdict(self)


_UNSEEN: Final = Finding("bindings and policies", Judgement.NOT_CHECKED, NOT_CHECKED.removeprefix("not checked: "))


async def examine_database(settings: Settings) -> list[Finding]:
    """Look at the database: reachable, version, role, schema, rights, partitions, and the direct URL. Changes nothing.

    What cannot be looked at because an earlier check failed is left out; nothing is raised for it.
    """
    found: list[Finding] = []
    try:
        async with connected(settings) as connection:
            found.append(Finding("database", Judgement.OK, "reachable"))
            for look in (_server, _schema, _rights, _partitions):
                more = await look(connection, settings)
                found += more
                if any(item.judgement is Judgement.PROBLEM for item in more):
                    break
    except PostroadError as error:
        found.append(Finding("database", Judgement.PROBLEM, str(error), "nothing is staged or handled; see the text"))
    found.append(await _direct(settings))
    return found


async def examine_broker(settings: Settings, topology: Topology | None) -> list[Finding]:
    """Look at the broker: reachable, and what it lacks of `topology`. Changes nothing."""
    if not settings.broker_url:
        return [Finding("broker", Judgement.NOT_CHECKED, "POSTROAD_BROKER_URL is not set")]
    try:
        async with Session(Address.of(settings.broker_url), AmqpSettings()) as session:
            server = session.server
            lacking = [] if topology is None else await verify(session, topology)
    except PostroadError as error:
        lost = "events wait in the outbox, deliveries in their queues; see the text"
        return [Finding("broker", Judgement.PROBLEM, str(error), lost)]
    found = [Finding("broker", Judgement.OK, "reachable"), _broker_version(server)]
    if topology is None:
        return [*found, Finding("topology", Judgement.NOT_CHECKED, "no App was given")]
    if not lacking:
        return [*found, Finding("topology", Judgement.OK, "exchanges and queues exist"), _UNSEEN]
    remedy = "the process does not start, events stay in the outbox; run `postroad topology apply MODULE:APP`"
    return [*found, *(Finding("topology", Judgement.PROBLEM, one.line, remedy) for one in lacking), _UNSEEN]


def _broker_version(server: str) -> Finding:
    numbers = re.fullmatch(r"RabbitMQ (\d+)\.(\d+).*", server)
    if numbers is None:
        remedy = "only RabbitMQ is tested: quorum queues and their arguments may be missing"
        return Finding("broker version", Judgement.WARNING, server or "unknown", remedy)
    if (int(numbers[1]), int(numbers[2])) < OLDEST_BROKER:
        remedy = "dead-lettering there can lose messages; upgrade to RabbitMQ 3.10 or newer"
        return Finding("broker version", Judgement.PROBLEM, server, remedy)
    return Finding("broker version", Judgement.OK, server)


def examine_settings(settings: Settings) -> list[Finding]:
    """Look at the environment: variables that look like settings and are none."""
    remedy = "it has no effect here; remove it if it was meant for Postroad"
    return [Finding("settings", Judgement.WARNING, f"{name} is not a setting", remedy) for name in settings.strangers]


async def ask(check: str, look: Callable[[], Awaitable[str]], *, lost: str) -> Finding:
    """Run one check whose failure is one of our errors; `lost` says what that costs."""
    try:
        return Finding(check, Judgement.OK, await look())
    except PostroadError as error:
        return Finding(check, Judgement.PROBLEM, str(error), lost)


async def _server(connection: Connection, settings: Settings) -> list[Finding]:
    row = await connection.fetchrow(QUERIES.text("server", settings.schema))
    assert row is not None
    found = [Finding("database version", Judgement.OK, f"PostgreSQL {row['shown']}")]
    if row["version"] < OLDEST_SERVER:
        remedy = "statements of this release fail there; upgrade to PostgreSQL 14 or newer"
        found = [Finding("database version", Judgement.PROBLEM, f"PostgreSQL {row['shown']}", remedy)]
    if row["super"]:
        remedy = "a fault could touch every table; create a role, `postroad migrate --runtime-role ROLE`, and run as it"
        return [*found, Finding("role", Judgement.WARNING, f"{row['role']} is a superuser", remedy)]
    return [*found, Finding("role", Judgement.OK, f"{row['role']}")]


async def _schema(connection: Connection, settings: Settings) -> list[Finding]:
    usable = await connection.fetchval(QUERIES.text("usable", settings.schema), settings.schema)
    if usable is False:
        remedy = "nothing can be read or written; run `postroad migrate --runtime-role ROLE` as the schema's owner"
        return [Finding("schema", Judgement.PROBLEM, f"the role may not use schema {settings.schema!r}", remedy)]
    number = await migrations.check(connection, schema=settings.schema)
    return [Finding("schema", Judgement.OK, f"{settings.schema} stands at {number}")]


async def _rights(connection: Connection, settings: Settings) -> list[Finding]:
    rows = await connection.fetch(QUERIES.text("rights", settings.schema), settings.schema)
    if not rows:
        return [Finding("rights", Judgement.OK, "those of the runtime role")]
    lacking = ", ".join(row["lacking"] for row in rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")  # noqa: PLR2004
    remedy = "events stay unsent and deliveries go back; run `postroad migrate --runtime-role ROLE` as the owner"
    return [Finding("rights", Judgement.PROBLEM, f"lacking {lacking}", remedy)]


async def _partitions(connection: Connection, settings: Settings) -> list[Finding]:
    ahead = await days_ahead(connection, schema=settings.schema)
    if ahead >= ENOUGH_DAYS:
        return [Finding("partitions", Judgement.OK, f"{ahead} days ahead")]
    remedy = "authors are not held up, but their rows land in the DEFAULT partition; run `postroad maintain` daily"
    return [Finding("partitions", Judgement.WARNING, f"{ahead} days ahead", remedy)]


async def _direct(settings: Settings) -> Finding:
    async def look() -> str:
        await refuse_pooler(settings)
        return "reachable, without a transaction pooler"

    lost = "leases cannot be renewed, so nothing is dispatched or retried; correct POSTROAD_DIRECT_URL"
    return await ask("direct connection", look, lost=lost)
