"""What an operator may do: the acts behind the commands, without any printing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from postroad.audit import Act, entries, record
from postroad.clock import SYSTEM_CLOCK
from postroad.consume.release import released as release_delivery
from postroad.errors import AccessRefused, PostroadError, SettingsError, Unavailable, UsageError
from postroad.outbox.release import released as release_event
from postroad.runtime.executor import Tasks
from postroad.runtime.settings import Need, Settings, is_postgres, read_settings
from postroad.runtime.upkeep import Maintained, Upkeep
from postroad.schedules import store as occurrences
from postroad.signals import Signals
from postroad.sql import drive, migrations, pooler
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.manager import translated
from postroad.transport.amqp import AmqpSettings, AmqpTransport
from postroad.transport.amqp.compare import differences
from postroad.transport.amqp.connection import Address
from postroad.transport.amqp.management import read_vhost
from postroad.transport.amqp.tls import Tls
from postroad.transport.postgres import store as subscriptions
from postroad.transport.postgres.transport import besides, lacking, subscriptions_in
from postroad.work import release

if TYPE_CHECKING:
    from postroad.audit import Chosen, Entry
    from postroad.sql import Pipeline
    from postroad.sql.migrations import Roles
    from postroad.transport.amqp import Difference
    from postroad.transport.postgres.store import Subscriptions
    from postroad.transport.topology import Topology

    Connection = asyncpg.Connection[asyncpg.Record]

CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Released:
    """A row of quarantine that was released: where it went (`work` or `outbox`), and the number it has there."""

    id: int
    kind: str
    queue: str
    to: str
    number: int
    by: str


def database_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of an act that needs the database alone.

    Raises:
        SettingsError: one is missing or wrong.
    """
    return read_settings(os.environ if environment is None else environment, needs=frozenset({Need.DATABASE}))


def bound_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of an act that needs database and broker.

    Raises:
        SettingsError: one is missing or wrong.
    """
    needs = frozenset({Need.DATABASE, Need.BROKER})
    return read_settings(os.environ if environment is None else environment, needs=needs)


@asynccontextmanager
async def connected(settings: Settings, *, direct: bool = False) -> AsyncIterator[Connection]:
    """A connection of its own, past any pooler if `direct`; what the driver raises comes out as our errors.

    Raises:
        AccessRefused: wrong password, role or database name, or a right is missing.
        Unavailable: it cannot be reached within ten seconds, or was lost.
    """
    url = settings.direct_url if direct else settings.database_url
    with blamed(settings, url):
        connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS, statement_cache_size=0)
        try:
            yield connection
        finally:
            await connection.close(timeout=CONNECT_SECONDS)


@contextmanager
def blamed(settings: Settings, url: str) -> Iterator[None]:
    """Turn what goes wrong with the database at `url` into our errors, which name the setting that it came from.

    Raises:
        AccessRefused: the server refuses, or the role lacks a right.
        Unavailable: it cannot be reached, or the connection was lost.
        UsageError: the URL cannot be read.
    """
    variable = "POSTROAD_DATABASE_URL" if url == settings.database_url else "POSTROAD_DIRECT_URL"
    try:
        with translated(url):
            yield
    except (AccessRefused, Unavailable) as error:
        if variable in error.message:
            raise
        raise type(error)(error.code, f"{variable}: {error.message}") from error
    except asyncpg.InsufficientPrivilegeError as error:
        message = f"{variable}: the role lacks rights; give them by `postroad migrate --runtime-role ROLE` as the owner"
        raise AccessRefused("PR303", message) from error
    except (ValueError, asyncpg.ClientConfigurationError) as error:
        message = f"{variable} cannot be read; it looks like postgresql://user:password@host:5432/name"
        raise SettingsError("PR201", message) from error


async def refuse_pooler(settings: Settings) -> None:
    """Prove that the direct URL reaches one backend: heartbeats and session locks need a connection of their own.

    Raises:
        AccessRefused: the server refuses.
        SettingsError: a transaction pooler answers there.
        Unavailable: it cannot be reached.
    """
    async with connected(settings, direct=True) as connection:
        found = await pooler.ask(connection, settings.direct_url)
    if found.shares:
        message = "POSTROAD_DIRECT_URL leads through a transaction pooler; give the database's own host and port"
        raise SettingsError("PR201", message)


async def migrate(settings: Settings, *, roles: Roles) -> Sequence[int]:
    """Bring the schema up to this release, as the owner role; the steps applied now. Safe to repeat.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema is newer than this release, or a step was edited.
        Unavailable: the database is away, or a lock was not to be had; nothing was changed.
    """
    with blamed(settings, settings.direct_url):
        return await migrations.migrate(settings.direct_url, schema=settings.schema, roles=roles)


async def maintain(settings: Settings) -> Maintained:
    """One round of maintenance: partitions ahead, and retention. Safe to repeat and from several places at once.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away.
    """
    async with connected(settings, direct=True) as connection:
        await migrations.check(connection, schema=settings.schema)
        upkeep = Upkeep(connection, settings.schema, now=SYSTEM_CLOCK.now(), remember=settings.inbox_window)
        return await upkeep.round()


async def retry(settings: Settings, row_id: int, *, by: str) -> Released:
    """Release a row from quarantine, as `by`.

    A delivery becomes a retry of its consumer, a job a new row of its queue, an event that the broker refused goes back
    into the outbox. It is one transaction: after a crash the row is either still in quarantine or released.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away.
        UsageError: PR112, there is no such row, it is resolved, or it cannot be tried again.
    """
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        async with connection.transaction():
            return await drive(released(settings.schema, row_id, by), AsyncpgHand(connection))


def released(schema: str, row_id: int, by: str) -> Pipeline[Released]:
    """Release a row from quarantine, whatever its kind, and record it; run it in a transaction.

    Raises:
        UsageError: PR112, see `retry`.
    """
    done, code = yield from _released(schema, row_id, by)
    before = {"kind": done.kind, "queue": done.queue, "code": code}
    after = {"to": done.to, "number": done.number}
    yield from record(schema, Act(by=by, act="quarantine.retry", subject=str(row_id), before=before, after=after))
    return done


def _released(schema: str, row_id: int, by: str) -> Pipeline[tuple[Released, str]]:
    row = yield from release.look(schema, row_id)
    if row is None:
        raise UsageError("PR112", f"there is no row {row_id} in quarantine; see `postroad quarantine list`")
    if row.resolved_at is not None:
        raise UsageError("PR112", f"row {row_id} of quarantine was resolved at {row.resolved_at:%Y-%m-%d %H:%M} UTC")
    if row.kind in {"delivery", "dead-letter"}:
        number = yield from release_delivery(schema, row, by=by)
        return Released(row.id, row.kind, row.queue, "work", number, by), row.code
    if row.kind == "event":
        number = yield from release_event(schema, row, by=by)
        return Released(row.id, row.kind, row.queue, "outbox", number, by), row.code
    number = yield from release.released(schema, row, by=by)
    yield from occurrences.reopened(schema, key=row.key, work_id=number)
    return Released(row.id, row.kind, row.queue, "work", number, by), row.code


async def recorded(settings: Settings, chosen: Chosen, *, limit: int = 100) -> Sequence[Entry]:
    """The acts of operators that are `chosen`, latest first.

    Raises:
        AccessRefused: the role may not read them, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away.
    """
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        return await drive(entries(settings.schema, chosen, limit=limit), AsyncpgHand(connection))


def topology_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of an act that needs the broker alone.

    Raises:
        SettingsError: one is missing or wrong.
    """
    given = os.environ if environment is None else environment
    settings = read_settings(given, needs=frozenset({Need.BROKER}))
    return bound_settings(given) if is_postgres(settings.broker_url) else settings


