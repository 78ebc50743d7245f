"""What an operator may do with replays: count, start, watch, stop and resume one, and let a consumer run it again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.audit import Act, record
from postroad.clock import SYSTEM_CLOCK
from postroad.consume import rehandle as marks
from postroad.errors import UsageError
from postroad.outbox import replay as store
from postroad.runtime.operations import connected, tls_of
from postroad.runtime.quarantine_acts import check_reason
from postroad.runtime.settings import is_postgres
from postroad.sql import drive, migrations
from postroad.sql.asyncpg import AsyncpgHand
from postroad.transport.amqp.connection import Address
from postroad.transport.amqp.management import read_vhost
from postroad.transport.postgres import store as subscriptions
from postroad.transport.topology import owner_of, replay_exchange

if TYPE_CHECKING:
    from postroad.outbox.replay import Chosen, Count, DroppedDays, Replay
    from postroad.runtime.settings import Settings
    from postroad.sql import Pipeline

RATE: Final = 500.0
"""Events a second, where nothing else is said."""

_PAGE: Final = 5000
_AROUND: Final = timedelta(hours=1)
_DIGITS: Final = 19  # Numbers with fewer fit in a bigint.
_VERSION_7: Final = 7
_NEVER: Final = 253_000_000_000_000  # Milliseconds: in the year 9987.
_EVERY_VERSION: Final = ".*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a replay would send: how many events, by type and version, since when; and what is not there any more.

    `redacted` of them are erased, and passed over. `handled` is how many the consumer would ignore, and `past` how many
    it would quarantine, since it no longer remembers (PR510); None where its database was not asked.
    """

    count: int
    redacted: int
    oldest: datetime | None
    newest: datetime | None
    oldest_seconds: float
    types: Sequence[Count]
    dropped: Sequence[DroppedDays]
    handled: int | None
    past: int | None


@dataclass(frozen=True, slots=True)
class Rehandled:
    """A replay that a consumer runs again; `handled` of its events have a mark there now, None where nobody knows.

    `new` is False where it was allowed before.
    """

    replay: UUID
    consumer: str
    handled: int | None
    new: bool


@dataclass(frozen=True, slots=True)
class Inbox:
    """Where a consumer's inbox is: the database's URL, and the schema of Postroad's tables there."""

    url: str
    schema: str


async def narrowed(settings: Settings, chosen: Chosen, target: str | None) -> Chosen:
    """`chosen`, of the types that `target` subscribes to: what it does not know it would quarantine.

    Raises:
        AccessRefused: PostgreSQL or the management API refuses. So in every act here, and the next two.
        SchemaError: the schema does not serve this release.
        Unavailable: the database, or the management API, is away.
        UsageError: PR107, it does not subscribe to what is asked for, or cannot be reached by a replay, or nobody can
            tell what it subscribes to and no type is given.
    """
    if target is None:
        return chosen
    known = await _subscribed(settings, target)
    if known is None:
        if chosen.types is None:
            message = (
                f"what consumer {target!r} subscribes to is not known here; give --type, or POSTROAD_MANAGEMENT_URL"
            )
            raise UsageError("PR107", message)
        return chosen
    if not known:
        message = f"consumer {target!r} subscribes to nothing here; run `postroad topology apply` for its App first"
        raise UsageError("PR107", message)
    strange = sorted(set(chosen.types or ()) - known)
    if strange:
        raise UsageError("PR107", f"consumer {target!r} does not subscribe to {', '.join(strange)}")
    return replace(chosen, types=chosen.types or tuple(sorted(known)))


async def preview(
    settings: Settings, chosen: Chosen, *, target: str | None = None, inbox: Inbox | None = None
) -> Preview:  # fmt: skip
    """What a replay of `chosen` would send. It reads the days of the log that are chosen, and changes nothing.

    `target`'s inbox is asked where `inbox` says, else in this database if that knows the consumer.
    """
    async with _hand(settings) as hand:
        chosen, found = await drive(_counted(settings.schema, chosen), hand)
        dropped = [] if chosen.ids else await drive(store.dropped(settings.schema, chosen), hand)
        known = None if target is None else await _known(settings, hand, chosen, consumer=target, inbox=inbox)
    oldest = min((one.oldest for one in found), default=None)
    age = 0.0 if oldest is None else max(0.0, (SYSTEM_CLOCK.now() - oldest).total_seconds())
    return Preview(
        count=sum(one.count for one in found), redacted=sum(one.redacted for one in found), oldest=oldest,
        newest=max((one.newest for one in found), default=None), oldest_seconds=age, types=found, dropped=dropped,
        handled=None if known is None else known[0], past=None if known is None else known[1],
    )  # fmt: skip


