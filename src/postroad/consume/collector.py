"""The service that empties a consumer's dead letter queue into quarantine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import seconds
from postroad.consume.attempt import connection_like
from postroad.consume.dead_letters import DeadLetter, collected, read
from postroad.consume.outage import answered
from postroad.signals.catalog import DeadLetterCollected, DeliveryQuarantined, IntakePaused, IntakeResumed
from postroad.transport.topology import dead_letter_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.clock import Clock
    from postroad.consume.consumer import Consumer
    from postroad.consume.outage import Probe
    from postroad.owner import Owner, Readiness
    from postroad.signals import Signals
    from postroad.sql.drive import Transactions
    from postroad.transport.base import Incoming, Intake

PREFETCH: Final = 16
_LET_GO: Final = seconds(2)
_IDLE: Final = 0.4


class Collector:
    """Keeps what the broker took out of one consumer's queue: one row of quarantine each, then the ack.

    Killed in between, it gets the message again and makes no second row while the first is open. While the database
    is away it takes nothing; what it held goes back. Several processes may collect from one queue.
    """

    def __init__(
        self, consumer: Consumer[Any], *, intake: Intake, transactions: Transactions[Any], database: Probe, schema: str,
        owner: Owner, signals: Signals, clock: Clock, chance: Callable[[], float],
    ) -> None:  # fmt: skip
        """Collect for `consumer` from `intake`, the stream of its dead letter queue."""
        self._consumer = consumer
        self._intake = intake
        self._transactions = transactions
        self._database = database
        self._schema = schema
        self._owner = owner
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._queue = dead_letter_queue(consumer.name)
        self._paused = False
        self.name = f"collector:{consumer.name}"

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`. Ready also while there is nothing to collect."""
        if self._paused:
            await self._resume()
        collecting = self._owner.task(self._collect(ready), name=f"{self.name}:collect")
        stopping = self._owner.task(stop.wait(), name=f"{self.name}:stop")
        try:
            await asyncio.wait([collecting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if collecting.done():
                collecting.result()
        finally:
            ending = self._owner.task(
                self._let_go([collecting, stopping], stopped=stop.is_set()), name=f"{self.name}:let-go"
            )
            await asyncio.shield(ending)

    async def _let_go(self, tasks: Sequence[asyncio.Task[Any]], *, stopped: bool) -> None:
        """What is kept is acked or comes again; what is not goes back with the channel."""
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_LET_GO.total_seconds())
        await (self._intake.stop() if stopped else self._pause())

    async def _collect(self, ready: Readiness) -> None:
        ready.up()
        while True:
            batch = await self._intake.take(PREFETCH)
            if not batch:
                await asyncio.sleep(_IDLE)  # stopped: whoever did that ends us
                continue
            left = await self._kept(batch)
            if left:
                await self._sit_out(left, ready)

    async def _kept(self, batch: Sequence[Incoming]) -> Sequence[Incoming]:
        """Keep them one by one; those that are left where the database went away."""
        for at, incoming in enumerate(batch):
            letter = read(self._consumer, incoming)
            try:
                async with self._transactions.begin() as unit:
                    fresh = await unit.drive(collected(self._schema, self._consumer, letter))
            except Exception as error:
                if connection_like(error):
                    return batch[at:]
                raise
            self._tell(letter, fresh=fresh)
            self._intake.ack([incoming.tag])
        return ()

    def _tell(self, letter: DeadLetter, *, fresh: bool) -> None:
        name, event_type, verdict = self._consumer.name, letter.arrival.event_type, letter.verdict
        self._signals.emit(DeadLetterCollected(name, event_type, letter.death.reason, fresh=fresh))
        if fresh:
            kind = str(verdict.failure)
            self._signals.emit(DeliveryQuarantined(name, event_type, kind, verdict.code, verdict.reason))

    # --- the database is away -----------------------------------------------------------------------------------

    async def _sit_out(self, left: Sequence[Incoming], ready: Readiness) -> None:
        """Leave the broker, give back, and wait for the database: this queue has no other end, so never in a loop."""
        began = self._clock.monotonic()
        ready.down("database is away")
        await self._pause()
        self._intake.give_back([incoming.tag for incoming in left])
        self._signals.emit(IntakePaused(self._queue, "database"))
        await answered([self._database], asyncio.Event(), tries=1, chance=self._chance)  # A stop cancels us.
        await self._resume()
        self._signals.emit(IntakeResumed(self._queue, self._clock.monotonic() - began))
        ready.up()

    async def _pause(self) -> None:
        self._paused = True
        await self._intake.pause()

    async def _resume(self) -> None:
        await self._intake.resume()
        self._paused = False
