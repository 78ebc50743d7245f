"""One attempt at one message: its transaction, its handler within the time limit, and what became of both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import seconds
from postroad.consume.delivery import Delivery, Resources
from postroad.consume.inbox import Mark
from postroad.consume.lanes import Lanes
from postroad.consume.pipeline import STALE, Arrival, Passage, Plan, dated, exhausted, handled, kept, planned, validated
from postroad.errors import LeaseLost, PostroadError
from postroad.events.cause import Cause, cause
from postroad.failures import FailureClass, Rules, Verdict, classify
from postroad.signals.catalog import (
    DeliveriesCommitted,
    DeliveryDelayed,
    DeliveryQuarantined,
    HandlerStarted,
    LateWriteRefused,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from postroad.clock import Clock
    from postroad.consume.consumer import Consumer
    from postroad.signals import Signals
    from postroad.sql.drive import Transactions, Unit

LET_GO: Final = seconds(2)
"""How long a handler that was told to stop may take; after that its connection is cut."""


class End(StrEnum):
    """What became of an attempt."""

    HANDLED = "handled"
    DUPLICATE = "duplicate"
    DROPPED = "dropped"
    DELAYED = "delayed"
    QUARANTINED = "quarantined"
    BUSY = "busy"  # another process has the message open: try again in a moment, uncharged
    AWAY = "away"  # our database is: give back, pause, uncharged
    INTERRUPTED = "interrupted"  # give back, uncharged
    FENCED = "fenced"  # the row of `work` is another worker's: nothing was changed


SETTLED: Final = frozenset({End.HANDLED, End.DUPLICATE, End.DROPPED, End.DELAYED, End.QUARANTINED})
"""These are durable: the message is in safe hands, and may be acked."""

_LIMIT: Final = "PR506"
_NO_RULES: Final = Rules()
_MARKED: Final = {Mark.DROPPED: End.DROPPED, Mark.DELAYED: End.DELAYED, Mark.QUARANTINED: End.QUARANTINED}
_REACHED: Final = {
    Passage.HANDLED: End.HANDLED,
    Passage.DUPLICATE: End.DUPLICATE,
    Passage.STALE: End.DROPPED,
    Passage.BUSY: End.BUSY,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, and a safe reason where there is one."""

    end: End
    reason: str = ""


class Attempts:
    """Runs messages of one consumer through the pipeline, each in a transaction of its own.

    Nothing of a message is committed in part: its mark, the handler's effects and the end of its row of `work`
    commit together; after a failure its mark and the row that keeps it do. Whoever is told an outcome in `SETTLED`
    may ack; anything else changed nothing. Errors that are neither the handler's nor the database's absence come
    out: a right that is missing, a schema that is too old.

    `lanes` keeps messages of one key apart, deliveries and retries alike; `away` is told of a missing dependency.
    """

    def __init__(
        self, consumer: Consumer[Any], *, transactions: Transactions[Any], schema: str, resources: Resources,
        signals: Signals, clock: Clock, chance: Callable[[], float],
    ) -> None:  # fmt: skip
        """Handle for `consumer`; `chance` gives random numbers in [0, 1) for the jitter of retries."""
        self.consumer = consumer
        self._transactions = transactions
        self._schema = schema
        self.resources = resources
        self.signals = signals
        self.clock = clock
        self._chance = chance
        self.running: set[_Run] = set()
        self.lanes = Lanes()
        self.away: Callable[[str], None] = _nobody

    async def settle(self, arrival: Arrival) -> Outcome:
        """Take an identified message to its outcome. Cancellation rolls back and comes out."""
        arrival = arrival if arrival.refusal is not None else validated(dated(arrival, now=self.clock.now()))
        if arrival.refusal is not None:
            return await self._keep(arrival, self._judge(arrival.refusal, arrival))
        verdict = exhausted(self.consumer, arrival)
        if verdict is not None:
            return await self._keep(arrival, verdict)
        run = _Run(self, arrival)
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

    def cut_overdue(self) -> int:
        """Cut the connection of every handler that goes on `LET_GO` after its time limit; how many. Call it often.

        Such a handler swallows its cancellation or blocks; without its connection it cannot commit.
        """
        now = self.clock.monotonic()
        overdue = [run for run in self.running if run.overdue(now)]
        for run in overdue:
            run.cut()
        return len(overdue)

    async def _handle(self, run: _Run) -> Outcome:
        arrival = run.arrival
        async with self._transactions.begin() as unit:
            run.unit = unit
            passage = await unit.drive(handled(self._schema, self.consumer, arrival, run))
        if passage in {Passage.HANDLED, Passage.STALE}:
            self.signals.emit(DeliveriesCommitted(self.consumer.name, 1))
        return Outcome(_REACHED[passage], STALE if passage is Passage.STALE else "")

    async def _fail(self, run: _Run, error: Exception) -> Outcome:
        """The transaction is rolled back (or nobody knows whether it committed): decide what becomes of the message."""
        if _is_away(run, error):
            return Outcome(End.AWAY, "database")
        return await self._keep(run.arrival, self._judge(run.error or error, run.arrival))

    def _judge(self, error: BaseException, arrival: Arrival) -> Verdict:
        verdict = classify(error, rules=self.consumer.rules, attempt=arrival.attempt)
        if isinstance(error, PostroadError) and error.code == _LIMIT:
            return replace(verdict, failure=FailureClass.TRANSIENT, code=_LIMIT, reason=str(error))
        return verdict

    async def _keep(self, arrival: Arrival, verdict: Verdict) -> Outcome:
        plan = planned(self.consumer, arrival, verdict, chance=self._chance())
        if plan is None:
            down = verdict.failure is FailureClass.DEPENDENCY_DOWN
            return Outcome(End.AWAY, "dependency") if down else Outcome(End.INTERRUPTED)
        try:
            async with self._transactions.begin() as unit:
                passage = await unit.drive(kept(self._schema, self.consumer, arrival, plan))
        except LeaseLost:
            self.signals.emit(LateWriteRefused("consume", 1))
            return Outcome(End.FENCED)
        except Exception as error:
            if connection_like(error):
                return Outcome(End.AWAY, "database")
            raise
        if passage is not Passage.KEPT:
            return Outcome(_REACHED[passage])
        self._tell(arrival, plan)
        return Outcome(_MARKED[plan.mark], plan.verdict.reason)

    def _tell(self, arrival: Arrival, plan: Plan) -> None:
        name, verdict = self.consumer.name, plan.verdict
        self.signals.emit(DeliveriesCommitted(name, 1))
        if plan.mark is Mark.DELAYED:
            signal = DeliveryDelayed(
                name, arrival.event_type, str(verdict.failure), verdict.error_type, arrival.attempt,
                plan.run_in.total_seconds(),
            )  # fmt: skip
            self.signals.emit(signal)
        elif plan.mark is Mark.QUARANTINED:
            kind = str(verdict.failure)
            self.signals.emit(DeliveryQuarantined(name, arrival.event_type, kind, verdict.code, verdict.reason))


