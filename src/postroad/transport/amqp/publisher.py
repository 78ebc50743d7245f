"""Publishes with confirms: every one that was handed over is settled once, whatever happens to the broker."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pika import exceptions, spec

from postroad.clock import Clock, seconds
from postroad.retry import full_jitter
from postroad.signals.catalog import ChannelClosed
from postroad.transport.amqp import faults
from postroad.transport.amqp.handover import Bell, post
from postroad.transport.amqp.wire import MARK, PublishEncoder
from postroad.transport.base import Outgoing, Settled, Settlement

if TYPE_CHECKING:
    from postroad.signals import Signals
    from postroad.transport.amqp.connection import AmqpSettings, CoalescedConnection

ROLE: Final = "publish"
_AWAY: Final = "the broker is away"
_LOOKS: Final = 10  # How often in a time limit the oldest unanswered publish is looked at.


class AmqpPublisher:
    """Implements `Publisher` on one channel in confirm mode; made on the caller's loop, works on the transport's.

    A return comes before its ack and names no publish but by our header; the ack of a returned publish settles it
    RETURNED. When the broker closes the channel over one publish (404, 403, 406), no tag names the culprit: all that
    was outstanding is settled UNKNOWN, and until as many publishes have been answered they go out one at a time, so
    that the culprit stands alone when it comes again, and is settled REFUSED. A confirm that is overdue makes
    everything on its channel UNKNOWN and replaces the channel; while the broker blocks us no time counts.
    """

    def __init__(
        self,
        *,
        caller: asyncio.AbstractEventLoop,
        settings: AmqpSettings,
        signals: Signals,
        clock: Clock,
        chance: Callable[[], float],
        user_id: str | None,
        changed: Callable[[], None],
    ) -> None:
        self._caller = caller
        self._settings = settings
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._user_id = user_id
        self._changed = changed
        self._hear_settled: Callable[[Sequence[Settled]], None] | None = None
        self._hear_writable: Callable[[], None] | None = None
        self._writable = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handed: deque[Sequence[Outgoing]] = deque()
        self._bell = Bell(self._collect)
        self._settled: list[Settled] = []
        # From here on only the transport's loop looks.
        self._connection: CoalescedConnection | None = None
        self._channel: Any = None
        self._encoder: PublishEncoder | None = None
        self._blocked = False
        self._waiting: deque[Outgoing] = deque()
        self._outstanding: dict[int, int] = {}  # Number on this channel (the delivery tag) to ticket.
        self._returned: dict[int, tuple[int, str]] = {}
        self._sent: deque[tuple[int, float]] = deque()  # Last number of a batch, and when it was written.
        self._generation = 0
        self._number = 0
        self._lowest = 1
        self._cautious = 0
        self._failures = 0
        self._opening_since = 0.0
        self._look: asyncio.TimerHandle | None = None

    # --- on the caller's loop -----------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """See `Publisher.writable`."""
        return self._writable

    @property
    def cautious(self) -> bool:
        """Whether publishes go out one at a time now, to find the one that makes the broker close the channel."""
        return self._cautious > 0

    def publish(self, batch: Sequence[Outgoing]) -> None:
        """See `Publisher.publish`. While the connection is away the batch is settled UNKNOWN at once."""
        if self._loop is None:
            settled = [Settled(message.ticket, Settlement.UNKNOWN, _AWAY) for message in batch]
            self._caller.call_soon(self._tell, settled)
            return
        self._handed.append(batch)
        self._bell.ring(self._loop)

    def on_settled(self, hear: Callable[[Sequence[Settled]], None]) -> None:
        """See `Publisher.on_settled`; the last one who asks hears."""
        self._hear_settled = hear

    def on_writable(self, hear: Callable[[], None]) -> None:
        """See `Publisher.on_writable`; the last one who asks hears."""
        self._hear_writable = hear

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The transport's thread runs, with this loop."""
        self._loop = loop

    def detach(self) -> None:
        """The transport's thread has ended: whatever it left is settled UNKNOWN."""
        self._loop = None
        self._bell.reset()
        for batch in self._handed:
            self._waiting.extend(batch)
        self._handed.clear()
        self._connection = None
        self._abandon(_AWAY)
        self._settle_waiting(_AWAY)
        settled, self._settled = self._settled, []
        self._tell(settled)
        self._report_writable()

    def _tell(self, settled: Sequence[Settled]) -> None:
        if settled and self._hear_settled is not None:
            self._hear_settled(settled)

    def _tell_writable(self) -> None:
        if self._hear_writable is not None:
            self._hear_writable()

    # --- on the transport's loop: connection and channel -----------------------------------------------------------

    def connected(self, connection: CoalescedConnection) -> None:
        """The publishing connection stands."""
        self._connection = connection
        self._blocked = False
        self._open()
        self._watch()

    def disconnected(self, reason: str) -> None:
        """The publishing connection is gone: nothing on it will be answered."""
        self._connection = None
        if self._look is not None:
            self._look.cancel()
        self._abandon(reason)
        self._settle_waiting(reason)
        self._report_writable()

    def blocked(self, *, blocked: bool) -> None:
        """The broker stopped (or went on) reading from this connection."""
        self._blocked = blocked
        now = self._clock.monotonic()
        self._sent = deque((last, now) for last, _ in self._sent)
        self._opening_since = now
        self._report_writable()

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
            return
        self._channel = channel
        self._encoder = PublishEncoder(
            channel.channel_number, frame_max=self._connection.params.frame_max, user_id=self._user_id
        )
        self._generation += 1
        self._number, self._lowest = 0, 1
        self._report_writable()
        self._send()

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
        self._report_writable()
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

    def _watch(self) -> None:
        """Look now and then whether the broker owes an answer for too long."""
        if self._look is not None:
            self._look.cancel()
        every = self._settings.confirm_within.total_seconds() / _LOOKS
        self._look = asyncio.get_running_loop().call_later(every, self._watch)
        if self._connection is None or self._blocked:
            return
        overdue = self._clock.monotonic() - self._settings.confirm_within.total_seconds()
        if self._channel is None:
            if self._opening_since < overdue:
                self._connection.abort()
            return
        lowest = min(self._outstanding, default=self._number + 1)
        while self._sent and self._sent[0][0] < lowest:
            self._sent.popleft()
        if self._sent and self._sent[0][1] < overdue:
            self._replace()

    def _replace(self) -> None:
        channel = self._channel
        limit = self._settings.confirm_within
        self._abandon(f"no answer within {limit / seconds(1):g} s")
        self._report_writable()
        if channel.is_open:
            channel.close()
        self._open()

    def _report_writable(self) -> None:
        writable = self._channel is not None and not self._blocked
        if writable is not self._writable:
            self._writable = writable
            post(self._caller, self._tell_writable)
            self._changed()

    # --- on the transport's loop: publishes and their answers ------------------------------------------------------

    def _collect(self) -> None:
        while self._handed:
            self._waiting.extend(self._handed.popleft())
        self._send()

    def _send(self) -> None:
        """Write what waits: all of it, or while searching for a culprit one at a time."""
        if self._connection is None:
            self._settle_waiting(_AWAY)
            return
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
        if self._cautious:
            self._cautious = max(self._cautious - len(settled), 0)
        if self._waiting:
            self._send()

    def _outcome(self, number: int, ticket: int, *, refused: bool) -> Settled:
        if refused:
            self._returned.pop(number, None)
            return Settled(ticket, Settlement.NACKED, "a queue refused it: full, or its process failed")
        if self._returned:
            returned = self._returned.pop(number, None)
            if returned is not None:
                return Settled(ticket, Settlement.RETURNED, returned[1], returned[0])
        return Settled(ticket, Settlement.CONFIRMED)

    def _settle_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._settle(Settled(message.ticket, Settlement.UNKNOWN, reason) for message in waiting)

    def _settle(self, settled: Iterable[Settled]) -> None:
        """Keep for the hand-over at the end of this turn of the loop: one wake-up for all."""
        empty = not self._settled
        self._settled.extend(settled)
        if empty and self._settled and self._loop is not None:
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        settled, self._settled = self._settled, []
        if settled:
            post(self._caller, lambda: self._tell(settled))
