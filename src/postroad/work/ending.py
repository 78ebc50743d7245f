"""What becomes of one attempt at a job: the pure decision, from what its function raised."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import LeaseHeld, PostroadError
from postroad.failures import Cancel, FailureClass, Rules, Snooze, Verdict, classify, died, spent

if TYPE_CHECKING:
    from postroad.retry import Backoff
    from postroad.work.job import Job
    from postroad.work.store import ClaimedRow

LIMIT: Final = "PR506"
"""The code of a function that exceeded its time limit."""
_FURTHEST: Final = timedelta(days=3650)
_NO_RULES: Final = Rules()


class Became(StrEnum):
    """How an attempt ended; of the first three the row is told as its outcome."""

    HANDLED = "handled"
    DROPPED = "dropped"
    CANCELLED = "cancelled"
    DELAYED = "delayed"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is to be written about an attempt. `attempt` is what the row counts from now on."""

    became: Became
    reason: str = ""
    verdict: Verdict | None = None
    attempt: int = 0
    run_in: timedelta = timedelta(0)


HANDLED: Final = Ending(became=Became.HANDLED)


def cancelled(reason: str) -> Ending:
    """It ends for good, because somebody said so."""
    return Ending(became=Became.CANCELLED, reason=reason or "cancelled")


def refused(error: PostroadError, row: ClaimedRow) -> Ending:
    """It can never run as it is."""
    verdict = classify(error, rules=_NO_RULES, attempt=row.attempt + 1)
    return Ending(became=Became.QUARANTINED, verdict=verdict, reason=verdict.reason, attempt=row.attempt)


def exhausted(row: ClaimedRow) -> Ending:
    """It is not run at all: its last allowed attempt ended without an answer."""
    verdict = died(row.attempt)
    return Ending(became=Became.QUARANTINED, verdict=verdict, reason=verdict.reason, attempt=row.attempt)


def failed(
    error: BaseException, *, job: Job[Any], row: ClaimedRow, chance: float, stopped: str | None = None,
    ours: bool = False, answers: bool = False,
) -> Ending:  # fmt: skip
    """What `error` of the job's function means; `chance` is a random number in [0, 1).

    `stopped` is the reason for which an operator has cancelled it: then whatever it raised ends it. `ours`: our
    database lost the connection of one of its transactions, so that nothing is charged. Snoozes, interruptions,
    names that others hold and dependencies that are down are never charged; all else is bounded by the job's budget.
    `answers`: the dependency that the failure speaks of is there, so that it is a failure like another.
    """
    if isinstance(error, Cancel):
        return cancelled(error.reason)
    if stopped is not None:
        return cancelled(stopped)
    if isinstance(error, Snooze):
        verdict = replace(classify(error, rules=_NO_RULES, attempt=1), failure=FailureClass.INTERRUPTED)
        reason = error.reason or "snoozed"
        return _delayed(row, replace(verdict, reason=reason), run_in=error.after)
    if isinstance(error, LeaseHeld) and not any(isinstance(error, kind) for kind in job.rules.kinds):
        return _waits(error, retry=job.retry, row=row, chance=chance)
    attempt = row.attempt + 1
    verdict = classify(error, rules=job.rules, attempt=attempt)
    if isinstance(error, PostroadError) and error.code == LIMIT:
        verdict = replace(verdict, failure=FailureClass.TRANSIENT, code=LIMIT, reason=str(error))
    if answers and verdict.dependency is not None:
        verdict = replace(verdict, failure=FailureClass.TRANSIENT)
    if ours and verdict.connection_lost:
        verdict = replace(verdict, failure=FailureClass.INTERRUPTED)
    return _judged(verdict, retry=job.retry, row=row, attempt=attempt, chance=chance)


def _waits(error: LeaseHeld, *, retry: Backoff, row: ClaimedRow, chance: float) -> Ending:
    """Another has the name: nothing that the job did wrong, so that only its age bounds the waiting."""
    verdict = replace(classify(error, rules=_NO_RULES, attempt=1), code=error.code, reason=str(error))
    if row.age >= retry.max_age:
        last = spent(verdict, row.attempt)
        return Ending(became=Became.QUARANTINED, reason=last.reason, verdict=last, attempt=row.attempt)
    wait = retry.delay(row.attempt + 1, chance=chance)
    return _delayed(row, replace(verdict, failure=FailureClass.INTERRUPTED), run_in=wait)


def _judged(verdict: Verdict, *, retry: Backoff, row: ClaimedRow, attempt: int, chance: float) -> Ending:
    match verdict.failure:
        case FailureClass.DROP:
            return Ending(became=Became.DROPPED, reason=verdict.reason, verdict=verdict)
        case FailureClass.OUTCOME_UNKNOWN if verdict.retry_after is not None:  # The ledger looks it up.
            return _delayed(row, verdict, run_in=verdict.retry_after)
        case FailureClass.QUARANTINE | FailureClass.OUTCOME_UNKNOWN:
            return Ending(became=Became.QUARANTINED, reason=verdict.reason, verdict=verdict, attempt=attempt)
        case FailureClass.TRANSIENT:
            if retry.spent(attempt, age=row.age):
                last = spent(verdict, attempt)
                return Ending(became=Became.QUARANTINED, reason=last.reason, verdict=last, attempt=attempt)
            wait = verdict.retry_after
            wait = retry.delay(attempt, chance=chance) if wait is None else min(wait, retry.max_age)
            return _delayed(row, verdict, run_in=wait, attempt=attempt)
        case _:
            return _delayed(row, verdict, run_in=retry.delay(attempt, chance=chance))


def _delayed(row: ClaimedRow, verdict: Verdict, *, run_in: timedelta, attempt: int | None = None) -> Ending:
    return Ending(
        became=Became.DELAYED, reason=verdict.reason, verdict=verdict, run_in=min(run_in, _FURTHEST),
        attempt=row.attempt if attempt is None else attempt,
    )  # fmt: skip
