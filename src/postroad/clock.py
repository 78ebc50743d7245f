"""Time and new identifiers, handed to whoever needs them so that tests can move both."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol
from uuid import UUID


def seconds(count: float) -> timedelta:
    """A duration of `count` seconds."""
    return timedelta(seconds=count)


def minutes(count: float) -> timedelta:
    """A duration of `count` minutes."""
    return timedelta(minutes=count)


def hours(count: float) -> timedelta:
    """A duration of `count` hours."""
    return timedelta(hours=count)


class Clock(Protocol):
    """Where a room gets its time, its randomness for identifiers, and a clock that never steps."""

    def now(self) -> datetime:
        """The aware UTC time of day; it may step when the host's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow and count suspended time too, from an arbitrary start."""
        ...

    def new_id(self) -> UUID:
        """A new UUIDv7 (RFC 9562): unique, and ordered by time to the millisecond."""
        ...


def uuid7(unix_ms: int, random: bytes) -> UUID:
    """Build a UUIDv7 (RFC 9562, section 5.7) of a time in milliseconds and ten random bytes."""
    value = (unix_ms & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(random, "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=value)


class SystemClock:
    """The host's clock. Stateless, safe from any thread and after a fork."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See `Clock.monotonic`; CLOCK_BOOTTIME where the host has it, since CLOCK_MONOTONIC stops in suspend."""
        return time.clock_gettime(_STEADY)

    def new_id(self) -> UUID:
        """See `Clock.new_id`."""
        return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until it is moved; for tests, ours and users'."""

    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    steady: float = 0.0
    issued: int = field(default=0)

    def now(self) -> datetime:
        """See `Clock.now`."""
        return self.at

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self.steady

    def new_id(self) -> UUID:
        """See `Clock.new_id`; the random part is a counter, so that runs repeat."""
        self.issued += 1
        return uuid7(int(self.at.timestamp() * 1000), self.issued.to_bytes(10, "big"))

    def advance(self, by: timedelta) -> None:
        """Move both clocks forward by `by`."""
        self.at += by
        self.steady += by.total_seconds()


SYSTEM_CLOCK: Clock = SystemClock()
