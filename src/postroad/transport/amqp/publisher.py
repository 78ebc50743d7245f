"""Publishes with confirms: every one that was handed over is settled once, whatever happens to the broker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from postroad.transport.amqp.handover import Bell, post
from postroad.transport.amqp.lane import ROLE, SOONER, Lane
from postroad.transport.base import Outgoing, Settled, Settlement

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.signals import Signals
    from postroad.transport.amqp.connection import AmqpSettings, CoalescedConnection

__all__ = ["ROLE", "AmqpPublisher"]

_AWAY: Final = "the broker is away"
_PROBE_LANES: Final = 32  # Beyond as many hanging probes the rest waits.


class AmqpPublisher:
    """Implements `Publisher` on one channel in confirm mode; made on the caller's loop, works on the transport's.

    A return comes before its ack and names no publish but by our header; the ack of a returned publish settles it
    RETURNED. For a channel that the broker closes over one publish, see `Lane`. A confirm that is overdue is settled
    OVERDUE, what else is on its channel UNKNOWN, and the channel is replaced; while the broker blocks us no time
    counts. Probes go out on channels of their own, one for each route.
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
        self._changed = changed
        self._hear_settled: Callable[[Sequence[Settled]], None] | None = None
        self._hear_writable: Callable[[], None] | None = None
        self._writable = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handed: deque[Sequence[Outgoing]] = deque()
        self._bell = Bell(self._collect)
        self._settled: list[Settled] = []

        def lane(report: Callable[[], None]) -> Lane:
            return Lane(
                settings=settings, signals=signals, clock=clock, chance=chance, user_id=user_id,
                settle=self._settle, changed=report,
            )  # fmt: skip

        self._make_lane = lane
        # From here on only the transport's loop looks.
        self._connection: CoalescedConnection | None = None
        self._lane = lane(self._report_writable)
        self._probes: dict[tuple[str, str], Lane] = {}
        self._blocked = False
        self._look: asyncio.TimerHandle | None = None

    # --- on the caller's loop -----------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """See `Publisher.writable`."""
        return self._writable

    @property
    def cautious(self) -> bool:
        """Whether publishes go out one at a time now, to find the one that makes the broker close the channel."""
        return self._lane.cautious

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
            self._lane.add(batch)
        self._handed.clear()
        self._connection = None
        self._lose(_AWAY)
        settled, self._settled = self._settled, []
        self._tell(settled)
        self._report_writable()

    def _tell(self, settled: Sequence[Settled]) -> None:
        if settled and self._hear_settled is not None:
            self._hear_settled(settled)

    def _tell_writable(self) -> None:
        if self._hear_writable is not None:
            self._hear_writable()

    # --- on the transport's loop: connection and channels ----------------------------------------------------------

    def connected(self, connection: CoalescedConnection) -> None:
        """The publishing connection stands."""
        self._connection = connection
        self._blocked = False
        self._lane.open(connection)
        self._watch()

    def disconnected(self, reason: str) -> None:
        """The publishing connection is gone: nothing on it will be answered."""
        self._connection = None
        if self._look is not None:
            self._look.cancel()
        self._lose(reason)
        self._report_writable()

    def blocked(self, *, blocked: bool) -> None:
        """The broker stopped (or went on) reading from this connection."""
        self._blocked = blocked
        for lane in (self._lane, *self._probes.values()):
            lane.unblocked()
        self._report_writable()

    def _lose(self, reason: str) -> None:
        for lane in (self._lane, *self._probes.values()):
            lane.lose(reason)
        self._probes.clear()

    def _watch(self) -> None:
        """Look now and then whether the broker owes an answer for too long."""
        if self._look is not None:
            self._look.cancel()
        every = self._settings.confirm_within.total_seconds() / SOONER / 3
        self._look = asyncio.get_running_loop().call_later(every, self._watch)
        if self._blocked:
            return
        for lane in (self._lane, *self._probes.values()):
            lane.watch()
        for route, lane in list(self._probes.items()):
            if lane.idle:
                lane.close()
                self._probes.pop(route, None)

    def _report_writable(self) -> None:
        writable = self._lane.ready and not self._blocked
        if writable is not self._writable:
            self._writable = writable
            post(self._caller, self._tell_writable)
            self._changed()

    # --- on the transport's loop: publishes and their answers ------------------------------------------------------

    def _collect(self) -> None:
        while self._handed:
            batch = self._handed.popleft()
            if len(batch) == 1 and batch[0].probe and self._connection is not None:
                self._probe(self._connection, batch[0])
            else:
                self._lane.add(batch)
        if self._connection is None:
            self._lane.lose(_AWAY)
        else:
            self._lane.send()

    def _probe(self, connection: CoalescedConnection, message: Outgoing) -> None:
        """Send on the channel of its route, which lasts for as long as it has something to answer."""
        route = (message.exchange, message.routing_key)
        lane = self._probes.get(route)
        if lane is None and len(self._probes) >= _PROBE_LANES:
            self._settle([Settled(message.ticket, Settlement.UNKNOWN, "too many probes are unanswered")])
            return
        if lane is None:
            lane = self._probes[route] = self._make_lane(lambda: None)
            lane.open(connection)
        lane.add((message,))
        lane.send()

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
