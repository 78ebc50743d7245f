"""One consumer's deliveries, as rows of work that its process has claimed."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from postroad.clock import seconds
from postroad.errors import LeaseLost, Unavailable
from postroad.signals.catalog import ConsumerGone, ConsumerSubscribed, StaleAcks
from postroad.transport.base import Incoming, Tag
from postroad.transport.postgres.store import deliveries_of
from postroad.transport.topology import owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from postroad.signals import Signals
    from postroad.work.store import ClaimedRow

_FLUSH: Final = seconds(2)
_ROOM: Final = 4
"""A part of the prefetch, one in so many, has to be free before more is claimed: claims bring several rows each."""

Rows = list[tuple[int, int]]
"""Pairs of id and token."""


class PostgresIntake:
    """Implements `Intake`, and `work.Handler` for the queue of the consumer's deliveries.

    The claimer hands it rows; each stays in hand (`run`) until it was acked or given back, and the table knows. Loses
    the process its lease, the claimer cancels what is in hand: those tags are stale, and whoever claims the rows next
    has them as redelivered. What the process was handling then ends at the inbox, which one of the two wins.
    """

    def __init__(
        self, consumer: str, *, prefetch: int, signals: Signals, changed: Callable[[], None],
        look: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Take for `consumer`; `changed` is told that rows are to be settled, `look` which queue to claim from."""
        self.consumer = consumer
        self.queue = deliveries_of(consumer)
        self._prefetch = prefetch
        self._signals = signals
        self._changed = changed
        self._look = look
        self._paused = self._stopped = False
        self._buffer: deque[Incoming] = deque()
        self._arrived = asyncio.Event()
        self._held: dict[int, tuple[ClaimedRow, asyncio.Future[bool]]] = {}
        self._acks: list[int] = []
        self._returns: list[int] = []

    # --- what the consumer's service calls ----------------------------------------------------------------------

    async def take(self, most: int) -> Sequence[Incoming]:
        """See `Intake.take`."""
        while True:
            batch: list[Incoming] = []
            while self._buffer and len(batch) < most:
                incoming = self._buffer.popleft()
                if incoming.tag.number in self._held:  # Else its lease was lost while it waited here.
                    batch.append(incoming)
            if batch or self._stopped:
                return batch
            self._arrived.clear()
            await self._arrived.wait()

    def ack(self, tags: Sequence[Tag]) -> None:
        """See `Intake.ack`: the rows are deleted with all others that are acked at that moment."""
        self._acks += self._known(tags)
        self._changed()

    def give_back(self, tags: Sequence[Tag]) -> None:
        """See `Intake.give_back`: the rows are ready again where they were."""
        self._returns += self._known(tags)
        self._changed()

    async def pause(self) -> None:
        """See `Intake.pause`."""
        if not self._paused:
            self._paused = True
            self._signals.emit(ConsumerGone(self.consumer, "stopped"))
        back = [incoming.tag for incoming in self._buffer if incoming.tag.number in self._held]
        self._buffer.clear()
        self.give_back(back)

    async def resume(self) -> None:
        """See `Intake.resume`."""
        self._paused = False
        self._signals.emit(ConsumerSubscribed(self.consumer, self._prefetch))
        self._look(self.queue)

    async def stop(self) -> None:
        """See `Intake.stop`; the acks get two seconds. What was taken and is neither goes back, as with a channel."""
        await self.pause()
        self._stopped = True
        self._arrived.set()
        told = {*self._acks, *self._returns}
        self._returns += [number for number in self._held if number not in told]
        self._changed()
        settling = [settled for _, settled in self._held.values()]
        if settling:
            await asyncio.wait(settling, timeout=_FLUSH.total_seconds())

    def _known(self, tags: Iterable[Tag]) -> list[int]:
        numbers = [tag.number for tag in tags]
        known = [number for number in numbers if number in self._held]
        self._stale(len(numbers) - len(known))
        return known

    def _stale(self, count: int) -> None:
        if count:
            self._signals.emit(StaleAcks(self.consumer, count))

    # --- what the claimer calls ---------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """See `work.Handler.slots`: the prefetch while enough of it is free, else what is in hand."""
        held = len(self._held)
        free = self._prefetch - held
        return held if self._paused or (held and free * _ROOM < self._prefetch) else self._prefetch

    async def run(self, row: ClaimedRow) -> None:
        """See `work.Handler.run`; it lasts until the row is acked or given back.

        Raises:
            LeaseLost: it was acked, but another worker has the row.
            Unavailable: it was given back.
        """
        settled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._held[row.token] = row, settled
        try:
            if self._paused:
                self._returns.append(row.token)
                self._changed()
            else:
                self._buffer.append(incoming_of(row))
                self._arrived.set()
            if not await settled:
                raise Unavailable("PR304", f"row {row.id} of work was given back")
        finally:
            del self._held[row.token]

    # --- what the transport's service calls ---------------------------------------------------------------------

    def owed(self) -> tuple[Rows, Rows]:
        """What is to be deleted, and to be given back, in the table; nothing of what was lost meanwhile."""
        lost = sum(1 for token in self._acks if token not in self._held)
        if lost:
            self._acks = [token for token in self._acks if token in self._held]
            self._stale(lost)
        self._returns = [token for token in self._returns if token in self._held]
        return self._rows(self._acks), self._rows(self._returns)

    def _rows(self, tokens: Iterable[int]) -> Rows:
        return [(self._held[token][0].id, token) for token in tokens if token in self._held]

    def acked(self, rows: Rows, gone: frozenset[int]) -> None:
        """The table was told of `rows`; those with the ids `gone` were still ours."""
        told = {token for _, token in rows}
        self._acks = [token for token in self._acks if token not in told]
        self._stale(sum(1 for number, _ in rows if number not in gone))
        for number, token in rows:
            self._end(token, None if number in gone else LeaseLost("PR401", f"row {number} of work is another's"))

    def returned(self, rows: Rows) -> None:
        """The table was told of `rows`."""
        told = {token for _, token in rows}
        self._returns = [token for token in self._returns if token not in told]
        for token in told:
            if token in self._held and not self._held[token][1].done():
                self._held[token][1].set_result(False)
        if told and not self._paused:
            self._look(self.queue)  # They lie behind where the claims got to.

    def _end(self, token: int, error: LeaseLost | None) -> None:
        held = self._held.get(token)
        if held is None or held[1].done():
            return
        held[1].set_result(True) if error is None else held[1].set_exception(error)


def incoming_of(row: ClaimedRow) -> Incoming:
    """A row as it came: it was redelivered if a worker died, or was lost sight of, while it had it."""
    wire = row.wire
    return Incoming(
        tag=Tag(0, row.token), body=wire.body, content_type=wire.content_type, headers=wire.headers,
        exchange=wire.exchange or "", routing_key=wire.routing_key or "", redelivered=row.attempt > 0,
        message_id=row.key, type=wire.event_type, app_id=owner_of(wire.event_type) if wire.event_type else None,
    )  # fmt: skip
