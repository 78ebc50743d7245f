"""Mechanisms of Postroad, each with what switches it off in this process: for sabotages alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from postroad import failures
from postroad.consume import arrival, attempt, inbox
from postroad.consume.alone import Alone
from postroad.events import Subscription
from postroad.events.envelope import message_key
from postroad.leases import store as lease_store
from postroad.leases.lease import Lease
from postroad.outbox import store
from postroad.outbox.bond import Bond
from postroad.outbox.clearer import Clearer
from postroad.outbox.shards import Shards
from postroad.transport.amqp.intake import AmqpIntake
from postroad.transport.amqp.publisher import AmqpPublisher
from postroad.transport.amqp.watch import Watch
from postroad.transport.base import Incoming, Outgoing, Settled, Settlement
from postroad.transport.postgres.intake import PostgresIntake
from postroad.transport.postgres.publisher import PostgresPublisher
from postroad.work import running
from postroad.work import store as work
from postroad.work.run import Grip

SCHEMA = "postroad"
INTAKES: Sequence[Any] = (AmqpIntake, PostgresIntake)
PUBLISHERS: Sequence[Any] = (AmqpPublisher, PostgresPublisher)


def _always(value: Any) -> Callable[..., Generator[None, None, Any]]:
    """A pipeline that asks the database nothing."""

    def pipeline_of(*_: object, **__: object) -> Generator[None, None, Any]:
        yield from ()
        return value

    return pipeline_of


def _all_fresh(
    _schema: str, _consumer: str, keys: Sequence[UUID], **_: object
) -> Generator[None, None, dict[Any, Any]]:
    yield from ()
    return dict.fromkeys(keys, inbox.Claim.FRESH)


def no_inbox() -> None:
    """Every delivery counts as fresh."""
    inbox.claim = _always(inbox.Claim.FRESH)  # type: ignore[assignment]
    inbox.claim_many = _all_fresh  # type: ignore[assignment]


def no_starts() -> None:
    """What came before is started as if it had not."""
    arrival.Arrival.suspect = property(lambda _: False)  # type: ignore[assignment,method-assign]


def no_solitude() -> None:
    """Whoever asks to be alone runs beside the others."""
    Alone.alone = Alone.beside  # type: ignore[method-assign]


def no_order_guard() -> None:
    """Every sequence counts as the newest."""
    inbox.newest = _always(True)  # type: ignore[assignment]


def no_late_ack() -> None:
    """Deliveries are acked as they are taken."""
    for kind in INTAKES:
        _ack_as_taken(kind)


def _ack_as_taken(kind: Any) -> None:
    take, ack = kind.take, kind.ack

    async def taken(self: Any, most: int) -> Sequence[Incoming]:
        batch: Sequence[Incoming] = await take(self, most)
        ack(self, [incoming.tag for incoming in batch])
        return batch

    kind.take = taken
    kind.ack = kind.give_back = lambda *_: None


def no_return() -> None:
    """What would go back is acked."""
    for kind in INTAKES:
        kind.give_back = kind.ack


def no_identity() -> None:
    """Every send mints a new id."""
    publish = AmqpPublisher.publish

    def minted(message: Outgoing) -> Outgoing:
        new = str(uuid4())
        return replace(message, message_id=new, body=message.body.replace(message.message_id.encode(), new.encode()))

    def published(self: AmqpPublisher, batch: Sequence[Outgoing]) -> None:
        publish(self, [minted(message) for message in batch])

    AmqpPublisher.publish = published  # type: ignore[method-assign]


def no_sequence() -> None:
    """What is handed over together goes out in another order."""
    for kind in PUBLISHERS:
        _hand_over_reversed(kind)


def _hand_over_reversed(kind: Any) -> None:
    publish = kind.publish
    kind.publish = lambda self, batch: publish(self, batch[::-1])


def no_recovery() -> None:
    """Nobody looks after the rows of dead workers."""
    work.recover = _always({})  # type: ignore[assignment]


def no_unknown() -> None:
    """A publish whose fate nobody knows counts as confirmed."""
    settled = Clearer.settled

    def hear(self: Clearer, batch: Sequence[Settled]) -> Any:
        sure = [
            replace(one, settlement=Settlement.CONFIRMED) if one.settlement is Settlement.UNKNOWN else one
            for one in batch
        ]
        return settled(self, sure)

    Clearer.settled = hear  # type: ignore[method-assign]


def no_pardon() -> None:
    """A publish whose fate nobody knows counts as one that a queue left unanswered."""
    settled = Clearer.settled

    def hear(self: Clearer, batch: Sequence[Settled]) -> Any:
        late = [
            replace(one, settlement=Settlement.OVERDUE) if one.settlement is Settlement.UNKNOWN else one
            for one in batch
        ]
        return settled(self, late)

    Clearer.settled = hear  # type: ignore[method-assign]


def no_standstill() -> None:
    """The time limit of confirms runs on while the broker blocks the connection."""
    AmqpPublisher.blocked = lambda *_, **__: None  # type: ignore[method-assign]


def no_notice() -> None:
    """Nobody hears that a consumer was cancelled, and nobody looks."""
    AmqpIntake._cancelled_by_broker = lambda *_: None  # type: ignore[method-assign]
    Watch.begin = lambda *_: None  # type: ignore[method-assign]


def no_distrust() -> None:
    """A holder trusts its leases for ever, and is never told of their loss: the fence in the database stands alone."""
    Lease.held = property(lambda _: True)  # type: ignore[assignment,method-assign]
    Shards.lost = lambda *_: None  # type: ignore[method-assign]


def no_fence() -> None:
    """The outbox obeys whoever asks."""
    text = store.QUERIES.text("clear", SCHEMA)
    open_gate = text.replace("AND mine.token = lease.token", "").replace(
        "WHERE lease.holder = $3::uuid", "WHERE $3::uuid IS NOT NULL"
    )
    assert open_gate != text
    store.QUERIES._rendered["clear", SCHEMA] = open_gate


def no_giving_back() -> None:
    """A failure is the handler's, even if our own database went away under it."""
    attempt._is_away = lambda *_: False


