"""One attempt at one message: its transaction, its handler within the time limit, and what became of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import seconds
from postroad.consume.alone import Alone
from postroad.consume.arrival import Arrival, dated
from postroad.consume.gears import Gears
from postroad.consume.handler import LET_GO, LIMIT, HandlerRun, Surroundings, ThreadRun
from postroad.consume.inbox import Claim, Mark
from postroad.consume.lanes import Lanes
from postroad.consume.pipeline import STALE, Passage, Plan, exhausted, handled, kept, planned
from postroad.consume.rehandle import begun
from postroad.consume.starts import MOST, SHARED, Begun, Starts, crashed
from postroad.errors import LeaseLost, PostroadError
from postroad.failures import FailureClass, Rules, Verdict, classify
from postroad.retry import Backoff
from postroad.signals.catalog import (
    DeliveriesCommitted,
    DeliveryDelayed,
    DeliveryQuarantined,
    DeliveryResult,
    LateWriteRefused,
    SuspectStarted,
    TaskFailed,
)
from postroad.work.limit import TimeLimit
from postroad.work.probe import DependencyProbe

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from postroad.clock import Clock
    from postroad.consume.consumer import Consumer
    from postroad.leases import Leases
    from postroad.signals import Signals
    from postroad.sql.drive import Transactions
    from postroad.sql.manager import Manager
    from postroad.work.use import Resources


class End(StrEnum):
    """What became of an attempt."""

    HANDLED = "handled"
    DUPLICATE = "duplicate"
    DROPPED = "dropped"
    DELAYED = "delayed"
    QUARANTINED = "quarantined"
    TAKEN = "taken"  # written to `work`, where its effects run
    BUSY = "busy"  # another process has the message open: try again in a moment, uncharged
    AWAY = "away"  # our database is: give back, pause, uncharged
    INTERRUPTED = "interrupted"  # give back, uncharged
    FENCED = "fenced"  # the row of `work` is another worker's: nothing was changed


RESULTS: Final = {
    End.HANDLED: DeliveryResult.OK,
    End.DUPLICATE: DeliveryResult.DUPLICATE,
    End.DROPPED: DeliveryResult.DROP,
    End.DELAYED: DeliveryResult.RETRY,
    End.QUARANTINED: DeliveryResult.QUARANTINE,
    End.TAKEN: DeliveryResult.TAKEN,
}
"""What the signals call the outcome; anything else was given back."""

SETTLED: Final = frozenset(RESULTS)
"""These are durable: the message is in safe hands, and may be acked."""

_LOOK: Final = Backoff(first=seconds(0.05), most=seconds(1), attempts=1)
_LOOKS: Final = 20
_TAKE_BACK: Final = seconds(1)
_REMEMBERED: Final = 1000
_NO_RULES: Final = Rules()
MARKED: Final = {Mark.DROPPED: End.DROPPED, Mark.DELAYED: End.DELAYED, Mark.QUARANTINED: End.QUARANTINED}
_NOT_BEGUN: Final = {Claim.DUPLICATE: End.DUPLICATE, Claim.BUSY: End.BUSY}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, and a safe reason where there is one."""

    end: End
    reason: str = ""


REACHED: Final = {
    Passage.HANDLED: Outcome(End.HANDLED),
    Passage.DUPLICATE: Outcome(End.DUPLICATE),
    Passage.STALE: Outcome(End.DROPPED, STALE),
    Passage.BUSY: Outcome(End.BUSY),
}
"""How an attempt ended that came so far."""


