"""The way of one message through one consumer: named steps over one frozen record, without I/O of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from postroad.consume import inbox
from postroad.consume.inbox import Claim, Mark
from postroad.errors import ContractError, LeaseLost
from postroad.events.envelope import decode, message_key
from postroad.failures import FailureClass, Verdict
from postroad.sql.statement import Call
from postroad.transport.topology import events_exchange, replay_exchange
from postroad.work import store as work
from postroad.work.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from postroad.consume.consumer import Consumer
    from postroad.events import Subscription
    from postroad.events.envelope import Envelope
    from postroad.sql.statement import Pipeline
    from postroad.transport.base import Incoming, Tag
    from postroad.work.store import ClaimedRow

STALE: Final = "stale sequence"
UNKNOWN_TYPE: Final = "unknown"
_SOURCE: Final = "urn:postroad:"
_TYPE = re.compile(r"[a-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One message at one consumer, as far as it has come.

    It came from the broker (`tag`) or from `work` (`row`, which owns the inbox mark). The steps below fill in the
    rest, or leave a `refusal`: then it can never be handled as it is. Without a `message_key` nothing vouches for
    its identity, and no mark is set in its name.
    """

    wire: Wire
    tag: Tag | None = None
    row: ClaimedRow | None = None
    redelivered: bool = False
    aged: bool = False  # old enough that its mark may have expired
    envelope: Envelope | None = None
    message_key: UUID | None = None
    subscription: Subscription[Any] | None = None
    event: Any = field(default=None, repr=False)
    refusal: ContractError | None = None

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return 1 if self.row is None else self.row.attempt + 1

    @property
    def age(self) -> timedelta:
        """How long ago its first attempt failed."""
        return timedelta(0) if self.row is None else self.row.age

    @property
    def recorded(self) -> datetime | None:
        """When it was staged; for foreign events that do not say, when it occurred, if they say that."""
        envelope = self.envelope
        return None if envelope is None else envelope.recorded or envelope.time

    @property
    def event_type(self) -> str:
        """Its type where this consumer knows it: bounded, so that it may be a label."""
        return UNKNOWN_TYPE if self.subscription is None else self.subscription.type

    @property
    def lane(self) -> object:
        """Messages of one lane never run at the same time in a process: those of one key, and copies of one message."""
        if self.envelope is not None and self.envelope.key is not None:
            return self.envelope.key
        return self.message_key


# --- from bytes to an event ---------------------------------------------------------------------------------------


def received(incoming: Incoming) -> Arrival:
    """A delivery of the broker."""
    wire = Wire(
        body=incoming.body, content_type=incoming.content_type, headers=incoming.headers,
        exchange=incoming.exchange, routing_key=incoming.routing_key, event_type=_plain(incoming.type),
    )  # fmt: skip
    return Arrival(wire=wire, tag=incoming.tag, redelivered=incoming.redelivered)


def resumed(row: ClaimedRow) -> Arrival:
    """A row of `work`: the same message, on its next attempt."""
    return Arrival(wire=row.wire, row=row)


def identified(consumer: Consumer[Any], arrival: Arrival) -> Arrival:
    """Decode the envelope and check who sent it, what it is and in which version; a refusal stays on the record.

    One new record for all steps: this is on the way of every delivery.
    """
    wire, envelope, key, subscription, refusal = arrival.wire, None, None, None, None
    try:
        envelope = opened(wire)
        key = vouched(wire, envelope)
        subscription = recognised(consumer, envelope)
        admitted(consumer, envelope, subscription)
    except ContractError as error:
        refusal = error
    if envelope is not None and wire.event_type != envelope.type:
        wire = replace(wire, event_type=_plain(envelope.type))
    return Arrival(
        wire=wire, tag=arrival.tag, row=arrival.row, redelivered=arrival.redelivered, envelope=envelope,
        message_key=key, subscription=subscription, refusal=refusal,
    )  # fmt: skip


def opened(wire: Wire) -> Envelope:
    """Read the envelope.

    Raises:
        ContractError: it is not valid.
    """
    return decode(wire.body, content_type=wire.content_type, headers=wire.headers)


