"""The faults of a soak: which there are, and when each is due, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    """What is done to the road; the names are those of the report."""

    CONSUMER_KILL = "consumer_kill"
    DISPATCHER_KILL = "dispatcher_kill"
    CONSUMER_PAUSE = "consumer_pause"  # SIGSTOP beyond its leases, then SIGCONT
    DISPATCHER_PAUSE = "dispatcher_pause"
    BROKER_KILL = "broker_kill"
    BROKER_RESTART = "broker_restart"
    BROKER_LINE_CUT = "broker_line_cut"
    BROKER_LINE_STALL = "broker_line_stall"  # half-open: nothing passes, nothing is closed
    DATABASE_RESTART = "database_restart"
    DATABASE_KILL = "database_kill"
    SESSIONS_DROPPED = "sessions_dropped"
    CLOCK_STEP = "clock_step"  # the time of day of a consumer and a dispatcher, by an hour and back
    QUEUE_FULL = "queue_full"
    SLOW_CONSUMER = "slow_consumer"


LONGEST: Final = 6.0
"""Seconds that a fault with a duration lasts at most."""

_GAP: Final = (2.0, 8.0)


@dataclass(frozen=True, slots=True)
class Due:
    """A fault, when it is dealt (seconds from the start), for how long, and which of several victims it takes."""

    at: float
    fault: Fault
    lasts: float
    victim: int


def drawn(seed: int, *, lasts: float) -> list[Due]:
    """The faults of a soak of so many seconds: the same for the same seed, every kind before any comes again."""
    chance = random.Random(seed)
    plan: list[Due] = []
    bag: list[Fault] = []
    at = chance.uniform(*_GAP)
    while at < lasts:
        bag = bag or chance.sample([*Fault], len(Fault))
        due = Due(round(at, 2), bag.pop(), round(chance.uniform(1.0, LONGEST), 2), chance.randrange(1000))
        plan.append(due)
        at += due.lasts + chance.uniform(*_GAP)
    return plan
