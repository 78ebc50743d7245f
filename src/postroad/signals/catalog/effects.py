"""What happens to acts outside the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from postroad.signals.catalog.base import Level, Signal


@dataclass(frozen=True, slots=True)
class EffectMoved(Signal):
    """An effect is in `state` now: intended, sent, succeeded, rejected, unknown, reconciling, not_found or manual."""

    effect: str
    state: str


@dataclass(frozen=True, slots=True)
class EffectAnswered(Signal):
    """An owner was called and came back: done, refused, failed, timeout or nonsense. Nothing is committed yet."""

    effect: str
    result: str
    seconds: float


@dataclass(frozen=True, slots=True)
class EffectReturned(Signal):
    """An effect was asked for again, and its recorded outcome returned: nothing was called."""

    effect: str


@dataclass(frozen=True, slots=True)
class EffectLookedUp(Signal):
    """A look-up of an unknown outcome has its answer, which is committed: done, refused, absent, unknown or failed."""

    level: ClassVar[Level] = Level.INFO
    effect: str
    answer: str
    state: str


@dataclass(frozen=True, slots=True)
class EffectConflict(Signal):
    """A key was used with another request: nothing was called."""

    level: ClassVar[Level] = Level.ERROR
    effect: str


@dataclass(frozen=True, slots=True)
class EffectNeedsPerson(Signal):
    """Nothing can find out what became of an effect: a person decides (`postroad effects resolve`)."""

    level: ClassVar[Level] = Level.WARNING
    effect: str


@dataclass(frozen=True, slots=True)
class EffectsOpen(Signal):
    """Effects without an outcome: `(effect, state, count, age of the oldest in seconds)`."""

    open: tuple[tuple[str, str, int, float], ...]
