"""The handler of a queue of jobs: from a claimed row to a written end, for many at once."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import seconds
from postroad.errors import ContractError
from postroad.signals.catalog import (
    IntakePaused,
    IntakeResumed,
    JobDelayed,
    JobQuarantined,
    LateWriteRefused,
    TaskFailed,
)
from postroad.work import store
from postroad.work.attempt import Attempt, Runner
from postroad.work.completion import gone
from postroad.work.ending import HANDLED, Became, Ending, cancelled, exhausted, failed, refused
from postroad.work.planned import too_late, tuned
from postroad.work.probe import DependencyProbe
from postroad.work.run import Grip
from postroad.work.running import Finish
from postroad.work.sweeper import at_once

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.leases import Leases
    from postroad.signals import Signals
    from postroad.sql.drive import Transactions
    from postroad.sql.manager import Manager
    from postroad.sql.threads import ThreadTransactions
    from postroad.work.completion import Completions
    from postroad.work.job import Job
    from postroad.work.store import ClaimedRow
    from postroad.work.use import Resources

UNKNOWN: Final = "unknown"
GRACE: Final = seconds(5)
"""How long a function that an operator has cancelled may take to end by itself."""
PATIENCE: Final = seconds(1)
"""How long a row that was claimed ahead may wait here for its slot."""

_QUICK_SECONDS: Final = 0.05  # Jobs that take less are claimed ahead.
_AHEAD: Final = 300
_MEASURED: Final = 20
_WEIGHT: Final = 0.05
_REMEMBERED: Final = 1000
_NAME: Final = re.compile(r"[a-z0-9._-]{1,200}")


class JobQueue:
    """Runs the rows of one queue of jobs; implements `work.Handler`.

    `concurrency` functions at once. Where they take under 50 ms on average, rows are claimed ahead, as many as would
    run within a tenth of a second; what waits for a slot for longer than a second goes back to the table.
    """

    def __init__(
        self, name: str, jobs: Sequence[Job[Any]], *, manager: Manager, completions: Completions, resources: Resources,
        transactions: Callable[[Job[Any]], Transactions[Any] | ThreadTransactions[Any]], signals: Signals, clock: Clock,
        chance: Callable[[], float], leases: Leases | None = None, guests: Sequence[Job[Any]] = (),
    ) -> None:  # fmt: skip
        """Run `jobs`, which agree on how many of them run at once; `transactions` finds what a job's runs open.

        `guests` are jobs of other queues, which an enqueue may have put into this one: they run under its limits.
        """
        self.queue = name
        self.slots = jobs[0].concurrency
        self.fleet = jobs[0].fleet
        self._runners = {job.name: Runner(job, transactions(job)) for job in (*jobs, *guests)}
        self._manager = manager
        self._completions = completions
        self._resources = resources
        self._leases = leases
        self._signals = signals
        self._clock = clock
        self._chance = chance
        self._waiting: OrderedDict[int, tuple[ClaimedRow, float]] = OrderedDict()
        self._active: dict[int, Attempt] = {}
        self._lost: dict[int, None] = {}
        self._down: set[str] = set()
        self._down_since = 0.0
        self._probes = {
            one.name: DependencyProbe(one, resources, clock)
            for job in (*guests, *jobs)
            for one in job.rules.down.values()
        }
        self._mean = 0.0
        self._measured = 0
        self._few = 0
        self.begin: Callable[[int], asyncio.Task[None] | None] = lambda _: None
        """Set by the claimer: starts the run of the row that has that token."""
        self.hungry: Callable[[], None] = lambda: None
        """Set by the claimer: called when so few rows wait here that more may be claimed while these run."""

    # --- what the claimer asks and says -----------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many rows to claim now: the free slots, and ahead of quick jobs, a batch at a time."""
        if self._down:
            return 0
        free = self.slots - len(self._active) - len(self._waiting)
        ahead = self._ahead
        if ahead and len(self._waiting) > ahead // 2:
            return 0
        return max(free + ahead, 0)

    @property
    def active(self) -> int:
        """How many functions run."""
        return len(self._active)

    @property
    def waits(self) -> bool:
        """Whether a dependency of its jobs is away."""
        return bool(self._down)

    @property
    def _ahead(self) -> int:
        if self.fleet is not None or self._measured < _MEASURED or self._mean >= _QUICK_SECONDS:
            return 0
        return min(_AHEAD, int(self.slots * 2 * _QUICK_SECONDS / max(self._mean, 1e-6)))

    def label(self, row: ClaimedRow) -> str:
        """The job's name where it is known here: bounded, so that it may be a label."""
        name = row.wire.event_type
        return name if name in self._runners and name is not None else UNKNOWN

    def cancel(self, token: int, reason: str) -> None:
        """An operator has cancelled what runs under that token; an ``async def`` function that goes on is stopped."""
        attempt = self._active.get(token)
        if attempt is None or attempt.grip is None or attempt.stopped or attempt.stop_at < float("inf"):
            return  # Not by `grip.cancelled`: the function's own report of progress may have heard of it first.
        attempt.grip.cancelled = reason
        attempt.stop_at = self._clock.monotonic() + GRACE.total_seconds()

    def withdrawn(self, *, patience: float = PATIENCE.total_seconds()) -> list[ClaimedRow]:
        """The rows that have waited for a slot for longer than that; they are not begun any more."""
        before = self._clock.monotonic() - patience
        rows = [row for row, since in self._waiting.values() if since <= before]
        for row in rows:
            del self._waiting[row.token]
        return rows

    def overdue(self) -> list[tuple[ClaimedRow, Ending]]:
        """Stop what is to be stopped, and give up what does not end: its slot is free, its row the caller's to end.

        A function that goes on two seconds after its time limit, or after it was stopped, is reported as stuck.
        """
        now, given_up = self._clock.monotonic(), []
        for attempt in [*self._active.values()]:
            if now >= attempt.stop_at:
                attempt.stop(now)
            if now >= attempt.deadline:
                given_up.append((attempt.row, self._give_up(attempt)))
        return given_up

    def _give_up(self, attempt: Attempt) -> Ending:
        runner = attempt.runner
        assert runner is not None
        attempt.give_up()
        self.leave(attempt.row.token)
        reason = "it goes on although it was told to stop; its slot is open again, and its result changes nothing"
        self._signals.emit(TaskFailed(f"job:{runner.job.name}", "Stuck", reason))
        return self._judged(attempt, runner.overtime())

    # --- one row ----------------------------------------------------------------------------------------------------

    def accept(self, rows: Sequence[ClaimedRow]) -> None:
        """Begin these rows, each as soon as it has a slot."""
        now = self._clock.monotonic()
        for row in rows:
            self._waiting[row.token] = (row, now)
        self._few = self._ahead // 2
        self._fill()

    def leave(self, token: int) -> None:
        """What ran under that token has ended, or is left alone: its slot is open."""
        if self._active.pop(token, None) is not None:
            self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._active) < self.slots:
            token, (row, _) = self._waiting.popitem(last=False)
            attempt = self._active[token] = Attempt(row, now=self._clock.monotonic())
            attempt.task = self.begin(token)
            if len(self._waiting) == self._few:
                self.hungry()

    async def run(self, row: ClaimedRow) -> str | Finish:
        """See `work.Handler.run`; it has its slot, and leaves it before anything is written about its end.

        Raises:
            LeaseLost: another worker has the row, or it was given up here.
            Unavailable: the row could not be run now; it is given back, uncharged.
        """
        attempt = self._active[row.token]
        try:
            ending = await self._attempted(attempt)
        finally:
            self.leave(row.token)
        grip = attempt.grip
        if grip is not None and grip.fenced:
            raise grip.gone()
        if grip is not None and grip.given_up:
            raise grip.refused()
        if grip is not None and grip.finished:
            return "ok"
        return _finish(row, ending) or await self._put_away(row, ending)

    async def _attempted(self, attempt: Attempt) -> Ending:
        row = attempt.row
        ends = too_late(row) if row.cancelled is None else row.cancelled
        if ends is not None:
            return cancelled(ends)
        try:
            runner = self._runner(row)
            if row.attempt >= runner.job.retry.attempts:
                return exhausted(row)
            request = runner.read(row)
        except ContractError as error:
            return refused(error, row)
        grip = Grip(
            row=row, job=runner.job.name, manager=self._manager, signals=self._signals, clock=self._clock,
            resources=self._resources, leases=self._leases,
            until=attempt.began + runner.job.max_runtime.total_seconds(),
        )  # fmt: skip
        try:
            await attempt.call(runner, request, grip)
        except asyncio.CancelledError as error:
            if not attempt.stopped or _cancelled():
                raise
            return self._judged(attempt, error)
        except Exception as error:  # noqa: BLE001 - the border around the author's function
            return await self._asked(attempt, error, self._judged(attempt, error))
        return HANDLED

    def _runner(self, row: ClaimedRow) -> Runner:
        name = row.wire.event_type or ""
        runner = self._runners.get(name)
        if runner is None:
            shown = repr(name) if _NAME.fullmatch(name) else "of a name that is not one"
            raise ContractError(
                "PR513", f"queue {self.queue!r} has no job {shown} here; declare it, then release the row"
            )
        job = tuned(runner.job, row.wire.headers)
        return runner if job is runner.job else Runner(job, runner.transactions)

    def took(self, taken: float) -> None:
        """A run took so many seconds, with what was written about it alone."""
        self._measured += 1
        self._mean += (taken - self._mean) * max(_WEIGHT, 1 / self._measured)

    async def _asked(self, attempt: Attempt, error: Exception, ending: Ending) -> Ending:
        """A failure that speaks of a dependency is the dependency's only while that does not answer."""
        dependency = None if ending.verdict is None else ending.verdict.dependency
        if dependency is None:
            return ending
        if await self._probes[dependency.name].answers():
            return self._judged(attempt, error, answers=True)
        if not self._down:
            self._down_since = self._clock.monotonic()
            self._signals.emit(IntakePaused(self.queue, dependency.name))
        self._down.add(dependency.name)
        return ending

    async def look_for_dependencies(self) -> None:
        """Ask those that are away, about once a second; nothing is claimed until all answer."""
        down = self._down
        for name in [*down]:
            if await self._probes[name].answers():
                down.discard(name)
                if not down:
                    self._signals.emit(IntakeResumed(self.queue, self._clock.monotonic() - self._down_since))

    def _judged(self, attempt: Attempt, error: BaseException, *, answers: bool = False) -> Ending:
        runner, grip, row = attempt.runner, attempt.grip, attempt.row
        assert runner is not None
        assert grip is not None
        ours = grip.lost and not attempt.limited and row.id not in self._lost
        if ours:  # Once, that is the database's doing; twice, it is the job's: it can kill its connection.
            self._lost[row.id] = None
            if len(self._lost) > _REMEMBERED:
                del self._lost[next(iter(self._lost))]
        return failed(
            error, job=runner.job, row=row, chance=self._chance(), stopped=grip.cancelled, ours=ours, answers=answers
        )  # fmt: skip

    # --- its end ----------------------------------------------------------------------------------------------------

    def put(self, finish: Finish, told: Callable[[Exception | None], None]) -> None:
        """Write that a row has ended; see `Completions.put`."""
        self._completions.put(finish, told)

    def forget(self) -> None:
        """Write no more ends; see `Completions.forget`."""
        self._completions.forget()

    async def settle(self, row: ClaimedRow, ending: Ending) -> None:
        """Write how a row ended, fenced.

        Raises:
            LeaseLost: another worker has the row.
            Unavailable: the database is away.
        """
        finish = _finish(row, ending)
        if finish is None:
            await self._put_away(row, ending)
            return
        written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.put(finish, lambda error: None if written.done() else written.set_result(error))
        error = await written
        if error is not None:
            raise error

    async def _put_away(self, row: ClaimedRow, ending: Ending) -> str:
        """Put a row off or into quarantine, by a statement of its own."""
        assert ending.verdict is not None
        if ending.became is Became.DELAYED:
            work = store.delay_again(
                self._manager.schema, row.id, row.token, verdict=ending.verdict, attempt=ending.attempt,
                run_in=ending.run_in,
            )  # fmt: skip
        else:
            work = store.quarantine_claimed(
                self._manager.schema, row.id, row.token, verdict=ending.verdict, attempt=ending.attempt
            )
        if not await at_once(self._manager, work):
            self._signals.emit(LateWriteRefused("work", 1))
            raise gone(row.id)
        self._tell(row, ending)
        return "failed"

    def _tell(self, row: ClaimedRow, ending: Ending) -> None:
        verdict, name = ending.verdict, self.label(row)
        assert verdict is not None
        kind = str(verdict.failure)
        if ending.became is Became.DELAYED:
            waits = ending.run_in.total_seconds()
            signal = JobDelayed(
                self.queue, name, kind, verdict.error_type, row.attempt + 1, waits, verdict.reason
            )  # fmt: skip
            self._signals.emit(signal)
        else:
            self._signals.emit(JobQuarantined(self.queue, name, kind, verdict.code, verdict.reason))


def _finish(row: ClaimedRow, ending: Ending) -> Finish | None:
    """The end of a row that is done with; None where it is put off or into quarantine."""
    if ending.verdict is not None and ending.became is not Became.DROPPED:
        return None
    return Finish(row.id, row.token, str(ending.became), ending.reason or None)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
