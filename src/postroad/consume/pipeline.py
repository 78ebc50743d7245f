"""What a message does in a transaction: its mark, its handler, and where it is kept when it fails."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from postroad.consume import inbox, starts
from postroad.consume.inbox import Claim, Mark
from postroad.errors import ContractError, LeaseLost
from postroad.failures import FailureClass, Verdict, died, spent
from postroad.sql.statement import Call
from postroad.work import store as work

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.consume.arrival import Arrival
    from postroad.consume.consumer import Consumer
    from postroad.sql.statement import Pipeline
    from postroad.work.store import ClaimedRow

STALE: Final = "stale sequence"
ENTRUSTED: Final = Verdict(
    failure=FailureClass.SUCCESS, code="", reason="taken from the transport", error_type="", fingerprint=""
)
"""What the history of a row begins with that holds a first delivery."""


class Passage(StrEnum):
    """How far a message came in a transaction."""

    HANDLED = "handled"
    DUPLICATE = "duplicate"  # a mark stands: nothing was done
    STALE = "stale"  # marked dropped: its key has gone further
    KEPT = "kept"  # marked and kept elsewhere, or dropped: see the plan
    BUSY = "busy"  # another process has it open: roll back, try again later, uncharged


def handled(schema: str, consumer: Consumer[Any], arrival: Arrival, handler: Callable[[], Any]) -> Pipeline[Passage]:
    """Inbox claim, order guard, handler, and the end of the row of `work` where it came from one.

    An outcome answers the starts of a suspect.

    Raises:
        ContractError: PR510, it may have been handled before its consumer's marks of that time expired; roll back.
        LeaseLost: the row is another worker's by now; roll back.
    """
    found = yield from _claimed(schema, consumer, arrival, mark=Mark.HANDLED, reason=None)
    if found is not None:
        return found
    if arrival.aged and arrival.row is None and not arrival.rehandled:
        yield from _within_window(schema, consumer, arrival)
    passage = yield from passed(schema, consumer, arrival, handler)
    yield from _answered(schema, consumer, arrival)
    return passage


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
    if arrival.row is not None:  # On the way of every delivery: a generator is made only where it is needed.
        yield from _finished(schema, arrival, outcome="handled", reason=None)
    return Passage.HANDLED


def entrusted(schema: str, consumer: Consumer[Any], arrival: Arrival) -> Pipeline[Passage]:
    """Write a first delivery to `work`, due at once, where its consumer's effects run; its mark is that row's.

    Raises:
        ContractError: PR510, it may have been handled before its consumer's marks of that time expired; roll back.
    """
    found = yield from _claimed(schema, consumer, arrival, mark=Mark.DELAYED, reason=None)
    if found is not None:
        return found
    if arrival.aged and not arrival.rehandled:
        yield from _within_window(schema, consumer, arrival)
    yield from work.delay(
        schema, queue=consumer.name, key=str(arrival.message_key), wire=arrival.wire, verdict=ENTRUSTED, attempt=0,
        run_in=timedelta(0),
    )  # fmt: skip
    yield from _answered(schema, consumer, arrival)
    return Passage.KEPT


def still_open(schema: str, consumer: Consumer[Any], arrival: Arrival) -> Pipeline[Passage | None]:
    """Whether a row of `work` is to run at all; how far it came where it is not: its event was handled before.

    Raises:
        LeaseLost: the row is another worker's by now; roll back.
    """
    return (yield from _claimed(schema, consumer, arrival, mark=Mark.DELAYED, reason=None))


def outcome(schema: str, consumer: Consumer[Any], arrival: Arrival) -> Pipeline[None]:
    """Mark the event of a row of `work` as handled; commit it with the end of the row, whose owner alone may."""
    assert arrival.message_key is not None
    yield from inbox.amend(schema, consumer.name, arrival.message_key, mark=Mark.HANDLED, reason=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What becomes of a message that was not handled: its mark, why, and when it is tried again."""

    mark: Mark
    verdict: Verdict
    run_in: timedelta = timedelta(0)
    charged: bool = True


def planned(consumer: Consumer[Any], arrival: Arrival, verdict: Verdict, *, chance: float) -> Plan | None:
    """What to do about a failure; None means: give it back, uncharged. `chance` is a random number in [0, 1).

    An outcome that nobody knows is kept, never repeated blindly. Every way of trying again is bounded by the
    consumer's budget, ``Retry(after)`` too.
    """
    match verdict.failure:
        case FailureClass.DROP:
            return Plan(mark=Mark.DROPPED, verdict=verdict)
        case FailureClass.OUTCOME_UNKNOWN if verdict.retry_after is not None and arrival.row is not None:
            # The ledger of effects looks it up meanwhile.
            return Plan(mark=Mark.DELAYED, verdict=verdict, run_in=verdict.retry_after, charged=False)
        case FailureClass.QUARANTINE | FailureClass.OUTCOME_UNKNOWN:
            return Plan(mark=Mark.QUARANTINED, verdict=verdict)
        case FailureClass.TRANSIENT:
            if consumer.retry.spent(arrival.attempt, age=arrival.age):
                return Plan(mark=Mark.QUARANTINED, verdict=spent(verdict, arrival.attempt))
            wait = verdict.retry_after
            if wait is None:
                wait = consumer.retry.delay(arrival.attempt, chance=chance)
            return Plan(mark=Mark.DELAYED, verdict=verdict, run_in=_bounded(wait, consumer))
        case _:
            return None


def exhausted(consumer: Consumer[Any], arrival: Arrival) -> Verdict | None:
    """Why a row is not run at all: its last allowed attempt ended without an answer, since its worker died in it."""
    row = arrival.row
    if row is None or row.attempt < consumer.retry.attempts:
        return None
    return died(row.attempt)


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
    yield from _answered(schema, consumer, arrival)
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
        attempt = arrival.attempt if plan.charged else arrival.row.attempt
        yield from _kept_again(schema, arrival.row, plan, attempt=attempt)
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
        yield from _answered(schema, consumer, arrival)
        return Passage.DUPLICATE
    return Passage.BUSY if found is Claim.BUSY else None


def _answered(schema: str, consumer: Consumer[Any], arrival: Arrival) -> Pipeline[None]:
    if arrival.suspect:
        assert arrival.message_key is not None
        yield from starts.answered(schema, consumer.name, arrival.message_key)


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


def _bounded(wait: timedelta, consumer: Consumer[Any]) -> timedelta:
    """A wait longer than the budget's age would come to the same, and a date that no database holds to an error."""
    return min(max(wait, timedelta(0)), consumer.retry.max_age)
