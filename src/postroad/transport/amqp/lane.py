"""One channel in confirm mode: what was written on it, and what the broker has answered of that."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from pika import exceptions, spec

from postroad.clock import Clock, seconds
from postroad.retry import full_jitter
from postroad.signals.catalog import ChannelClosed
from postroad.transport.amqp import faults
from postroad.transport.amqp.wire import MARK, PublishEncoder
from postroad.transport.base import Outgoing, Settled, Settlement

if TYPE_CHECKING:
    from postroad.signals import Signals
    from postroad.transport.amqp.connection import AmqpSettings, CoalescedConnection

ROLE: Final = "publish"
SOONER: Final = 20
"""How much sooner than the time limit it is judged that one queue hangs and the whole connection with it."""


class Lane:
    """Writes publishes on one channel, replaces it when it closes, and settles what was written; on one loop.

    When the broker closes the channel over one publish, no tag names the culprit: all that was outstanding is
    UNKNOWN, and until as many publishes have been answered they go out one at a time, so that the culprit stands
    alone when it comes again, and is REFUSED.
    """

    def __init__(
        self,
        *,
        settings: AmqpSettings,
        signals: Signals,
        clock: Clock,
        chance: Callable[[], float],
        user_id: str | None,
        settle: Callable[[Iterable[Settled]], None],
        changed: Callable[[], None],
    ) -> None:
        """`settle` hears outcomes; `changed` hears that the channel came or went."""
        self._settings = settings
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._user_id = user_id
        self._settle = settle
        self._changed = changed
        self._connection: CoalescedConnection | None = None
        self._channel: Any = None
        self._encoder: PublishEncoder | None = None
        self._waiting: deque[Outgoing] = deque()
        self._outstanding: dict[int, int] = {}  # Number on this channel (the delivery tag) to ticket, in order.
        self._returned: dict[int, tuple[int, str]] = {}
        self._sent: deque[tuple[int, float]] = deque()  # Last number of a batch, and when it was written.
        self._generation = 0
        self._number = 0
        self._lowest = 1
        self._highest = 0  # The highest number that was answered, and when the last answer came.
        self._answered_at = 0.0
        self._cautious = 0
        self._failures = 0
        self._opening_since = 0.0
        self._heard = (0, 0.0)  # How many bytes had come on the connection, and when that number was new.

    @property
    def ready(self) -> bool:
        """Whether the channel stands."""
        return self._channel is not None

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is unanswered."""
        return not self._waiting and not self._outstanding

    @property
    def cautious(self) -> bool:
        """Whether publishes go out one at a time, to find the one that makes the broker close the channel."""
        return self._cautious > 0

    # --- the channel --------------------------------------------------------------------------------------------

    def open(self, connection: CoalescedConnection | None) -> None:
        """Open a channel on `connection`; None is none, until the next call."""
        self._connection = connection
        self._heard = (-1, self._clock.monotonic())
        self._open()

    def lose(self, reason: str) -> None:
        """The connection is gone: nothing on it will be answered."""
        self._connection = None
        self._abandon(reason)
        waiting, self._waiting = self._waiting, deque()
        self._settle(Settled(message.ticket, Settlement.UNKNOWN, reason) for message in waiting)

    def close(self) -> None:
        """Close for good; for one that is idle."""
        channel, self._channel, self._connection = self._channel, None, None
        if channel is not None and channel.is_open:
            channel.close()

    def unblocked(self) -> None:
        """While the broker blocked us no time has counted."""
        now = self._clock.monotonic()
        self._sent = deque((last, now) for last, _ in self._sent)
        self._opening_since = self._answered_at = now

    def _open(self) -> None:
        if self._connection is None or not self._connection.is_open:
            return
        self._opening_since = self._clock.monotonic()
        self._connection.channel(on_open_callback=self._opened)

    def _opened(self, channel: Any) -> None:
        channel.add_on_close_callback(self._closed)
        channel.add_on_return_callback(self._returns)
        channel.confirm_delivery(self._confirm, callback=lambda _frame: self._ready(channel))

    def _ready(self, channel: Any) -> None:
        if self._connection is None or channel.connection is not self._connection:
            if channel.is_open:
                channel.close()  # We were closed while it opened.
            return
        self._channel = channel
        self._encoder = PublishEncoder(
            channel.channel_number, frame_max=self._connection.params.frame_max, user_id=self._user_id
        )
        self._generation += 1
        self._number, self._lowest, self._highest = 0, 1, 0
        self._answered_at = self._clock.monotonic()
        self._changed()
        self.send()

    def _closed(self, channel: Any, error: BaseException) -> None:
        if channel is not self._channel and self._channel is not None:
            return  # One that we replaced.
        if not isinstance(error, exceptions.ChannelClosedByBroker):
            return  # Ours, or the connection's end, of which we are told as well.
        code, text = error.reply_code, faults.shorten(error.reply_text)
        self._signals.emit(ChannelClosed(ROLE, code, text))
        count = len(self._outstanding)
        if count == 1 and code in faults.MESSAGE_FAULTS:
            self._abandon(text, settlement=Settlement.REFUSED, code=code)
            self._cautious = max(self._cautious - 1, 0)
        else:
            self._abandon(text, code=code)
            self._cautious = max(self._cautious, count)
        self._changed()
        self._failures = 0 if count else self._failures + 1
        if count:
            self._open()
        else:
            wait = full_jitter(
                self._failures, first=self._settings.first, most=self._settings.most, chance=self._chance()
            )
            asyncio.get_running_loop().call_later(wait.total_seconds(), self._open)

    def _abandon(self, reason: str, *, settlement: Settlement = Settlement.UNKNOWN, code: int = 0) -> None:
        """Settle everything outstanding alike and forget the channel."""
        self._channel = None
        outstanding, self._outstanding = self._outstanding, {}
        self._returned.clear()
        self._sent.clear()
        self._settle(Settled(ticket, settlement, reason, code) for ticket in outstanding.values())

    # --- time limits --------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Act where the broker owes an answer for too long; called now and then, but not while it blocks us.

        What is overdue is settled so, and the channel replaced. A queue that hangs can also make the broker stop
        reading from the whole connection (its flow control): then what was written after it is not answered at all,
        and the connection is dropped, long before the limit. Where heartbeats fail to come as well, it is the
        connection that leads nowhere: it is dropped, and nothing is held against what was written on it.
        """
        connection = self._connection
        if connection is None:
            return
        now, limit = self._clock.monotonic(), self._settings.confirm_within.total_seconds()
        if connection.bytes_received != self._heard[0]:
            self._heard = (connection.bytes_received, now)
        if self._channel is None:
            if self._opening_since < now - limit:
                connection.abort()
            return
        lowest = next(iter(self._outstanding), self._number + 1)
        while self._sent and self._sent[0][0] < lowest:
            self._sent.popleft()
        if not self._sent:
            return
        if self._sent[0][1] < now - limit and self._is_deaf(now):
            connection.abort()
        elif self._sent[0][1] < now - limit:
            self._overdue(self._last_before(now - limit))
            self._replace()
        elif self._stalled(lowest, now - limit / SOONER):
            self._overdue(min(self._highest, self._last_before(now - limit / SOONER)))
            connection.abort()

    def _is_deaf(self, now: float) -> bool:
        """Whether nothing has come for a whole heartbeat, in which the broker sends two frames at least."""
        return self._heard[1] < now - self._settings.heartbeat.total_seconds()

    def _stalled(self, lowest: int, since: float) -> bool:
        """Whether one queue hangs and the whole connection with it: later ones were answered, and none any more."""
        return lowest < self._highest < self._number and self._answered_at < since and self._sent[0][1] < since

    def _last_before(self, moment: float) -> int:
        return max((last for last, at in self._sent if at < moment), default=0)

    def _overdue(self, last: int) -> None:
        reason = f"no answer within {self._settings.confirm_within / seconds(1):g} s; a queue of its route may hang"
        late = [number for number in self._outstanding if number <= last]
        self._settle([Settled(self._outstanding.pop(number), Settlement.OVERDUE, reason) for number in late])

    def _replace(self) -> None:
        channel = self._channel
        self._abandon(f"no answer within {self._settings.confirm_within / seconds(1):g} s")
        self._changed()
        if channel.is_open:
            channel.close()
        self._open()

    # --- publishes and their answers ----------------------------------------------------------------------------

    def add(self, messages: Iterable[Outgoing]) -> None:
        """Take publishes to write; `send` writes them."""
        self._waiting.extend(messages)

    def send(self) -> None:
        """Write what waits: all of it, or while searching for a culprit one at a time."""
        if self._channel is None or not self._waiting:
            return
        if not self._cautious:
            messages: Iterable[Outgoing] = self._waiting
            self._waiting = deque()
            self._write(messages)
        else:
            while self._waiting and not self._outstanding:  # One that cannot be encoded is settled, and leaves room.
                self._write((self._waiting.popleft(),))

    def _write(self, messages: Iterable[Outgoing]) -> None:
        connection, encoder = self._connection, self._encoder
        if connection is None or encoder is None:  # Never: for the type checker.
            return
        prefix = f"{self._generation}-"
        outstanding, number = self._outstanding, self._number
        for message in messages:
            try:
                frames = encoder.encode(message, f"{prefix}{number + 1}")
            except (exceptions.AMQPError, ValueError, TypeError, struct.error) as error:
                self._refuse(message, error)
                continue
            number += 1
            outstanding[number] = message.ticket
            connection.emit(frames)
        if number != self._number:
            self._number = number
            self._sent.append((number, self._clock.monotonic()))

    def _refuse(self, message: Outgoing, error: Exception) -> None:
        reason = f"the publish cannot be put into AMQP frames ({type(error).__name__})"
        self._cautious = max(self._cautious - 1, 0)
        self._settle([Settled(message.ticket, Settlement.REFUSED, reason)])

    def _returns(self, channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        if channel is not self._channel:
            return
        generation, _, number = str((properties.headers or {}).get(MARK)).partition("-")
        if generation == str(self._generation) and number.isdecimal():
            reason = f"{method.reply_text}: no queue is bound for {method.routing_key!r} on {method.exchange!r}"
            self._returned[int(number)] = (method.reply_code, faults.shorten(reason))

    def _confirm(self, frame: Any) -> None:
        method = frame.method
        last: int = method.delivery_tag
        if frame.channel_number != getattr(self._channel, "channel_number", None):
            return  # A late answer on a channel that we replaced.
        if method.multiple:
            numbers: Iterable[int] = range(self._lowest, last + 1)
            self._lowest = last + 1
        else:
            numbers = (last,)
        refused = isinstance(method, spec.Basic.Nack)
        settled: list[Settled] = []
        take = self._outstanding.pop
        for number in numbers:
            ticket = take(number, None)
            if ticket is not None:
                settled.append(self._outcome(number, ticket, refused=refused))
        self._settle(settled)
        self._highest = max(self._highest, last)
        self._answered_at = self._clock.monotonic()
        if self._cautious:
            self._cautious = max(self._cautious - len(settled), 0)
        if self._waiting:
            self.send()

    def _outcome(self, number: int, ticket: int, *, refused: bool) -> Settled:
        if refused:
            self._returned.pop(number, None)
            return Settled(ticket, Settlement.NACKED, "a queue refused it: full, or its process failed")
        if self._returned:
            returned = self._returned.pop(number, None)
            if returned is not None:
                return Settled(ticket, Settlement.RETURNED, returned[1], returned[0])
        return Settled(ticket, Settlement.CONFIRMED)