async def apply_topology(settings: Settings, topology: Topology, *, by: str) -> str | None:
    """Declare everything on the transport, as `by`. Safe to repeat; what stands otherwise is refused, never changed.

    Over PostgreSQL the consumers' subscriptions are what `topology` says, and no others, and a change of them is
    recorded in its transaction. Over a broker the act is recorded where POSTROAD_DATABASE_URL is set, after it and also
    where it was refused half-way: what the audit does not take is the answer, in one line, and undoes nothing.

    Raises:
        AccessRefused: the user may not declare.
        TopologyError: something stands otherwise (406); the text says what.
        Unavailable: the broker is away.
    """
    if not is_postgres(settings.broker_url):
        return await _declared(settings, topology, by=by)
    wanted = subscriptions_in(topology)
    consumers = {consumer for consumer, _ in wanted}
    async with connected(settings) as connection, connection.transaction():
        await migrations.check(connection, schema=settings.schema)
        await drive(_subscribed(settings.schema, consumers, wanted, by), AsyncpgHand(connection))
    return None


async def _declared(settings: Settings, topology: Topology, *, by: str) -> str | None:
    transport = admin_transport(settings)
    lacking, whole = await _lacking(settings, transport, topology) if settings.database_url else ([], False)
    result = "applied"
    try:
        await transport.apply(topology)
    except PostroadError as error:
        result = error.code
        raise
    finally:
        unrecorded = None
        if settings.database_url and (lacking or not whole):
            before, after = {"lacking": lacking}, {"result": result}
            act = Act(by=by, act="topology.apply", subject=Address.of(settings.broker_url).place, items=len(lacking),
                      before=before, after=after)  # fmt: skip
            unrecorded = await _recorded_after(settings, act)
    return unrecorded


