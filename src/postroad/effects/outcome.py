"""What an owner of effects is asked, and what it may answer."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias, TypeGuard, TypeVar

C_contra = TypeVar("C_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Done:
    """The provider has acted; `ref` is its name for that: kept, and returned whenever the effect is asked for again."""

    ref: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The provider has definitely refused, and nothing happened; `code` is its reason, kept and returned like a ref."""

    code: str


Outcome: TypeAlias = Done | Refused
"""What became of an effect, for good."""


def is_outcome(answer: object) -> TypeGuard[Outcome]:
    """Whether an owner's answer can be kept: untyped code may hand over anything, a number for a ref, too."""
    match answer:
        case Done(ref=str()) | Refused(code=str()):
            return True
        case _:
            return False


@dataclass(frozen=True, slots=True)
class Found:
    """The look-up knows: the provider did act, or did refuse."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Absent:
    """The look-up knows: nothing of it ever reached the provider."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The look-up does not know; it is asked again later. What a look-up raises means the same."""


LookedUp: TypeAlias = Found | Absent | Unknown | type[Absent] | type[Unknown]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectAttempt:
    """What an owner is told beside the command.

    `provider_key` is the idempotency key to send along: the same in every attempt, whatever crashes. `number` counts
    the times that the request was sent, from 1. `sent_at` is when it was sent last, by the database's clock.
    """

    effect: str
    key: str
    provider_key: str
    number: int
    sent_at: datetime


class Owner(Protocol[C_contra]):
    """Acts at a provider; an App's ``lifespan`` yields the live one. Both methods may be ``async def`` or ``def``.

    It may also have ``look_up(command, attempt)``, which returns `Found`, `Absent` or `Unknown` and changes nothing.
    Without it a person decides about each outcome that nobody knows.
    """

    def perform(self, command: C_contra, attempt: EffectAttempt, /) -> Awaitable[Outcome] | Outcome:
        """Act once, and say what came of it; whatever else it returns or raises, and any time-out, is unknown."""
        ...
