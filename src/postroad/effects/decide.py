"""The state chart of an effect: what may follow what, as pure decisions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import minutes, seconds
from postroad.effects.outcome import Absent, Done, Found, Outcome, Refused, is_outcome

if TYPE_CHECKING:
    from postroad.effects.effect import Effect
    from postroad.effects.outcome import LookedUp
    from postroad.effects.store import Entry

AGAIN: Final = seconds(30)
"""How long a run waits at most for an outcome before it asks again; most often it is woken before that."""
AGAIN_MANUAL: Final = minutes(10)
"""The same where a person has to decide."""
_AFTER_SETTLING: Final = seconds(0.05)


class State(StrEnum):
    """What is known of an effect."""

    INTENDED = "intended"  # committed before any byte leaves
    SENT = "sent"  # committed immediately before the call
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    RECONCILING = "reconciling"  # a look-up is in progress
    NOT_FOUND = "not_found"  # a look-up proved that nothing happened: it may be sent again
    MANUAL = "manual"  # only a person can tell


class Move(StrEnum):
    """What a run may do about an effect that it asks for."""

    SEND = "send"
    REPEAT = "repeat"  # the same request under the same provider key, as its look-up
    DOUBT = "doubt"  # its sender is gone: the outcome is unknown
    RETURN = "return"
    WAIT = "wait"
    CONFLICT = "conflict"


def move(effect: Effect[Any], entry: Entry, fingerprint: str, *, token: int) -> Move:
    """What a run does that asks for `effect` under its claim's `token`, and found `entry`."""
    if entry.fingerprint != fingerprint:
        return Move.CONFLICT
    if entry.state in {State.SUCCEEDED, State.REJECTED}:
        return Move.RETURN
    if entry.state is State.SENT and not entry.alive:
        return Move.DOUBT
    if entry.state is State.UNKNOWN and not effect.can_look_up and in_window(effect, entry):
        return Move.REPEAT
    # The intent of one that lives is left alone: two that adopt from each other get nowhere.
    intended = entry.state is State.INTENDED and (entry.token == token or not entry.alive)
    return Move.SEND if intended or entry.state is State.NOT_FOUND else Move.WAIT


def in_window(effect: Effect[Any], entry: Entry) -> bool:
    """Whether the provider still remembers the provider key, and will for as long as one call takes."""
    return entry.remembered is not None and entry.remembered > effect.timeout


def outcome_of(entry: Entry) -> Outcome:
    """The recorded outcome."""
    return Done(entry.outcome or "") if entry.state is State.SUCCEEDED else Refused(entry.outcome or "")


def doubtful(effect: Effect[Any]) -> State:
    """What an outcome that nobody knows leads to: a look-up of some kind, or a person."""
    return State.UNKNOWN if effect.can_look_up or effect.key_window is not None else State.MANUAL


def patience(state: State) -> timedelta:
    """How long a run waits before it asks again."""
    return AGAIN_MANUAL if state is State.MANUAL else AGAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a look-up came to: the next state, and for one that stays unknown when to look again."""

    state: State
    answer: str
    outcome: str | None = None
    reason: str | None = None
    absences: int = 0
    next_in: timedelta = timedelta(0)


def concluded(effect: Effect[Any], entry: Entry, answer: LookedUp | None, *, chance: float) -> Conclusion:
    """What `answer` means for what was `entry` when the look-up began; None is a look-up that failed.

    An absence proves nothing while the request may still be on its way, nor once the provider may have forgotten the
    key; before it is believed, as many look-ups in a row must agree as the effect asks for.
    """
    if isinstance(answer, Found) and is_outcome(answer.outcome):
        if isinstance(answer.outcome, Done):
            return Conclusion(state=State.SUCCEEDED, answer="done", outcome=answer.outcome.ref)
        return Conclusion(state=State.REJECTED, answer="refused", outcome=answer.outcome.code)
    if answer is Absent or isinstance(answer, Absent):
        return _absent(effect, entry, chance=chance)
    wait = effect.looks.delay(entry.looks + 1, chance=chance)
    said = "failed" if answer is None else "unknown"
    return Conclusion(state=State.UNKNOWN, answer=said, reason=entry.reason, next_in=wait)


def _absent(effect: Effect[Any], entry: Entry, *, chance: float) -> Conclusion:
    if effect.key_window is not None and not in_window(effect, entry):
        reason = "not found, but the provider may have forgotten the key by now"
        return Conclusion(state=State.MANUAL, answer="absent", reason=reason)
    if entry.settles_in > timedelta(0):
        wait = min(effect.looks.delay(entry.looks + 1, chance=chance), entry.settles_in + _AFTER_SETTLING)
        return Conclusion(state=State.UNKNOWN, answer="absent", reason=entry.reason, next_in=wait)
    if entry.absences + 1 < effect.answers:
        wait, count = effect.looks.delay(1, chance=chance), entry.absences + 1
        return Conclusion(
            state=State.UNKNOWN, answer="absent", reason=entry.reason, absences=count, next_in=wait
        )  # fmt: skip
    return Conclusion(state=State.NOT_FOUND, answer="absent")