async def start(
    settings: Settings, chosen: Chosen, *, target: str | None, by: str, reason: str, rate: float = RATE,
    held: bool = False,
) -> Replay:  # fmt: skip
    """Start a replay of `chosen` to the consumer `target`, or to everyone who is bound, as `by`.

    A process of the role dispatch carries it, at most `rate` events a second; one that is `held` waits for `resume`.
    It ends with the last event that is in the log now. Each call starts another one.

    Raises:
        UsageError: PR107, the reason is no line, or nothing is chosen.
    """
    check_reason(reason)
    identity = SYSTEM_CLOCK.new_id()
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        hand = AsyncpgHand(connection)
        async with connection.transaction():
            chosen, found = await drive(_counted(settings.schema, chosen), hand)
            if not found:
                raise UsageError("PR107", "the log holds no event that was asked for; see --dry-run for dropped days")
            pipeline = store.start(
                settings.schema, identity, chosen, found, target=target, rate=rate, by=by, reason=reason, held=held
            )
            number = await drive(pipeline, hand)
            count = sum(one.count for one in found)
            after = {"to": target, "rate": rate, "held": held, **_shown(chosen)}
            act = Act(by=by, act="replay.start", subject=str(number), items=count, reason=reason, after=after)
            await drive(record(settings.schema, act), hand)
        (made,) = await drive(store.listed(settings.schema, number=number), hand)
        return made


async def replays(settings: Settings, *, limit: int = 100) -> Sequence[Replay]:
    """The replays of this database, latest first."""
    async with _hand(settings) as hand:
        return await drive(store.listed(settings.schema, limit=limit), hand)


async def show(settings: Settings, number: int) -> Replay:
    """One replay as it stands.

    Raises:
        UsageError: PR115, there is none of that number.
    """
    async with _hand(settings) as hand:
        return await drive(_one(settings.schema, number), hand)


async def stop(settings: Settings, number: int, *, by: str, reason: str | None = None) -> Replay:
    """Stop a replay, as `by`, until `resume`: for a week the log keeps what it needs.

    What waits in the outbox for one consumer is taken out, and sent when it goes on. What is in a dispatcher's hands
    goes: twice, then, which the consumer ignores.

    Raises:
        UsageError: PR115, there is no such replay, or it does not run.
    """
    return await _acted(settings, number, store.stop(settings.schema, number), "stop", by=by, reason=reason)


async def resume(
    settings: Settings, number: int, *, by: str, rate: float | None = None, reason: str | None = None
) -> Replay:  # fmt: skip
    """Let a stopped replay go on where it was, as `by`; at another `rate` if that is given.

    Raises:
        UsageError: PR115, there is no such replay, or it is not stopped.
    """
    pipeline = store.resume(settings.schema, number, rate=rate)
    return await _acted(settings, number, pipeline, "resume", by=by, reason=reason)


async def rehandle(
    settings: Settings, given: str, *, consumer: str, by: str, reason: str, dry_run: bool = False
) -> Rehandled:  # fmt: skip
    """Let `consumer` run the events of a replay again that it has handled until now, as `by`; each once.

    It is an act on the consumer's database: `given` is the replay's id, which its deliveries carry, or its number where
    the replay is of this very database. Do it before the replay is sent (`start(held=True)`): what came before is
    handled or ignored already. With each of those events the mark of that time goes, and what the guard of its key said
    then. What the consumer handles from now on counts, whichever way it comes.

    Raises:
        UsageError: PR107, the reason is no line; PR115, `given` names no replay, or the consumer is not known here.
    """
    check_reason(reason)
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        hand = AsyncpgHand(connection)
        identity, chosen = await drive(_named(settings.schema, given), hand)
        if not await drive(marks.lives(settings.schema, consumer), hand):
            raise UsageError("PR115", f"this database has no mark of consumer {consumer!r}; run it where its inbox is")
        handled = None
        if chosen is not None:
            here = _Asked(settings.schema, hand)
            handled, _ = await _marked(here, chosen, consumer, by=here)
        if dry_run:
            return Rehandled(identity, consumer, handled, new=False)
        async with connection.transaction():
            new = await drive(marks.allow(settings.schema, consumer, identity, by=by, reason=reason), hand)
            if new:
                act = Act(
                    by=by, act="replay.rehandle", subject=consumer, items=handled or 1, reason=reason,
                    after={"replay": str(identity)},
                )  # fmt: skip
                await drive(record(settings.schema, act), hand)
        return Rehandled(identity, consumer, handled, new)


# --- within -------------------------------------------------------------------------------------------------------