def vouched(wire: Wire, envelope: Envelope) -> UUID:
    """Check that the event came by an exchange of its type's owner, where the owner alone may write; its message key.

    A source that is no Postroad producer's is its own business, as long as the exchange is the owner's.

    Raises:
        ContractError: it came by another way, or in the name of another producer.
    """
    owner = envelope.owner
    if wire.exchange not in {events_exchange(owner), replay_exchange(owner)}:
        expected = _shown(events_exchange(owner))
        raise ContractError(
            "PR504", f"{_shown(envelope.type)} did not come by {expected}, where its owner alone writes"
        )
    if envelope.source.startswith(_SOURCE) and not envelope.is_own:
        raise ContractError("PR504", f"{_shown(envelope.type)} names a source that is not its owner")
    return message_key(envelope)


def recognised(consumer: Consumer[Any], envelope: Envelope) -> Subscription[Any]:
    """Find the subscription for the event's type.

    Raises:
        ContractError: the consumer has none.
    """
    subscription = consumer.types.get(envelope.type)
    if subscription is None:
        raise ContractError("PR502", f"consumer {consumer.name!r} does not subscribe to {_shown(envelope.type)}")
    return subscription


def admitted(consumer: Consumer[Any], envelope: Envelope, subscription: Subscription[Any]) -> None:
    """Check the version, and that the event says what the consumer's order needs.

    Raises:
        ContractError: the version is not read here, or key or sequence are missing.
    """
    if not subscription.accepts(envelope.version):
        message = (
            f"consumer {consumer.name!r} reads version {subscription.version} of {subscription.type}, "
            f"this is version {envelope.version}; it can be released once the consumer is upgraded"
        )
        raise ContractError("PR503", message)
    if consumer.order is not None and (envelope.key is None or envelope.sequence is None):
        raise ContractError("PR501", f"consumer {consumer.name!r} asks for order: the event needs a key and a sequence")


def dated(arrival: Arrival, *, now: datetime) -> Arrival:
    """Notice one that is so old that its mark may have expired; any other passes as it is."""
    recorded = arrival.recorded
    old = recorded is not None and now - recorded > inbox.FRESH_FOR
    return replace(arrival, aged=True) if old else arrival


def validated(arrival: Arrival) -> Arrival:
    """Read the payload into the subscription's model, once; a refusal stays on the record."""
    if arrival.refusal is not None or arrival.event is not None:
        return arrival
    assert arrival.envelope is not None
    assert arrival.subscription is not None
    try:
        return replace(
            arrival, event=arrival.subscription.decode(arrival.envelope.data, version=arrival.envelope.version)
        )
    except ContractError as refusal:
        return replace(arrival, refusal=refusal)
    except Exception as error:  # noqa: BLE001 - a validator of the author's, on a payload that nobody vouches for
        message = f"a validator of {arrival.subscription.type} raised {type(error).__name__}"
        return replace(arrival, refusal=ContractError("PR505", message))


# --- in the handler's transaction ---------------------------------------------------------------------------------


class Passage(StrEnum):
    """How far a message came in a transaction."""

    HANDLED = "handled"
    DUPLICATE = "duplicate"  # a mark stands: nothing was done
    STALE = "stale"  # marked dropped: its key has gone further
    KEPT = "kept"  # marked and kept elsewhere, or dropped: see the plan
    BUSY = "busy"  # another process has it open: roll back, try again later, uncharged


def handled(schema: str, consumer: Consumer[Any], arrival: Arrival, handler: Callable[[], Any]) -> Pipeline[Passage]:
    """Inbox claim, order guard, handler, and the end of the row of `work` where it came from one.

    Raises:
        ContractError: PR510, it may have been handled before its consumer's marks of that time expired; roll back.
        LeaseLost: the row is another worker's by now; roll back.
    """
    found = yield from _claimed(schema, consumer, arrival, mark=Mark.HANDLED, reason=None)
    if found is not None:
        return found
    if arrival.aged and arrival.row is None:
        yield from _within_window(schema, consumer, arrival)
    return (yield from passed(schema, consumer, arrival, handler))