def no_versions() -> None:
    """A consumer reads every version."""
    Subscription.accepts = lambda *_: True  # type: ignore[method-assign]


def no_ownership() -> None:
    """Whoever writes to an exchange may speak for anybody."""

    arrival.vouched = lambda _, envelope: message_key(envelope)


def no_discretion() -> None:
    """Reasons repeat what foreign errors say."""
    described = failures.described
    failures.described = lambda error, state=None, **more: f"{described(error, state, **more)}: {error}"


def no_doubt() -> None:
    """Any database may send."""

    async def proven(self: Bond) -> tuple[Any, str]:
        return await self._read(), ""

    Bond._prove = proven  # type: ignore[method-assign]


def no_job_fence() -> None:
    """A run's transactions commit whoever has its row; it is the database's word alone that counts, and nobody asks."""

    def unsealed(self: Grip, *, finish: bool) -> Any:
        yield from work.finish(self.schema, self.row.id, self.row.token, outcome="handled") if finish else ()

    Grip.sealed = unsealed  # type: ignore[method-assign]


def no_renewal() -> None:
    """A lease is never renewed."""
    text = lease_store.QUERIES.text("renew", SCHEMA)
    stale = text.replace("clock_timestamp() + lease.ttl", "lease.expires_at")
    assert stale != text
    lease_store.QUERIES._rendered["renew", SCHEMA] = stale


def no_turns() -> None:
    """Processes count and claim from a queue with a limit for all of them without waiting for their turn."""
    text = running.QUERIES.text("fleet", SCHEMA)
    running.QUERIES._rendered["fleet", SCHEMA] = "SELECT $1::text || $2::text IS NOT NULL AS ours"
    assert "pg_try_advisory_xact_lock" in text


def no_suspicion() -> None:
    """Whoever ran when its worker died is charged for it."""
    text = work.QUERIES.text("recover", SCHEMA)
    for mechanism, instead in (
        ("CASE WHEN suspect > 0 OR kind = 'delivery' THEN 1 ELSE 0 END", "1"),
        ("least(suspect, 2147483646) + CASE kind WHEN 'delivery' THEN 0 ELSE 1 END", "0"),
    ):
        assert mechanism in text
        text = text.replace(mechanism, instead)
    work.QUERIES._rendered["recover", SCHEMA] = text


def no_taking() -> None:
    """A claim leaves its rows to be claimed by others."""
    for name in ("claim", "claim_on"):
        text = work.QUERIES.text(name, SCHEMA)
        shared = text.replace("FOR UPDATE SKIP LOCKED", "").replace("state = 'running'", "state = 'ready'")
        assert shared != text
        work.QUERIES._rendered[name, SCHEMA] = shared


def no_handback() -> None:
    """A worker that stops gives nothing back."""
    work.give_back = _always(0)  # type: ignore[assignment]


SWITCHES: dict[str, Callable[[], None]] = {
    name.removeprefix("no_"): switch for name, switch in list(globals().items()) if name.startswith("no_")
}
