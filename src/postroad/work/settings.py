"""The times that the work room keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from postroad.clock import minutes, seconds
from postroad.retry import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """How often the claimer looks, and how long it trusts; tests shorten them.

    A dead worker's rows are taken over within `lease` plus `sweep`. `repair` is the period in which rows that are
    ours in the table but not in hand (a claim whose answer was lost, a handler that could not settle) are given back.
    A suspect keeps the other jobs of its queue waiting for `isolation` at most, and waits for them no longer.
    `backoff` spaces runs of a row whose handler broke unexpectedly; `let_go` bounds what is done once the grace
    period is over.
    """

    lease: timedelta = seconds(30)
    busy: timedelta = timedelta(milliseconds=20)
    idle: timedelta = timedelta(milliseconds=250)
    rescan: timedelta = seconds(1)
    sweep: timedelta = seconds(1)
    repair: timedelta = seconds(2)
    gauges: timedelta = seconds(15)
    let_go: timedelta = seconds(2)
    isolation: timedelta = seconds(5)
    backoff: Backoff = field(default_factory=lambda: Backoff(first=seconds(2), most=minutes(10)))
