"""One consumer's deliveries: what was received is owed until the broker is told, on the channel it came by."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pika import exceptions

from postroad.retry import full_jitter
from postroad.signals.catalog import ChannelClosed, ConsumerGone, ConsumerSubscribed, StaleAcks
from postroad.transport.amqp import faults
from postroad.transport.amqp.handover import Bell, post
from postroad.transport.amqp.owed import Owed
from postroad.transport.amqp.watch import Watch
from postroad.transport.amqp.wire import incoming
from postroad.transport.base import Incoming, Tag

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.signals import Signals
    from postroad.transport.amqp.connection import AmqpSettings, CoalescedConnection

ROLE: Final = "consume"
_NAME_PART: Final = 200  # Of 255 bytes of a consumer tag; the rest is what makes it unique.
_NOTHING: Final[Sequence[Incoming]] = ()


class AmqpIntake:
    """Implements `Intake` on a channel of its own; made on the caller's loop, works on the transport's.

    A channel lives until the connection or the broker ends it, or the broker cancels the consumer (queue deleted or
    moved). Then what was not taken is dropped here (the broker delivers it again), tags taken before are stale, and a
    new channel with a fresh consumer tag is opened, with backoff, until the broker confirms the consumer.
    """

    def __init__(
        self,
        queue: str,
        *,
        prefetch: int,
        caller: asyncio.AbstractEventLoop,
        settings: AmqpSettings,
        signals: Signals,
        clock: Clock,
        chance: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self.queue = queue
        self._prefetch = prefetch
        self._caller = caller
        self._settings = settings
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._changed = changed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._arrived = asyncio.Event()
        self._here = Bell(self._arrived.set)
        self._buffer: deque[Incoming] = deque()
        self._orders: deque[Callable[[], None]] = deque()
        self._bell = Bell(self._obey)
        # From here on only the transport's loop looks, but for `trouble` and `wanted`, which it alone writes.
        self.wanted = True
        self.trouble = "not connected"  # Why the consumer does not stand; empty once the broker confirmed it.
        self._connection: CoalescedConnection | None = None
        self._channel: Any = None
        self._consumer_tag = ""
        self._owed = Owed()
        self._generation = 0
        self._tries = 0
        self._subscribed_at = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._watch = Watch(queue, every=settings.watch, signals=signals, missing=self._renew)
        self._cancelled: list[asyncio.Future[None]] = []
        self._last_channel: Any = None  # The one that `stop` closes, and who waits for that.
        self._last_done: asyncio.Future[None] | None = None

    # --- on the caller's loop -----------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether it was stopped for good."""
        return self._stopped

    async def take(self, most: int) -> Sequence[Incoming]:
        """See `Intake.take`. Several may wait; each delivery goes to one of them."""
        buffer = self._buffer
        while True:
            batch: list[Incoming] = []
            try:
                while len(batch) < most:
                    batch.append(buffer.popleft())
            except IndexError:
                pass
            if batch:
                return batch
            if self._stopped:
                return _NOTHING
            self._arrived.clear()
            if not buffer:  # The transport's thread may have put something there just now.
                await self._arrived.wait()

    def ack(self, tags: Sequence[Tag]) -> None:
        """See `Intake.ack`."""
        self._order(lambda: self._ack(tags))

    def give_back(self, tags: Sequence[Tag]) -> None:
        """See `Intake.give_back`."""
        self._order(lambda: self._give_back(tags))

    async def pause(self) -> None:
        """See `Intake.pause`. Bounded by `close_within`; what was taken may still be acked or given back."""
        await self._confirmed(self._cancel)

    async def resume(self) -> None:
        """See `Intake.resume`. Returns at once: the consumer stands when `ConsumerSubscribed` says so."""
        self._order(self._want)

    async def stop(self) -> None:
        """See `Intake.stop`. Bounded by `close_within`."""
        self._stopped = True
        self._arrived.set()
        await self._confirmed(self._close)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The transport's thread runs, with this loop."""
        self._loop = loop

    def detach(self) -> None:
        """The transport's thread has ended: its orders are moot, its deliveries somebody else's."""
        self._loop = None
        self._bell.reset()
        self._here.reset()
        self._connection = None
        self._forget("not connected", cause="connection")
        while self._orders:
            self._orders.popleft()()

    def _order(self, act: Callable[[], None]) -> None:
        if self._loop is None:
            act()
            return
        self._orders.append(act)
        self._bell.ring(self._loop)

    async def _confirmed(self, act: Callable[[asyncio.Future[None]], None]) -> None:
        """Give an order and wait for the broker's answer, but not for ever."""
        done = self._caller.create_future()
        untaken = self._untaken()
        self._order(lambda: self._give_back_after(act, done, untaken))
        await asyncio.wait([done], timeout=self._settings.close_within.total_seconds())

    def _untaken(self) -> list[Tag]:
        """Empty the buffer; safe on both loops at once, since every delivery is popped by one of them."""
        tags: list[Tag] = []
        while self._buffer:
            try:
                tags.append(self._buffer.popleft().tag)
            except IndexError:
                break
        return tags

    # --- on the transport's loop: connection, channel, consumer ----------------------------------------------------

    def connected(self, connection: CoalescedConnection) -> None:
        """The consuming connection stands."""
        self._connection = connection
        self._tries = 0
        if self.wanted:
            self._open()

    def disconnected(self, reason: str) -> None:
        """The consuming connection is gone, and every delivery that came by it."""
        self._connection = None
        if self._retry is not None:
            self._retry.cancel()
        self._forget(reason, cause="connection")

    def _open(self) -> None:
        self._retry = None
        if self._connection is None or not self._connection.is_open or not self.wanted or self._channel is not None:
            return
        self._channel = self._connection.channel(on_open_callback=self._opened)

    def _opened(self, channel: Any) -> None:
        if channel is not self._channel:
            return
        self._generation += 1
        self._owed = Owed()
        channel.add_on_close_callback(self._lost)
        channel.add_on_cancel_callback(self._cancelled_by_broker)
        channel.basic_qos(prefetch_count=self._prefetch, callback=lambda _frame: self._consume(channel))

    def _consume(self, channel: Any) -> None:
        if self._connection is None or channel is not self._channel or not channel.is_open or not self.wanted:
            return
        named = self.queue.encode()[:_NAME_PART].decode(errors="ignore")
        self._consumer_tag = tag = f"{named}.{self._clock.new_id()}"
        self._connection.hands[channel.channel_number, tag.encode()] = self._generation, self._took
        channel.basic_consume(
            self.queue, self._deliver, consumer_tag=tag, callback=lambda _frame: self._subscribed(channel, tag)
        )

    def _subscribed(self, channel: Any, tag: str) -> None:
        if channel is not self._channel or tag != self._consumer_tag:
            return
        self.trouble = ""
        self._subscribed_at = self._clock.monotonic()
        self._watch.begin(channel)
        self._signals.emit(ConsumerSubscribed(self.queue, self._prefetch))
        self._changed()

    def _deliver(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if channel is self._channel:
            self._took(incoming(Tag(self._generation, method.delivery_tag), method, properties, body))

    def _took(self, delivery: Incoming) -> None:
        self._owed.add(delivery.tag.number)
        self._buffer.append(delivery)
        self._here.ring(self._caller)

    def _unheard(self) -> str:
        """Leave what still comes to pika, which gives back what a consumer is sent after its end; its tag."""
        tag, self._consumer_tag = self._consumer_tag, ""
        if self._connection is not None and self._channel is not None:
            self._connection.hands.pop((self._channel.channel_number, tag.encode()), None)
        return tag

    def _cancelled_by_broker(self, frame: Any) -> None:
        if frame.method.consumer_tag != self._consumer_tag:
            return
        self._renew("the broker cancelled the consumer", cause="broker")

    def _renew(self, reason: str = "the broker does not know of the consumer", *, cause: str = "watchdog") -> None:
        channel = self._channel
        self._forget(reason, cause=cause)
        _close(channel)
        self._again()

    def _lost(self, channel: Any, error: BaseException) -> None:
        if channel is self._last_channel and channel is not None:
            self._let_go()
        if channel is not self._channel:
            return  # One that we gave up.
        if not isinstance(error, exceptions.ChannelClosedByBroker):
            return  # The connection's end, of which we are told as well.
        text = faults.shorten(error.reply_text)
        self._signals.emit(ChannelClosed(ROLE, error.reply_code, text))
        self._forget(f"queue {self.queue!r}: {error.reply_code} {text}", cause="channel_closed")
        self._again()

    def _again(self) -> None:
        """Open a channel anew after a wait that grows until a consumer has stood for a while."""
        if self._clock.monotonic() - self._subscribed_at >= self._settings.stable.total_seconds():
            self._tries = 0
        self._tries += 1
        if self.wanted and self._retry is None:
            wait = full_jitter(self._tries, first=self._settings.first, most=self._settings.most, chance=self._chance())
            self._retry = asyncio.get_running_loop().call_later(wait.total_seconds(), self._open)

    def _forget(self, reason: str, *, cause: str) -> None:
        """The channel is gone: so is everything that came by it."""
        stood = not self.trouble
        self._watch.end()
        self._unheard()
        self._channel = None
        self._owed = Owed()
        self._buffer.clear()
        self.trouble = reason
        if stood and self.wanted:
            self._signals.emit(ConsumerGone(self.queue, cause))
        self._let_go()
        self._changed()

    def _let_go(self) -> None:
        """Whoever waits for an answer on a channel that is gone waits no longer."""
        waiting, self._cancelled = self._cancelled, []
        if self._last_done is not None:
            waiting.append(self._last_done)
        for done in waiting:
            self._resolve(done)

    # --- on the transport's loop: the caller's orders --------------------------------------------------------------

    def _obey(self) -> None:
        while self._orders:
            self._orders.popleft()()

    def _usable(self) -> bool:
        return self._channel is not None and self._channel.is_open

    def _ack(self, tags: Iterable[Tag]) -> None:
        numbers = self._current(tags)
        if not numbers:
            return
        upto, single = self._owed.settle(numbers)
        if upto is not None:
            self._channel.basic_ack(upto, multiple=True)
        for number in single:
            self._channel.basic_ack(number)

    def _give_back(self, tags: Iterable[Tag]) -> None:
        for number in self._owed.remove(self._current(tags)):
            self._channel.basic_nack(number, requeue=True)

    def _current(self, tags: Iterable[Tag]) -> list[int]:
        """The numbers that this channel still owes; the others are stale, and only counted."""
        usable, generation, owed = self._usable(), self._generation, self._owed
        numbers: list[int] = []
        stale = 0
        for tag in tags:
            if usable and tag.generation == generation and tag.number in owed:
                numbers.append(tag.number)
            else:
                stale += 1
        if stale:
            self._signals.emit(StaleAcks(self.queue, stale))
        return numbers

    def _give_back_after(
        self, act: Callable[[asyncio.Future[None]], None], done: asyncio.Future[None], untaken: list[Tag]
    ) -> None:
        """Cancel first and give back then: a consumer that still stands would be given them again."""
        act(done)
        self._return_untaken([*untaken, *self._untaken()])
        if act == self._close and self._channel is not None:
            self._last_channel, self._channel = self._channel, None
            if not _close(self._last_channel):
                self._resolve(done)

    def _return_untaken(self, tags: list[Tag]) -> None:
        if self._usable():
            for number in self._owed.remove(tag.number for tag in tags if tag.generation == self._generation):
                self._channel.basic_nack(number, requeue=True)

    def _cancel(self, done: asyncio.Future[None]) -> None:
        stood = not self.trouble
        self.wanted = False
        self._watch.end()
        tag = self._unheard()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self.trouble = "paused"
        if stood:
            self._signals.emit(ConsumerGone(self.queue, "stopped"))
        self._changed()
        if not self._usable() or not tag:
            self._resolve(done)
            return
        self._cancelled.append(done)
        self._channel.basic_cancel(tag, callback=lambda _frame: self._resolve(done))

    def _close(self, done: asyncio.Future[None]) -> None:
        """Cancel, and close the channel behind everything that was ordered before."""
        self._last_done = done
        self._cancel(self._caller.create_future())
        if self._channel is None:
            self._resolve(done)

    def _want(self) -> None:
        if self._stopped or self.wanted:
            return
        self.wanted = True
        self.trouble = "being resumed"
        self._changed()
        if self._usable():
            self._consume(self._channel)
        else:
            self._open()

    def _resolve(self, done: asyncio.Future[None]) -> None:
        def finish() -> None:
            if not done.done():
                done.set_result(None)

        post(self._caller, finish)


def _close(channel: Any) -> bool:
    if channel is None or channel.is_closed or channel.is_closing:
        return False
    channel.close()
    return True