class Attempts:
    """Runs messages of one consumer through the pipeline, each in a transaction of its own.

    Nothing of a message is committed in part: its mark, the handler's effects and the end of its row of `work`
    commit together; after a failure its mark and the row that keeps it do. Whoever is told an outcome in `SETTLED`
    may ack; anything else changed nothing. Errors that are neither the handler's nor the database's absence come
    out: a right that is missing, a schema that is too old.

    `lanes` keeps messages of one key apart, and whoever runs one has one of the `seats`, deliveries and retries alike;
    `away` is told of a missing dependency.

    A redelivered message may be what killed its process: its start is committed before its handler runs (`starts`).
    With two that nothing answered it runs with nothing beside it in the process (`alone`, which all consumers of a
    process share), as a row of `work` does whose worker died; with four it is quarantined and not run.
    """

    def __init__(
        self, consumer: Consumer[Any], *, transactions: Transactions[Any], schema: str, resources: Resources,
        signals: Signals, clock: Clock, chance: Callable[[], float], custody: Transactions[Any] | None = None,
        alone: Alone | None = None, process: UUID | None = None, leases: Leases | None = None,
        manager: Manager | None = None,
    ) -> None:  # fmt: skip
        """Handle for `consumer`; `chance` gives random numbers in [0, 1) for the jitter of retries.

        What failed is kept in transactions of `custody`, where no handler can hold them up (default `transactions`).
        `process` is what starts are noted under: new for each run of the process. `leases` are for handlers, and
        `manager` is what the runs of a consumer with effects stand on.
        """
        self.consumer = consumer
        self.transactions = transactions
        self._custody = custody or transactions
        self.schema = schema
        self._manager = manager
        self.signals = signals
        self.clock = clock
        self.chance = chance
        self.gears = Gears(clock, allowed=consumer.group, concurrency=consumer.concurrency)
        self.around = Surroundings(
            consumer=consumer, resources=resources, signals=signals, clock=clock, gears=self.gears,
            limit=TimeLimit(consumer.max_runtime.total_seconds(), late=self._cut, spared=LET_GO.total_seconds()),
            leases=leases,
        )  # fmt: skip
        self.running = self.around.running
        self.seats = asyncio.Semaphore(consumer.concurrency)
        self.lanes = Lanes(self._joins)
        self.probes = {
            dependency.name: DependencyProbe(dependency, resources, clock)
            for dependency in consumer.rules.down.values()
        }
        self.alone = alone or Alone()
        self.starts = Starts(
            self._custody, schema=schema, consumer=consumer.name, process=process or clock.new_id()
        )  # fmt: skip
        self._lost: dict[UUID | None, None] = {}
        self.away: Callable[[str], None] = _nobody

    async def settle(self, arrival: Arrival) -> Outcome:
        """Take an identified message to its outcome. Cancellation rolls back and comes out."""
        arrival = dated(arrival, now=self.clock.now())
        if arrival.refusal is not None:
            return await self._keep(arrival, self.judge(arrival.refusal, arrival))
        verdict = exhausted(self.consumer, arrival)
        if verdict is not None:
            return await self._keep(arrival, verdict)
        if arrival.replay is not None:
            looked = await self._begun(arrival)
            if looked is None:
                return Outcome(End.AWAY, "database")
            arrival = looked
        if arrival.suspect:
            return await self._suspected(arrival)
        dangerous = arrival.row is not None and arrival.row.suspect
        async with self.alone.alone() if dangerous else self.alone.beside():
            return await self._run(arrival)

    async def _run(self, arrival: Arrival) -> Outcome:
        run = self._made(arrival)
        try:
            return await self._handle(run)
        except LeaseLost as error:
            if run.error is None:
                self.signals.emit(LateWriteRefused("consume", 1))
                return Outcome(End.FENCED)
            return await self._fail(run, error)
        except Exception as error:  # noqa: BLE001 - the border around the author's handler
            return await self._fail(run, error)
        finally:
            run.error = None  # Its traceback holds the frames of the handler, and with them the payload.

    def _made(self, arrival: Arrival) -> HandlerRun:
        return (ThreadRun if self.consumer.threaded else HandlerRun)(self.around, arrival)

    @asynccontextmanager
    async def turn(self, arrival: Arrival) -> AsyncIterator[None]:
        """Wait until a row of `work` may run, and keep its key's lane and a seat for the block."""
        async with self.lanes.hold(arrival.lane), self.seats:
            yield

    async def _suspected(self, arrival: Arrival) -> Outcome:
        """Run what may have killed a process before: beside others, then alone, then not at all."""
        key = arrival.message_key
        assert key is not None
        try:
            async with self.alone.beside():
                begun = await self.starts.begin(key, most=SHARED)
                if begun.noted:
                    return await self._started(arrival, begun, alone=False)
            if begun.claim is Claim.FRESH:
                async with self.alone.alone():
                    begun = await self.starts.begin(key, most=MOST)
                    if begun.noted:
                        return await self._started(arrival, begun, alone=True)
        except Exception as error:
            if connection_like(error):
                return Outcome(End.AWAY, "database")
            raise
        if begun.claim is not Claim.FRESH:
            return Outcome(_NOT_BEGUN[begun.claim])
        return await self._keep(arrival, crashed(begun.unanswered))

    async def _started(self, arrival: Arrival, begun: Begun, *, alone: bool) -> Outcome:
        """Run it; without an outcome its start is taken back."""
        key = arrival.message_key
        assert key is not None
        if begun.unanswered:
            suspect = SuspectStarted(self.consumer.name, arrival.event_type, begun.unanswered, alone=alone)
            self.signals.emit(suspect)
        settled = False
        try:
            outcome = await self._run(arrival)
            settled = outcome.end in SETTLED
        finally:
            if not settled:
                self.starts.void(key)
        if not settled and outcome.end is not End.AWAY:
            await self.starts.take_back()
        return outcome

    async def take_back(self) -> None:
        """Take back the starts that ended without an outcome here, as far as that takes a second; never raises.

        Call it when the database is back, and before deliveries are given back at the end.
        """
        try:
            async with asyncio.timeout(_TAKE_BACK.total_seconds()):
                await self.starts.take_back()
        except Exception as error:  # noqa: BLE001 - on the way down deliveries must still be given back
            if not isinstance(error, TimeoutError) and not connection_like(error):
                self.signals.emit(TaskFailed(self.consumer.name, type(error).__name__, "starts are not taken back"))

    def _cut(self, run: HandlerRun) -> None:
        """Cut the connection of a handler that goes on after its time limit, in whatever role it runs.

        It swallows its cancellation; without its connection it cannot commit.
        """
        run.cut()
        reason = "a handler goes on after its time limit; its connection was cut"
        self.signals.emit(TaskFailed(f"consumer:{self.consumer.name}", "TimeoutError", reason))

    async def _begun(self, arrival: Arrival) -> Arrival | None:
        """See `rehandle.begun`; None: the database is away."""
        try:
            return await begun(self._custody, self.schema, arrival, consumer=self.consumer.name, signals=self.signals)
        except Exception as error:
            if connection_like(error):
                return None
            raise

    def _joins(self, arrival: Arrival) -> bool:
        """Whether `arrival` may share a transaction.

        What came before may have been what killed a process, and what is old or replayed has its past looked up: all
        run alone.
        """
        if not self.gears.fast or arrival.redelivered or arrival.refusal is not None or arrival.replay is not None:
            return False
        return not dated(arrival, now=self.clock.now()).aged

    async def _handle(self, run: HandlerRun) -> Outcome:
        arrival = run.arrival
        async with self.transactions.begin() as unit:
            run.unit = unit
            passage = await run.watched(unit.drive(handled(self.schema, self.consumer, arrival, run)))
        if passage in {Passage.HANDLED, Passage.STALE}:
            self.signals.emit(DeliveriesCommitted(self.consumer.name, 1))
        return REACHED[passage]

    async def _fail(self, run: HandlerRun, error: Exception) -> Outcome:
        """The transaction is rolled back (or nobody knows whether it committed): decide what becomes of the message."""
        if _is_away(run, error) and not self.lost_again(run):
            return Outcome(End.AWAY, "database")
        verdict = await self._asked(self.judge(run.error or error, run.arrival))
        outcome = await self._keep(run.arrival, verdict)
        for tries in range(1, _LOOKS + 1):
            if outcome.end is not End.BUSY:
                break
            # Most likely our own transaction, which the server has not ended yet. Keeping it is tried again, never the
            # handler: a failure that is run again without being charged would go on for ever.
            await asyncio.sleep(_LOOK.delay(tries, chance=self.chance()).total_seconds())
            outcome = await self._keep(run.arrival, verdict)
        return outcome

    def lost_again(self, run: HandlerRun) -> bool:
        """Whether the connection was lost while this message's handler ran, and not for the first time here.

        Once, that is the database's doing. Twice, and the database then takes at once what is to be said about it, it
        is the handler's: a handler can kill its connection.
        """
        key = run.arrival.message_key
        if not run.lost or run.error is None:
            return False
        if key in self._lost:
            return True
        self._lost[key] = None
        if len(self._lost) > _REMEMBERED:
            del self._lost[next(iter(self._lost))]
        return False

    def judge(self, error: BaseException, arrival: Arrival) -> Verdict:
        """What a failure of the handler, or of its commit, means."""
        verdict = classify(error, rules=self.consumer.rules, attempt=arrival.attempt)
        if isinstance(error, PostroadError) and error.code == LIMIT:
            return replace(verdict, failure=FailureClass.TRANSIENT, code=LIMIT, reason=str(error))
        return verdict

    async def _asked(self, verdict: Verdict) -> Verdict:
        """A failure that speaks of a dependency is the dependency's only while that does not answer."""
        if verdict.dependency is None or not await self.probes[verdict.dependency.name].answers():
            return verdict
        return replace(verdict, failure=FailureClass.TRANSIENT)

    async def _keep(self, arrival: Arrival, verdict: Verdict) -> Outcome:
        plan = planned(self.consumer, arrival, verdict, chance=self.chance())
        if plan is None:
            return returned(verdict)
        try:
            async with self._custody.begin() as unit:
                passage = await unit.drive(kept(self.schema, self.consumer, arrival, plan))
        except LeaseLost:
            self.signals.emit(LateWriteRefused("consume", 1))
            return Outcome(End.FENCED)
        except Exception as error:
            if connection_like(error):
                return Outcome(End.AWAY, "database")
            raise
        if passage is not Passage.KEPT:
            return REACHED[passage]
        self.signals.emit(DeliveriesCommitted(self.consumer.name, 1))
        self.tell(arrival, plan)
        return Outcome(MARKED[plan.mark], plan.verdict.reason)

    def tell(self, arrival: Arrival, plan: Plan) -> None:
        """Say that a message was put off or quarantined; call it once that is committed."""
        name, verdict = self.consumer.name, plan.verdict
        if plan.mark is Mark.DELAYED:
            signal = DeliveryDelayed(
                name, arrival.event_type, str(verdict.failure), verdict.error_type, arrival.attempt,
                plan.run_in.total_seconds(), verdict.reason,
            )  # fmt: skip
            self.signals.emit(signal)
        elif plan.mark is Mark.QUARANTINED:
            kind = str(verdict.failure)
            self.signals.emit(DeliveryQuarantined(name, arrival.event_type, kind, verdict.code, verdict.reason))


def _is_away(run: HandlerRun, error: BaseException) -> bool:
    """Whether our database went away, as far as this attempt can tell; a connection that we cut does not count.

    `error` came out of the transaction: the handler's own, or what BEGIN, a statement of ours, ROLLBACK or COMMIT
    met. A handler's error may speak of any connection, so it alone decides nothing.
    """
    if run.limited:
        return False
    return run.lost or (error is not run.error and connection_like(error))


def returned(verdict: Verdict) -> Outcome:
    """The outcome of what is given back, uncharged."""
    if verdict.failure is not FailureClass.DEPENDENCY_DOWN:
        return Outcome(End.INTERRUPTED)
    return Outcome(End.AWAY, "dependency" if verdict.dependency is None else verdict.dependency.name)


def connection_like(error: BaseException) -> bool:
    """Whether an error of our own statements says that the connection is gone, or could not be made.

    asyncpg's ``InternalClientError`` is what a pooled connection raises that was told of a shutdown while idle.
    """
    return type(error).__name__ == "InternalClientError" or classify(error, rules=_NO_RULES, attempt=1).connection_lost


def _nobody(_: str) -> None:
    """Where nothing takes deliveries in, nothing needs to be paused."""
