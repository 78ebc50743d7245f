"""Adopting a database: what a person decides about a copy, a restored database, or a move to another broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroad.audit import Act, record
from postroad.errors import UsageError
from postroad.outbox import installation, replay
from postroad.outbox.bond import HELD
from postroad.runtime.operations import connected
from postroad.runtime.settings import is_postgres
from postroad.sql import drive, migrations
from postroad.sql.asyncpg import AsyncpgHand
from postroad.transport.amqp import AmqpSettings
from postroad.transport.amqp.connection import Address
from postroad.transport.amqp.marks import AmqpMarks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.outbox.installation import Installation, Marks
    from postroad.runtime.settings import Settings
    from postroad.sql import Pipeline


@dataclass(frozen=True, slots=True)
class Bound:
    """What binds a database to a broker, and what would be sent.

    `doubt` is why nothing is sent now; empty where all is well, or where the first process will bind it to
    `configured`. `oldest_seconds` is the age of the oldest of the `waiting` events.
    """

    installation: str
    bound_to: str | None
    configured: str
    doubt: str
    waiting: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Adopted:
    """What adopting did: a new installation id, bound to the broker by the first process that starts."""

    installation: str
    configured: str
    by: str
    waiting: int
    discarded: int


async def examine(settings: Settings) -> Bound:
    """Whether this database may send to the configured broker, and what waits. Changes nothing.

    Raises:
        AccessRefused: database or broker refuse.
        SchemaError: the schema does not serve this release.
        Unavailable: one of them is away.
        UsageError: PR107, no broker carries events.
    """
    if is_postgres(settings.broker_url):
        message = "POSTROAD_BROKER_URL is postgres:, so there is no broker to be bound to"
        raise UsageError("PR107", f"{message}: a copy of this database reaches its own consumers alone")
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        row, waits = await drive(_looked(settings.schema), AsyncpgHand(connection))
    marks = AmqpMarks(Address.of(settings.broker_url), AmqpSettings())
    try:
        doubt = await _doubt(row, marks)
    finally:
        await marks.close()
    return Bound(row.id, row.broker, marks.broker, doubt, waits["count"], waits["oldest"])


async def adopt(settings: Settings, *, by: str, discard: bool) -> Adopted:
    """Make this database an installation of its own, as `by`, with or without what waits to be sent.

    The original's marks on the broker stay, so that it is not disturbed. It is one transaction; whoever looks next (a
    process that waits does so every two seconds) binds the database to the broker that is configured there.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away; whether it was done is shown by `examine`.
    """
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        async with connection.transaction():
            hand = AsyncpgHand(connection)
            row, waits, discarded = await drive(_adopted(settings.schema, by, discard=discard), hand)
    return Adopted(row.id, Address.of(settings.broker_url).place, by, waits - discarded, discarded)


def choice(bound: Bound, *, send: bool | None) -> bool:
    """Whether what waits is to be discarded; somebody has to say so where something waits.

    Raises:
        UsageError: PR107, nobody did.
    """
    if send is None and bound.waiting:
        message = (
            f"{bound.waiting} events wait in this database; say --send-waiting (they exist nowhere else) or"
            f" --discard-waiting (the original sends them)"
        )
        raise UsageError("PR107", message)
    return send is False


async def _doubt(row: Installation, marks: Marks) -> str:
    found = await installation.standing(row, marks)
    if not found.doubt and row.token is not None and await marks.taken(row.name, row.instance):
        return HELD
    return found.doubt


def _looked(schema: str) -> Pipeline[tuple[Installation, Mapping[str, Any]]]:
    found = yield installation.look(schema)
    waits = yield installation.waiting(schema)
    return installation.read(found[0]), waits[0]


def _adopted(schema: str, by: str, *, discard: bool) -> Pipeline[tuple[Installation, int, int]]:
    waits = yield installation.waiting(schema)
    if discard:  # Nothing of the original's is sent from here.
        for number in (yield from replay.running(schema)):
            yield from replay.stop(schema, number)
    gone = (yield installation.discard(schema)) if discard else [{"count": 0}]
    before = installation.read((yield installation.look(schema))[0])
    yield installation.adopt(schema, by)
    found = installation.read((yield installation.look(schema))[0])
    act = Act(
        by=by, act="installation.adopt", subject=found.id, items=gone[0]["count"],
        before={"installation": before.id, "broker": before.broker, "waiting": waits[0]["count"]},
        after={"discarded": gone[0]["count"]},
    )  # fmt: skip
    yield from record(schema, act)
    return found, waits[0]["count"], gone[0]["count"]