class _Run:
    """The author's handler, called once inside the transaction."""

    __slots__ = ("_attempts", "_deadline", "arrival", "error", "limited", "lost", "unit")

    def __init__(self, attempts: Attempts, arrival: Arrival) -> None:
        self._attempts = attempts
        self._deadline = 0.0
        self.arrival = arrival
        self.unit: Unit[Any] | None = None
        self.error: BaseException | None = None
        self.limited = False
        self.lost = False

    async def __call__(self) -> None:
        """Run it within its time limit; what it raises is kept in `error`, so that ours is told from its own."""
        owner, arrival = self._attempts, self.arrival
        consumer = owner.consumer
        limit = consumer.max_runtime.total_seconds()
        self._deadline = owner.clock.monotonic() + limit + LET_GO.total_seconds()
        owner.running.add(self)
        owner.signals.emit(HandlerStarted(consumer.name, arrival.event_type, arrival.attempt))
        delivery, origin = self._delivery(), self._cause()
        timer = asyncio.timeout(limit)
        try:
            with cause(origin):
                await _within(timer, consumer.function(arrival.event, delivery))
        except BaseException as error:
            self.limited = self.limited or timer.expired()
            self.lost = self.unit is not None and self.unit.lost
            self.error = self._translated(error)
            if self.error is error:
                raise
            raise self.error from None
        finally:
            owner.running.discard(self)

    def overdue(self, now: float) -> bool:
        """Whether it goes on although it was told to stop a while ago."""
        return now >= self._deadline

    def cut(self) -> None:
        """Cut its connection."""
        self.limited = True
        if self.unit is not None and not self.unit.lost:
            self.unit.terminate()

    def _translated(self, error: BaseException) -> BaseException:
        consumer = self._attempts.consumer
        if self.limited and not isinstance(error, asyncio.CancelledError):
            limit = consumer.max_runtime.total_seconds()
            return PostroadError(_LIMIT, f"the handler of consumer {consumer.name!r} ran longer than {limit:g} s")
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or not task.cancelling()):
            # Nobody cancelled us: something that the handler awaited was. An ordinary failure of its own.
            return RuntimeError("something that the handler awaited was cancelled")
        return error

    def _delivery(self) -> Delivery[Any]:
        arrival, envelope, unit = self.arrival, self.arrival.envelope, self.unit
        assert envelope is not None
        assert unit is not None
        assert arrival.message_key is not None
        return Delivery(
            tx=unit.tx, consumer=self._attempts.consumer.name, id=envelope.id, source=envelope.source,
            type=envelope.type, version=envelope.version, key=envelope.key, sequence=envelope.sequence,
            occurred_at=envelope.time, recorded_at=envelope.recorded,
            correlation_id=envelope.correlation_id or envelope.id, causation_id=envelope.causation_id,
            message_key=arrival.message_key, attempt=arrival.attempt, redelivered=arrival.redelivered,
            resources=self._attempts.resources,
        )  # fmt: skip

    def _cause(self) -> Cause:
        envelope = self.arrival.envelope
        assert envelope is not None
        return Cause(correlation=envelope.correlation_id or envelope.id, causation=envelope.id)


async def _within(timer: asyncio.Timeout, handling: Awaitable[None]) -> None:
    async with timer:
        await handling
    if timer.expired():  # It swallowed the cancellation and returned.
        raise TimeoutError


def _is_away(run: _Run, error: BaseException) -> bool:
    """Whether our database went away, as far as this attempt can tell; a connection that we cut does not count.

    `error` came out of the transaction: the handler's own, or what BEGIN, a statement of ours, ROLLBACK or COMMIT
    met. A handler's error may speak of any connection, so it alone decides nothing.
    """
    if run.limited:
        return False
    return run.lost or (error is not run.error and connection_like(error))


def connection_like(error: BaseException) -> bool:
    """Whether an error of our own statements says that the connection is gone, or could not be made.

    asyncpg's ``InternalClientError`` is what a pooled connection raises that was told of a shutdown while idle.
    """
    return type(error).__name__ == "InternalClientError" or classify(error, rules=_NO_RULES, attempt=1).connection_lost


def _nobody(_: str) -> None:
    """Where nothing takes deliveries in, nothing needs to be paused."""