async def _lacking(settings: Settings, transport: AmqpTransport, topology: Topology) -> tuple[list[str], bool]:
    """What a broker lacks, as far as it can be seen, and whether that is all: AMQP alone shows no bindings."""
    found: list[Difference] = []
    try:
        found += await transport.verify(topology)
        if settings.management_url is not None:
            found += [one for one in compare_topology(settings, topology) if one.kind == "binding"]
    except PostroadError:  # Whoever may declare may not be let look.
        return _named(found), False
    return _named(found), settings.management_url is not None


def _named(found: Sequence[Difference]) -> list[str]:
    return sorted({f"{one.kind} {one.name}" for one in found})


async def _recorded_after(settings: Settings, act: Act) -> str | None:
    """Record what was done elsewhere; why that could not be, or None."""
    try:
        async with connected(settings) as connection:
            await migrations.check(connection, schema=settings.schema)
            await drive(record(settings.schema, act), AsyncpgHand(connection))
    except PostroadError as error:
        return str(error)
    return None


def _subscribed(schema: str, consumers: Collection[str], wanted: Subscriptions, by: str) -> Pipeline[None]:
    stood = yield from subscriptions.subscriptions(schema, consumers)
    yield from subscriptions.subscribe(schema, consumers, wanted)
    added, ended = sorted(wanted - stood), sorted(stood - wanted)
    for consumer in sorted({pair[0] for pair in (*added, *ended)}):
        more, less = ([pair[1] for pair in pairs if pair[0] == consumer] for pairs in (added, ended))
        act = Act(
            by=by, act="subscription.change", subject=consumer, items=len(more) + len(less), before={"ended": less},
            after={"added": more},
        )  # fmt: skip
        yield from record(schema, act)


async def verify_topology(settings: Settings, topology: Topology) -> Sequence[Difference]:
    """What the broker lacks, as far as AMQP shows it; over PostgreSQL, every difference.

    Raises:
        AccessRefused: the user may not even look.
        Unavailable: the broker is away.
    """
    if not is_postgres(settings.broker_url):
        return await admin_transport(settings).verify(topology)
    wanted = subscriptions_in(topology)
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        standing = await drive(subscriptions.subscriptions(settings.schema), AsyncpgHand(connection))
    return [*lacking(wanted, standing), *besides(wanted, standing)]


async def retire_consumer(settings: Settings, consumer: str, *, by: str) -> tuple[int, int]:
    """End the subscriptions of a consumer that is gone, and drop what waits for it, as `by`; how many of either.

    Raises:
        AccessRefused: the role may not, or cannot connect.
        SchemaError: the schema does not serve this release.
        Unavailable: the database is away.
        UsageError: PR107, a broker carries events, or there is nothing of that consumer.
    """
    if not is_postgres(settings.broker_url):
        message = "on a broker a consumer that is gone is a queue: unbind and delete it there"
        raise UsageError("PR107", f"{message}; this is for POSTROAD_BROKER_URL=postgres:")
    async with connected(settings) as connection, connection.transaction():
        await migrations.check(connection, schema=settings.schema)
        hand = AsyncpgHand(connection)
        ended, dropped = await drive(subscriptions.retire(settings.schema, consumer), hand)
        if ended or dropped:
            gone = {"subscriptions": ended, "deliveries": dropped}
            act = Act(by=by, act="subscription.retire", subject=consumer, items=ended + dropped, before=gone)
            await drive(record(settings.schema, act), hand)
    if not ended and not dropped:
        raise UsageError("PR107", f"consumer {consumer!r} subscribes to nothing, and nothing waits for it")
    return ended, dropped


def compare_topology(settings: Settings, topology: Topology) -> Sequence[Difference]:
    """How bindings, arguments and exchanges on the broker differ, through POSTROAD_MANAGEMENT_URL. Blocks.

    Raises:
        AccessRefused: the API's user may not look.
        SettingsError: POSTROAD_MANAGEMENT_URL is not set.
        Unavailable: the API is away.
    """
    if settings.management_url is None:
        raise SettingsError("PR201", "POSTROAD_MANAGEMENT_URL is not set; give http://user:password@host:15672")
    address = Address.of(settings.broker_url)
    seen = read_vhost(settings.management_url, vhost=address.vhost, user=address.user, tls=tls_of(settings))
    return differences(topology, seen)


def admin_transport(settings: Settings) -> AmqpTransport:
    """A transport to ask and declare with; it starts nothing."""
    signals = Signals()
    return AmqpTransport(
        settings.broker_url, owner=Tasks(signals), signals=signals, clock=SYSTEM_CLOCK, chance=lambda: 0.0,
        settings=AmqpSettings(tls=tls_of(settings)),
    )  # fmt: skip


def tls_of(settings: Settings) -> Tls:
    """What connections to the broker trust and show."""
    return Tls(ca=settings.broker_ca, certificate=settings.broker_cert, key=settings.broker_key)