def passed(schema: str, consumer: Consumer[Any], arrival: Arrival, handler: Callable[[], Any]) -> Pipeline[Passage]:
    """What follows the claim of the mark, which is ours: order guard, handler, end of the row of `work`.

    Raises:
        LeaseLost: the row is another worker's by now; roll back.
    """
    if consumer.order is not None and not (yield from _newest(schema, consumer, arrival)):
        assert arrival.message_key is not None
        yield from inbox.amend(schema, consumer.name, arrival.message_key, mark=Mark.DROPPED, reason=STALE)
        yield from _finished(schema, arrival, outcome="dropped", reason=STALE)
        return Passage.STALE
    yield Call(handler)
    yield from _finished(schema, arrival, outcome="handled", reason=None)
    return Passage.HANDLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What becomes of a message that was not handled: its mark, why, and when it is tried again."""

    mark: Mark
    verdict: Verdict
    run_in: timedelta = timedelta(0)


def planned(consumer: Consumer[Any], arrival: Arrival, verdict: Verdict, *, chance: float) -> Plan | None:
    """What to do about a failure; None means: give it back, uncharged. `chance` is a random number in [0, 1).

    An outcome that nobody knows is kept, never repeated blindly. Every way of trying again is bounded by the
    consumer's budget, ``Retry(after)`` too.
    """
    match verdict.failure:
        case FailureClass.DROP:
            return Plan(mark=Mark.DROPPED, verdict=verdict)
        case FailureClass.QUARANTINE | FailureClass.OUTCOME_UNKNOWN:
            return Plan(mark=Mark.QUARANTINED, verdict=verdict)
        case FailureClass.TRANSIENT:
            if consumer.retry.spent(arrival.attempt, age=arrival.age):
                return Plan(mark=Mark.QUARANTINED, verdict=_spent(verdict, arrival.attempt))
            wait = verdict.retry_after
            if wait is None:
                wait = consumer.retry.delay(arrival.attempt, chance=chance)
            return Plan(mark=Mark.DELAYED, verdict=verdict, run_in=max(wait, timedelta(0)))
        case _:
            return None


def exhausted(consumer: Consumer[Any], arrival: Arrival) -> Verdict | None:
    """Why a row is not run at all: its last allowed attempt ended without an answer, since its worker died in it."""
    row = arrival.row
    if row is None or row.attempt < consumer.retry.attempts:
        return None
    reason = f"the retry budget is spent after attempt {row.attempt}; its worker died in the last"
    return Verdict(
        failure=FailureClass.QUARANTINE, code="PR507", reason=reason, error_type="crash", fingerprint="crash"
    )


def kept(schema: str, consumer: Consumer[Any], arrival: Arrival, plan: Plan) -> Pipeline[Passage]:
    """Mark the message and keep it where `plan` says, both or neither; run it in a transaction of its own.

    Raises:
        LeaseLost: the row is another worker's by now; roll back.
    """
    if arrival.message_key is not None:
        found = yield from _claimed(schema, consumer, arrival, mark=plan.mark, reason=_noted(plan))
        if found is not None:
            return found
    yield from _put_away(schema, consumer, arrival, plan)
    return Passage.KEPT


def demoted(schema: str, consumer: Consumer[Any], arrival: Arrival, plan: Plan | None) -> Pipeline[None]:
    """The same where this transaction has marked the message as handled before its handler failed.

    Without a plan the mark is taken back: the message is to be given back, uncharged.
    """
    assert arrival.message_key is not None
    if plan is None:
        yield from inbox.forget(schema, consumer.name, [arrival.message_key])
        return
    reason = _noted(plan)
    yield from inbox.amend(schema, consumer.name, arrival.message_key, mark=plan.mark, reason=reason)
    yield from _put_away(schema, consumer, arrival, plan)


def _noted(plan: Plan) -> str | None:
    """What stands on the mark as its reason."""
    return plan.verdict.reason if plan.mark is Mark.DROPPED else plan.verdict.code or None


def _put_away(schema: str, consumer: Consumer[Any], arrival: Arrival, plan: Plan) -> Pipeline[None]:
    if plan.mark is Mark.DROPPED:
        yield from _finished(schema, arrival, outcome="dropped", reason=_noted(plan))
    elif arrival.row is not None:
        yield from _kept_again(schema, arrival.row, plan, attempt=arrival.attempt)
    else:
        yield from _kept_first(schema, consumer, arrival, plan)


def _claimed(
    schema: str, consumer: Consumer[Any], arrival: Arrival, *, mark: Mark, reason: str | None
) -> Pipeline[Passage | None]:
    assert arrival.message_key is not None
    found = yield from inbox.claim(
        schema, consumer.name, arrival.message_key, mark=mark, reason=reason, owned=arrival.row is not None
    )
    if found is Claim.DUPLICATE:
        yield from _finished(schema, arrival, outcome="duplicate", reason=None)
        return Passage.DUPLICATE
    return Passage.BUSY if found is Claim.BUSY else None


def _within_window(schema: str, consumer: Consumer[Any], arrival: Arrival) -> Pipeline[None]:
    recorded = arrival.recorded
    if recorded is not None and (yield from inbox.is_past(schema, consumer.name, recorded)):
        message = f"past window: consumer {consumer.name!r} no longer remembers whether it handled events of that time"
        raise ContractError("PR510", message)


def _newest(schema: str, consumer: Consumer[Any], arrival: Arrival) -> Pipeline[bool]:
    envelope = arrival.envelope
    assert envelope is not None
    assert envelope.key is not None
    assert envelope.sequence is not None
    return (yield from inbox.newest(schema, consumer.name, envelope.key, envelope.sequence))


def _finished(schema: str, arrival: Arrival, *, outcome: str, reason: str | None) -> Pipeline[None]:
    row = arrival.row
    if row is not None and not (yield from work.finish(schema, row.id, row.token, outcome=outcome, reason=reason)):
        raise _fenced(row)


def _kept_again(schema: str, row: ClaimedRow, plan: Plan, *, attempt: int) -> Pipeline[None]:
    if plan.mark is Mark.DELAYED:
        ours = yield from work.delay_again(
            schema, row.id, row.token, verdict=plan.verdict, attempt=attempt, run_in=plan.run_in
        )
    else:
        ours = yield from work.quarantine_claimed(schema, row.id, row.token, verdict=plan.verdict, attempt=attempt)
    if not ours:
        raise _fenced(row)


def _kept_first(schema: str, consumer: Consumer[Any], arrival: Arrival, plan: Plan) -> Pipeline[None]:
    key = None if arrival.message_key is None else str(arrival.message_key)
    if plan.mark is Mark.DELAYED:
        yield from work.delay(
            schema, queue=consumer.name, key=key, wire=arrival.wire, verdict=plan.verdict, attempt=arrival.attempt,
            run_in=plan.run_in,
        )  # fmt: skip
    else:
        yield from work.quarantine(
            schema, queue=consumer.name, key=key, wire=arrival.wire, verdict=plan.verdict, attempt=arrival.attempt
        )


def _fenced(row: ClaimedRow) -> LeaseLost:
    return LeaseLost("PR401", f"row {row.id} of work was claimed by another worker; this run changes nothing")


def _spent(verdict: Verdict, attempt: int) -> Verdict:
    last = f"{verdict.failure} {verdict.error_type}: {verdict.reason}"
    reason = f"the retry budget is spent after attempt {attempt}; last: {last}"
    return replace(verdict, failure=FailureClass.QUARANTINE, code="PR507", reason=reason, retry_after=None)


def _shown(text: str) -> str:
    """A name as it may be printed: what could be anything is not repeated."""
    return repr(text) if _TYPE.fullmatch(text) else "a name that is not one"


def _plain(text: str | None) -> str | None:
    return text if text is not None and _TYPE.fullmatch(text) else None
