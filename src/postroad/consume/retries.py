"""The second and later attempts of a consumer: its rows of `work`, by the same pipeline as a first delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.consume.arrival import identified, resumed
from postroad.consume.attempt import RESULTS, End
from postroad.errors import LeaseLost, Unavailable
from postroad.signals.catalog import DeliveryResult, DeliverySettled

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.consume.arrival import Arrival
    from postroad.consume.attempt import Attempts, Outcome
    from postroad.signals import Signals
    from postroad.work.store import ClaimedRow


class Retries:
    """Runs the rows of one consumer; implements `work.Handler`.

    A row is settled in the transaction of its handler, fenced by its token: when another worker has it by now,
    nothing of this run remains. It keeps the key's lane, so that it never runs beside another event of its key.
    """

    def __init__(self, attempts: Attempts, *, signals: Signals, clock: Clock) -> None:
        """Retry for `attempts.consumer`."""
        self._attempts = attempts
        self._signals = signals
        self._clock = clock
        self.queue = attempts.consumer.name
        self.slots = attempts.consumer.concurrency

    async def run(self, row: ClaimedRow) -> None:
        """See `work.Handler.run`.

        Raises:
            Unavailable: the row could not be run now; it is given back, uncharged.
            LeaseLost: another worker has it.
        """
        arrival = identified(self._attempts.consumer, self._arrival(row))
        began, given_back = self._clock.monotonic(), True
        try:
            async with self._attempts.turn(arrival):
                outcome = await self._attempts.settle(arrival)
            given_back = outcome.end not in RESULTS
        finally:
            if given_back:
                self._tell(arrival.event_type, DeliveryResult.GIVEN_BACK, began, "")
        self._check(row, outcome)
        self._tell(arrival.event_type, RESULTS[outcome.end], began, outcome.reason)

    def _arrival(self, row: ClaimedRow) -> Arrival:
        return resumed(row)

    def _check(self, row: ClaimedRow, outcome: Outcome) -> None:
        if outcome.end is End.FENCED:
            raise LeaseLost("PR401", f"row {row.id} of work was claimed by another worker")
        if outcome.end is End.AWAY:
            self._attempts.away(outcome.reason)
            raise Unavailable("PR301", f"the {outcome.reason} of consumer {self._attempts.consumer.name!r} is away")
        if outcome.end not in RESULTS:
            raise Unavailable("PR304", f"row {row.id} of work is open elsewhere, or was interrupted")

    def _tell(self, event_type: str, result: DeliveryResult, began: float, reason: str) -> None:
        taken = self._clock.monotonic() - began
        self._signals.emit(DeliverySettled(self._attempts.consumer.name, event_type, result, 1, (taken,), reason))
