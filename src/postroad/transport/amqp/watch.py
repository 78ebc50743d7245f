"""The watchdog of one consumer: whether the broker knows of it, and how many messages wait in its queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from postroad.signals.catalog import QueueDepth

if TYPE_CHECKING:
    from datetime import timedelta

    from postroad.signals import Signals


class Watch:
    """Looks at a queue from time to time, by a passive declare on the consumer's own channel.

    The broker counts a queue's consumers and does not name them. That it counts none, twice in a row, while ours
    stands means that ours is gone and nobody told us: it is `missing`. With consumers of other processes on the queue
    it tells nothing of ours, but then somebody consumes.
    """

    def __init__(self, queue: str, *, every: timedelta, signals: Signals, missing: Callable[[], None]) -> None:
        """Nobody to watch yet; `missing` is called on the transport's loop."""
        self._queue = queue
        self._every = every.total_seconds()
        self._signals = signals
        self._missing = missing
        self._channel: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._none_before = False

    def begin(self, channel: Any) -> None:
        """A consumer stands on `channel`."""
        self.end()
        self._channel = channel
        self._again()

    def end(self) -> None:
        """It stands no more, and we know."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._channel = None
        self._none_before = False

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every, self._look)

    def _look(self) -> None:
        channel = self._channel
        if channel.is_open:  # Otherwise its end is being told.
            channel.queue_declare(self._queue, passive=True, callback=lambda frame: self._seen(channel, frame.method))

    def _seen(self, channel: Any, queue: Any) -> None:
        if channel is not self._channel:
            return
        self._signals.emit(QueueDepth(self._queue, queue.message_count))
        none, before = queue.consumer_count == 0, self._none_before
        self._none_before = none
        if none and before:
            self._missing()
        else:
            self._again()
