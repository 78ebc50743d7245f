"""The service that takes one consumer's deliveries in, has them handled, and acks what is in safe hands."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import seconds
from postroad.consume.arrival import Arrival, identified, received
from postroad.consume.attempt import RESULTS, SETTLED, End, Outcome
from postroad.consume.group import Group, run_groups
from postroad.consume.outage import answered
from postroad.retry import Backoff
from postroad.signals.catalog import (
    DeliveriesAcked,
    DeliveriesReceived,
    DeliveryResult,
    DeliverySettled,
    IntakePaused,
    IntakeResumed,
    ProjectionLag,
    Unacked,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from postroad.clock import Clock
    from postroad.consume.attempt import Attempts
    from postroad.consume.outage import Pausable, Probe
    from postroad.owner import Owner, Readiness
    from postroad.signals import Signals
    from postroad.transport.base import Incoming, Intake

_MOST: Final = 256
_AT_ONCE: Final = 2
_LET_GO: Final = seconds(2)
_BUSY: Final = Backoff(first=seconds(0.05), most=seconds(1), attempts=1)
_WATCH_SECONDS: Final = 1.0
_UNACKED_EVERY: Final = 5  # looks of the watch
_CALM_SECONDS: Final = 5.0


@dataclass(slots=True)
class _Hand:
    """What is done with deliveries at the end of this turn of the loop, and what waits for a moment."""

    acks: list[tuple[Arrival, Outcome, float]]
    returns: list[Arrival]
    later: dict[asyncio.TimerHandle, Arrival]


class ConsumerService:
    """One consumer's intake in this process.

    It takes deliveries, runs each to a durable outcome, and acks them then, all those of one turn of the loop
    together. Up to `concurrency` handlers run at once: while they are fast in groups, otherwise, and what must run
    alone, each by itself. What is not durable is never acked: it goes back, uncharged, while the process stops or
    while the database is away (then nothing is taken in until it answers ``SELECT 1``).

    Told to stop, it takes nothing more, gives back what has not started and lets the rest come to its end;
    cancelled, it rolls that back too. After a crash the broker delivers again whatever was not acked, and the inbox
    knows what was committed.
    """

    def __init__(
        self, attempts: Attempts, *, intake: Intake, database: Probe, work: Pausable | None, owner: Owner,
        signals: Signals, clock: Clock, chance: Callable[[], float],
    ) -> None:  # fmt: skip
        """Serve `attempts.consumer` from `intake`; `work` is paused with it."""
        self._attempts = attempts
        self._consumer = attempts.consumer
        self._lanes = attempts.lanes
        self._group = Group(attempts)
        self._intake = intake
        self._database = database
        self._work = work
        self._owner = owner
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self.name = f"consumer:{self._consumer.name}"
        self._hand = _Hand([], [], {})
        self._tries: dict[Any, int] = {}
        self._owed = 0
        self._absent: dict[str, None] = {}
        self._trouble = asyncio.Event()
        self._failures: list[BaseException] = []  # of groups; each ends the run
        self._open = False  # whether deliveries may start
        self._subscribed = True  # whether the broker hands us any; it does from the transport's start
        self._pauses = 0
        self._resumed_at = float("-inf")
        attempts.away = self._away

    # --- the service --------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, ready: Readiness) -> None:
        """See `Service.run`."""
        self._trouble.clear()
        self._open = True
        if self._work is not None:  # A run that failed while it sat out an outage has left it paused.
            self._work.resume(self._consumer.name)
        if not self._subscribed:
            await self._intake.resume()
            self._subscribed = True
        self._lanes.begin()
        slots = [self._task(self._slot(), f"slot-{number}") for number in range(self._consumer.concurrency)]
        slots.append(self._task(run_groups(self._lanes, self._attempts.gears, self._run_group), "groups"))
        others = [self._task(self._take(), "take"), self._task(self._watch(), "watch")]
        try:
            ready.up()
            await self._serve(stop, ready, [*slots, *others])
            await self._wind_down(slots)
            self._raise()
        finally:
            ending = self._task(self._let_go([*slots, *others], stopped=stop.is_set()), "let-go")
            await asyncio.shield(ending)

    async def _serve(self, stop: asyncio.Event, ready: Readiness, tasks: Sequence[asyncio.Task[None]]) -> None:
        while not stop.is_set():
            waits = [self._task(event.wait(), "wait") for event in (stop, self._trouble)]
            try:
                await asyncio.wait([*tasks, *waits], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            for task in tasks:
                if task.done():
                    task.result()
            self._raise()
            if self._trouble.is_set() and not stop.is_set():
                await self._sit_out(stop, ready)

    def _raise(self) -> None:
        if self._failures:
            failure = self._failures[0]
            self._failures.clear()
            raise failure

    def _task(self, work: Any, role: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._owner.task(work, name=f"{self.name}:{role}")
        return task

    # --- taking in and handling ---------------------------------------------------------------------------------

    async def _take(self) -> None:
        while True:
            batch = await self._intake.take(_MOST)
            if not batch:
                await asyncio.sleep(_WATCH_SECONDS / 10)  # stopped, or paused: whoever did that ends us
                continue
            self._owed += len(batch)
            redelivered = sum(incoming.redelivered for incoming in batch)
            self._signals.emit(DeliveriesReceived(self._consumer.name, len(batch), redelivered))
            await self._sort(deque(batch))

    async def _sort(self, batch: deque[Incoming]) -> None:
        """Read deliveries and queue them; while groups are busy a few at a time, as the database leaves us time.

        Cancelled meanwhile, it gives back those that it has not come to.
        """
        try:
            while batch:
                if len(batch) % _AT_ONCE == 0 and self._group.full:
                    await asyncio.sleep(0)
                incoming = batch.popleft()
                arrival = identified(self._consumer, received(incoming, whole=self._consumer.queue is not None))
                if self._open:
                    self._lanes.add(arrival)
                else:
                    self._give_back(arrival)
        finally:
            for incoming in batch:
                self._give_back(received(incoming))

    async def _slot(self) -> None:
        while (arrival := await self._lanes.next()) is not None:
            began = self._clock.monotonic()
            try:
                async with self._attempts.seats:
                    if not self._open:  # Closed while it waited: it has not started, and does not any more.
                        self._put_back([arrival])
                        continue
                    outcome = await self._attempts.settle(arrival)
            except BaseException:
                self._put_back([arrival])
                raise
            self._settled(arrival, outcome, self._clock.monotonic() - began)

    def _run_group(self, batch: Sequence[Arrival]) -> asyncio.Task[None]:
        def ended(group: asyncio.Task[None]) -> None:
            failure = None if group.cancelled() else group.exception()
            if group.cancelled() or failure is not None:  # Also where it had not begun.
                self._put_back(batch)
            if failure is not None:
                self._failures.append(failure)
                self._trouble.set()

        group = self._task(self._settle_group(batch), "group")
        group.add_done_callback(ended)
        return group

    async def _settle_group(self, batch: Sequence[Arrival]) -> None:
        async with self._attempts.seats:
            if not self._open:
                self._put_back(batch)
                return
            parting = await self._group.settle(batch)
        for arrival, outcome, taken in parting.settled:
            self._settled(arrival, outcome, taken)
        self._go_on(parting.later, parting.alone)

    def _go_on(self, later: Sequence[Arrival], alone: Sequence[Arrival]) -> None:
        """What a group has left over: the next group's, and what runs alone."""
        if not self._open:
            self._put_back([*later, *alone])
            return
        for arrival in alone:
            self._lanes.alone(arrival)
        self._lanes.onward(later)
        if not self._attempts.gears.fast:
            self._lanes.ungroup()

    def _settled(self, arrival: Arrival, outcome: Outcome, taken: float) -> None:
        if outcome.end is End.BUSY and self._open:
            self._park(arrival)
            return
        self._tries.pop(arrival.tag, None)
        self._lanes.release(arrival.lane)
        if outcome.end in SETTLED:
            if not self._hand.acks:
                asyncio.get_running_loop().call_soon(self._flush)
            self._hand.acks.append((arrival, outcome, taken))
        elif outcome.end is End.AWAY:
            self._away(outcome.reason)
            self._give_back(arrival)
        elif self._open:
            self._later(_BUSY.most.total_seconds(), arrival, self._give_back)  # never at once: it would come at once
        else:
            self._give_back(arrival)

    def _park(self, arrival: Arrival) -> None:
        """Another process has it open: look again in a moment. It keeps its lane, but no slot."""
        tries = self._tries[arrival.tag] = self._tries.get(arrival.tag, 0) + 1
        wait = _BUSY.delay(tries, chance=self._chance())
        self._later(wait.total_seconds(), arrival, self._lanes.again)

    def _later(self, wait: float, arrival: Arrival, act: Callable[[Arrival], None]) -> None:
        def due() -> None:
            del self._hand.later[handle]
            act(arrival)

        handle = asyncio.get_running_loop().call_later(wait, due)
        self._hand.later[handle] = arrival

    # --- acks and returns ---------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Ack what became durable in this turn of the loop, and then say so."""
        acks, self._hand.acks = self._hand.acks, []
        if not acks:
            return
        self._intake.ack([arrival.tag for arrival, _, _ in acks if arrival.tag is not None])
        self._owed -= len(acks)
        self._signals.emit(DeliveriesAcked(self._consumer.name, len(acks)))
        if (occurred := acks[0][0].occurred) is not None:
            self._signals.emit(
                ProjectionLag(self._consumer.name, max((self._clock.now() - occurred).total_seconds(), 0.0))
            )
        self._tell(
            (arrival.event_type, RESULTS[outcome.end], outcome.reason, taken) for arrival, outcome, taken in acks
        )

    def _tell(self, ended: Iterable[tuple[str, DeliveryResult, str, float]]) -> None:
        """Say what became of deliveries that ended in this turn: one signal for all that did alike."""
        alike: dict[tuple[str, DeliveryResult, str], list[float]] = {}
        for event_type, result, reason, taken in ended:
            alike.setdefault((event_type, result, reason), []).append(taken)
        for (event_type, result, reason), each in alike.items():
            seconds = tuple(each)
            self._signals.emit(DeliverySettled(self._consumer.name, event_type, result, len(seconds), seconds, reason))

    def _put_back(self, arrivals: Sequence[Arrival]) -> None:
        """Give back what has its lane."""
        for arrival in arrivals:
            self._lanes.release(arrival.lane)
            self._give_back(arrival)

    def _give_back(self, arrival: Arrival) -> None:
        """Return it to the queue; while we are about to leave the broker only then, or it would come to us again."""
        self._hand.returns.append(arrival)
        if self._open or not self._subscribed:
            self._return()

    def _return(self) -> None:
        returns, self._hand.returns = self._hand.returns, []
        if not returns:
            return
        self._intake.give_back([arrival.tag for arrival in returns if arrival.tag is not None])
        self._owed -= len(returns)
        self._tell((arrival.event_type, DeliveryResult.GIVEN_BACK, "", 0.0) for arrival in returns)

    def _close(self) -> None:
        """Start nothing more; what has not started goes back."""
        if not self._open:
            return
        self._open = False
        self._hand.returns += self._lanes.clear()
        for handle, arrival in self._hand.later.items():
            handle.cancel()
            if self._tries.pop(arrival.tag, None) is not None:  # It was busy, and kept its lane.
                self._lanes.release(arrival.lane)
            self._hand.returns.append(arrival)
        self._hand.later.clear()

    async def _unsubscribe(self) -> None:
        self._close()
        self._flush()
        await self._intake.pause()
        self._subscribed = False
        self._return()

    # --- a dependency is away -----------------------------------------------------------------------------------

    def _away(self, reason: str) -> None:
        self._absent[reason] = None
        self._close()
        self._trouble.set()

    async def _sit_out(self, stop: asyncio.Event, ready: Readiness) -> None:
        """Take nothing in until the database answers; nothing is charged meanwhile."""
        began, name = self._clock.monotonic(), self._consumer.name
        self._pauses = self._pauses + 1 if began - self._resumed_at < _CALM_SECONDS else 1
        away = ", ".join(self._absent)
        ready.down(f"{away} is away")
        if self._work is not None:
            self._work.pause(name)
        await self._unsubscribe()
        self._signals.emit(IntakePaused(name, away))
        while self._absent and not stop.is_set():  # Others may be missed meanwhile by what still runs.
            probes = [self._attempts.probes.get(reason, self._database) for reason in self._absent]
            self._absent.clear()
            await answered(probes, stop, tries=self._pauses, chance=self._chance)
        if stop.is_set():
            return
        self._trouble.clear()
        self._raise()
        await self._attempts.take_back()
        self._open = True
        await self._intake.resume()
        self._subscribed = True
        if self._work is not None:
            self._work.resume(name)
        self._resumed_at = self._clock.monotonic()
        self._signals.emit(IntakeResumed(name, self._resumed_at - began))
        ready.up()

    # --- the watch and the end ----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        looks = 0
        while True:
            if looks % _UNACKED_EVERY == 0:
                self._signals.emit(Unacked(self._consumer.name, self._owed))
            looks += 1
            await asyncio.sleep(_WATCH_SECONDS)
            if self._group.stalled(self._clock.monotonic()):
                self._attempts.gears.punish()
                self._lanes.ungroup()

    async def _wind_down(self, slots: Sequence[asyncio.Task[None]]) -> None:
        """Leave the broker, give back what has not started, and wait for what has; `slots` end with the group."""
        if self._subscribed:
            await self._unsubscribe()
        self._lanes.end(len(slots) - 1)
        await asyncio.wait(slots)

    async def _let_go(self, tasks: Iterable[asyncio.Task[None]], *, stopped: bool) -> None:
        """Cancel what still runs (it rolls back and goes back), then settle with the broker."""
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        self._close()
        if running:
            await asyncio.wait(running, timeout=_LET_GO.total_seconds())
        self._hand.returns += self._lanes.clear()
        await self._attempts.take_back()  # before the broker gives them to somebody else
        if self._subscribed:
            await self._unsubscribe()
        self._flush()
        self._return()
        if stopped:
            await self._intake.stop()
