"""Consumers with effects: a delivery is taken into `work` and acked, and runs there with no open transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from postroad.consume.arrival import dated
from postroad.consume.attempt import REACHED, Attempts, End, Outcome, connection_like
from postroad.consume.handler import HandlerRun, Surroundings
from postroad.consume.pipeline import Passage, entrusted, exhausted, outcome, still_open
from postroad.errors import ContractError, LeaseLost, UsageError
from postroad.signals.catalog import DeliveriesCommitted
from postroad.work.run import BlockingRun, Grip, Run

if TYPE_CHECKING:
    from postroad.consume.arrival import Arrival


class EntrustedRun(HandlerRun):
    """The author's handler of a consumer with effects, called once with a run; no transaction is open around it."""

    __slots__ = ("_run", "_transactions", "grip")

    def __init__(self, around: Surroundings, arrival: Arrival, grip: Grip, transactions: Any) -> None:
        super().__init__(around, arrival)
        self.grip = grip
        self._transactions = transactions
        self._run: Run[Any] | None = None

    @override
    async def __call__(self) -> None:
        try:
            await super().__call__()
        except BaseException:
            self.lost = self.grip.lost
            raise

    @override
    def cut(self) -> None:
        """Give it up: what it still does changes nothing."""
        self.limited = self.grip.given_up = True
        if self._run is not None:
            self._run.cut()

    @override
    async def _begun(self) -> None:
        if self._around.consumer.threaded:
            await self._on_thread()
        else:
            self._run = Run(self.grip, self._transactions)
            function: Any = self._around.consumer.function
            handling: Any = function(self.arrival.event, self._run)
            await handling

    async def _on_thread(self) -> None:
        async with self._transactions.seated() as seated:
            run = BlockingRun[Any](self.grip, seated, asyncio.get_running_loop())
            await seated.call(partial(_returning, self._around.consumer.function, self.arrival.event, run))


class EntrustedAttempts(Attempts):
    """Takes deliveries of one consumer into `work`, and runs the rows.

    A delivery's mark and its row commit together, and then it may be acked: a copy is a duplicate from then on. The
    row is what owns the mark. Its run is leased and fenced, and nothing of ours is open while it waits for others; with
    its end the mark turns to *handled*, in one commit.
    """

    @override
    async def settle(self, arrival: Arrival) -> Outcome:
        """See `Attempts.settle`."""
        arrival = dated(arrival, now=self.clock.now())
        if arrival.refusal is not None:
            return await self._keep(arrival, self.judge(arrival.refusal, arrival))
        if arrival.row is None:
            looked = arrival if arrival.replay is None else await self._begun(arrival)
            return Outcome(End.AWAY, "database") if looked is None else await self._entrust(looked)
        verdict = exhausted(self.consumer, arrival)
        if verdict is not None:
            return await self._keep(arrival, verdict)
        return await self._run(arrival)

    @override
    @asynccontextmanager
    async def turn(self, arrival: Arrival) -> AsyncIterator[None]:
        """No lane and no seat: what waits for a provider keeps no delivery from being taken. The claimer counts."""
        yield

    async def _entrust(self, arrival: Arrival) -> Outcome:
        try:
            async with self._custody.begin() as unit:
                passage = await unit.drive(entrusted(self.schema, self.consumer, arrival))
        except ContractError as error:
            return await self._keep(arrival, self.judge(error, arrival))
        except Exception as error:
            if connection_like(error):
                return Outcome(End.AWAY, "database")
            raise
        if passage is not Passage.KEPT:
            return REACHED[passage]
        self.signals.emit(DeliveriesCommitted(self.consumer.name, 1))
        return Outcome(End.TAKEN)

    @override
    def _made(self, arrival: Arrival) -> HandlerRun:
        row, manager = arrival.row, self._manager
        assert row is not None
        assert manager is not None
        grip = Grip(
            row=row, job=self.consumer.name, manager=manager, signals=self.signals, clock=self.clock,
            resources=self.around.resources, leases=self.around.leases,
            until=self.clock.monotonic() + self.consumer.max_runtime.total_seconds(),
            ends=partial(outcome, self.schema, self.consumer, arrival),
        )  # fmt: skip
        return EntrustedRun(self.around, arrival, grip, self.transactions)

    @override
    async def _handle(self, run: HandlerRun) -> Outcome:
        assert isinstance(run, EntrustedRun)
        async with self._custody.begin() as unit:
            passage = await unit.drive(still_open(self.schema, self.consumer, run.arrival))
        if passage is not None:
            return REACHED[passage]
        await run()
        if not run.grip.finished:
            try:
                async with self._custody.begin() as unit:
                    await unit.drive(run.grip.sealed(finish=True))
            except LeaseLost:  # Counted when it was refused.
                return Outcome(End.FENCED)
        self.signals.emit(DeliveriesCommitted(self.consumer.name, 1))
        return Outcome(End.HANDLED)

    @override
    async def _fail(self, run: HandlerRun, error: Exception) -> Outcome:
        assert isinstance(run, EntrustedRun)
        if run.grip.fenced:  # Counted when it was refused.
            return Outcome(End.FENCED)
        if run.grip.finished:  # What it did after its last commit is not undone by trying again.
            return Outcome(End.HANDLED)
        return await super()._fail(run, error)


def _returning(function: Any, event: Any, run: BlockingRun[Any]) -> None:
    value = function(event, run)
    if hasattr(value, "__await__"):
        if hasattr(value, "close"):
            value.close()
        raise UsageError("PR107", "a `def` handler returned something to be awaited, which nobody runs")
