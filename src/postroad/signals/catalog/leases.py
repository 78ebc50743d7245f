"""What happens to leases."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from postroad.signals.catalog.base import Level, Signal


class LossReason(StrEnum):
    """How a lease ended without its holder's wish."""

    EXPIRED = "expired"
    FENCED = "fenced"
    OVERTIME = "overtime"


@dataclass(frozen=True, slots=True)
class LeaseAcquired(Signal):
    """A lease was taken; `kind` is the part of its name before the colon."""

    kind: str
    name: str
    token: int


@dataclass(frozen=True, slots=True)
class LeaseReleased(Signal):
    """A lease was given up after its work had stopped."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class LeaseGone(Signal):
    """A lease was lost; whoever relied on it was told at once."""

    level: ClassVar[Level] = Level.WARNING
    kind: str
    name: str
    reason: LossReason


@dataclass(frozen=True, slots=True)
class LeasesRenewed(Signal):
    """A renewal round ended: `result` is ok, lost, late, locked (by a transaction under the lease) or error."""

    kind: str
    result: str
    count: int


@dataclass(frozen=True, slots=True)
class LateWriteRefused(Signal):
    """A write under a lost lease changed nothing: the fence held."""

    level: ClassVar[Level] = Level.WARNING
    room: str
    count: int
