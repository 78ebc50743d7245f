"""How the dispatcher paces itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from postroad.clock import minutes, seconds
from postroad.errors import UsageError
from postroad.retry import Backoff

_REFUSED: Final = Backoff(first=seconds(1), most=minutes(5))


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """Bounds and periods of one dispatcher; the defaults suit production, tests shorten them."""

    window: int = 4000
    """Rows that may be with the broker, unconfirmed, at once; a quarter of them of one route."""
    window_bytes: int = 8 * 1024 * 1024
    """Bytes of them; a quarter of them of one route."""
    page: int = 1000
    """Rows per read, and per delete while there is much to do."""
    shard_ttl: timedelta = seconds(10)
    """How long a dispatcher that died keeps its shards."""
    balance: timedelta = seconds(1)
    """How often shards are shared out anew, at the latest; up to twice as often, at random."""
    busy: timedelta = timedelta(milliseconds=20)
    """The pause after a read that found something."""
    idle: timedelta = timedelta(milliseconds=250)
    """What the pause grows to while nothing is found."""
    linger: timedelta = timedelta(milliseconds=50)
    """How long confirmed rows wait for others to be deleted with; not at all once nothing is unconfirmed."""
    unknown_pause: timedelta = timedelta(milliseconds=200)
    """How long rows whose fate nobody knows wait before they go again."""
    retry_check: timedelta = timedelta(milliseconds=250)
    """How often refused rows whose wait may be over are looked for, where there are any."""
    sweep: timedelta = minutes(1)
    """How often everything below the floor is looked through: the backstop."""
    gauge: timedelta = seconds(5)
    """How often the state of the outbox is measured, by the holder of the first shard."""
    full: timedelta = timedelta(milliseconds=100)
    """How long nothing of a route may be answered while its limit stops others, until it is passed over."""
    silent: timedelta = timedelta(milliseconds=250)
    """How long nothing of it may be answered while younger publishes of other routes are, until it is passed over."""
    refused: Backoff = _REFUSED
    """The waits of rows that the broker returned or refused, and of the probes of their route; they are never given
    up, only ever later."""

    def __post_init__(self) -> None:
        """Refuse what could not work.

        Raises:
            UsageError: a bound is not positive, or a page is larger than the window.
        """
        if not 0 < self.page <= self.window or self.window_bytes < 1:
            raise UsageError("PR107", f"{self!r} cannot work: 0 < page <= window, window_bytes from 1")