async def _acted(
    settings: Settings, number: int, pipeline: Pipeline[Any], verb: str, *, by: str, reason: str | None
) -> Replay:  # fmt: skip
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        hand = AsyncpgHand(connection)
        async with connection.transaction():
            await drive(pipeline, hand)
            made = await drive(_one(settings.schema, number), hand)
            after = {"sent": made.sent, "of": made.total, "rate": made.rate}
            act = Act(by=by, act=f"replay.{verb}", subject=str(number), reason=reason, after=after)
            await drive(record(settings.schema, act), hand)
        return made


def _one(schema: str, number: int) -> Pipeline[Replay]:
    found = yield from store.listed(schema, number=number)
    if not found:
        raise UsageError("PR115", f"there is no replay {number}; see `postroad replay list`")
    return found[0]


def _named(schema: str, given: str) -> Pipeline[tuple[UUID, Chosen | None]]:
    if given.isdecimal() and len(given) < _DIGITS:
        one = yield from _one(schema, int(given))
        return one.id, one.chosen
    try:
        return UUID(given), None
    except ValueError:
        message = f"{given[:60]!r} is neither the number of a replay nor its id; see `postroad replay list`"
        raise UsageError("PR115", message) from None


def _counted(schema: str, chosen: Chosen) -> Pipeline[tuple[Chosen, list[Count]]]:
    """What is chosen, and what that is in the log; ids say themselves in which days they are."""
    times = [at for at in map(_made_at, chosen.ids or ()) if at is not None]
    if chosen.ids and len(times) == len(chosen.ids) and chosen.since is None and chosen.until is None:
        near = replace(chosen, since=min(times) - _AROUND, until=max(times) + _AROUND)
        found = yield from store.counts(schema, near)
        if sum(one.count for one in found) == len(set(chosen.ids)):
            return near, found
    return chosen, (yield from store.counts(schema, chosen))


def _made_at(identity: UUID) -> datetime | None:
    """When a UUIDv7 was made (RFC 9562, section 5.7); None of others, and of a time that no calendar has."""
    milliseconds = identity.int >> 80
    if identity.version != _VERSION_7 or milliseconds >= _NEVER:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _shown(chosen: Chosen) -> dict[str, Any]:
    """What was chosen, without keys: they may be persons'."""
    return {
        name: len(value) if name in {"keys", "ids"} else value for name, value in chosen.given.items()
    }  # fmt: skip


async def _subscribed(settings: Settings, consumer: str) -> frozenset[str] | None:
    """Which types a consumer subscribes to; None where nobody can tell."""
    if is_postgres(settings.broker_url):
        async with _hand(settings) as hand:
            pairs = await drive(subscriptions.subscriptions(settings.schema, [consumer]), hand)
        return frozenset(event_type for _, event_type in pairs)
    if settings.management_url is None:
        return None
    address = Address.of(settings.broker_url)
    seen = read_vhost(settings.management_url, vhost=address.vhost, user=address.user, tls=tls_of(settings))
    own = [one for one in seen.bindings if one.queue == consumer]
    ways = {one.exchange for one in own if one.routing_key == consumer}
    types = {one.routing_key.removesuffix(_EVERY_VERSION) for one in own if one.routing_key.endswith(_EVERY_VERSION)}
    return frozenset(name for name in types if replay_exchange(owner_of(name)) in ways)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A database that is asked: its schema, and a hand in it."""

    schema: str
    hand: AsyncpgHand


async def _known(
    settings: Settings, hand: AsyncpgHand, chosen: Chosen, *, consumer: str, inbox: Inbox | None
) -> tuple[int, int] | None:  # fmt: skip
    here = _Asked(settings.schema, hand)
    if inbox is not None:
        async with _hand(replace(settings, database_url=inbox.url, schema=inbox.schema)) as theirs:
            return await _marked(here, chosen, consumer, by=_Asked(inbox.schema, theirs))
    if not is_postgres(settings.broker_url) and not await drive(marks.lives(settings.schema, consumer), hand):
        return None
    return await _marked(here, chosen, consumer, by=here)


async def _marked(log: _Asked, chosen: Chosen, consumer: str, *, by: _Asked) -> tuple[int, int]:
    """How many of what is `chosen` in the `log` the inbox has marks of, and how many others it no longer remembers."""
    handled, past, after = 0, 0, 0
    while rows := await drive(store.ids(log.schema, chosen, after=after, limit=_PAGE), log.hand):
        after = rows[-1]["seq"]
        pairs = [(row["id"], row["recorded"]) for row in rows]
        known, old = await drive(marks.known(by.schema, consumer, pairs), by.hand)
        handled, past = handled + known, past + old
    return handled, past


@asynccontextmanager
async def _hand(settings: Settings) -> AsyncIterator[AsyncpgHand]:
    async with connected(settings) as connection:
        await migrations.check(connection, schema=settings.schema)
        yield AsyncpgHand(connection)
