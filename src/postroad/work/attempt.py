"""One call of a job's function: its request, its run, its time limit, and who may stop it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from postroad.clock import seconds
from postroad.errors import ContractError, PostroadError, UsageError
from postroad.events.cause import cause
from postroad.work.ending import LIMIT
from postroad.work.limit import TimeLimit
from postroad.work.run import BlockingRun, Grip, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.sql.drive import Transactions
    from postroad.sql.threads import ThreadTransactions
    from postroad.work.job import Job
    from postroad.work.store import ClaimedRow

LET_GO: Final = seconds(2)
"""How long a function that was told to stop may take; after that its row is no longer its own."""
_MOST_NAMED: Final = 5


class Runner:
    """A job, and what its functions run on in this process."""

    __slots__ = ("_known", "allowance", "job", "limit", "transactions")

    def __init__(self, job: Job[Any], transactions: Transactions[Any] | ThreadTransactions[Any]) -> None:
        """Call the function of `job`; its runs open `transactions`."""
        self.job = job
        self.transactions: Any = transactions
        self.limit = TimeLimit(job.max_runtime.total_seconds())
        self.allowance = job.max_runtime.total_seconds() + LET_GO.total_seconds()
        self._known: frozenset[str] | None = None

    def read(self, row: ClaimedRow) -> Any:
        """The request of a row.

        Raises:
            ContractError: PR505, it does not fit what the function takes.
        """
        try:
            return self.job.adapter.validate_json(row.wire.body)
        except ValidationError as error:
            # Without its cause: pydantic's text quotes the request.
            raise ContractError("PR505", self._misfit(error)) from None
        except BaseException as error:  # noqa: BLE001 - a validator of the author's, on a row that nobody vouches for
            what = f"a validator of job {self.job.name!r} raised {type(error).__name__}"
            raise ContractError("PR505", what) from None

    def overtime(self) -> PostroadError:
        """The error of a function that exceeded its time limit."""
        longest = self.job.max_runtime.total_seconds()
        return PostroadError(LIMIT, f"job {self.job.name!r} ran longer than {longest:g} s")

    def _misfit(self, error: ValidationError) -> str:
        if self._known is None:
            self._known = _fields(self.job.adapter)
        details = error.errors(include_url=False, include_context=False, include_input=False)
        told = [f"{self._place(item['loc'])}: {item['type']}" for item in details[:_MOST_NAMED]]
        more = f" and {len(details) - _MOST_NAMED} more" if len(details) > _MOST_NAMED else ""
        return f"a request of job {self.job.name!r} does not fit what it takes ({', '.join(told)}{more})"

    def _place(self, location: tuple[int | str, ...]) -> str:
        first = location[0] if location else "the whole"
        return str(first) if not location or first in (self._known or ()) else "a field"


class Attempt:
    """One call of a job's function, from when it has a slot until it has ended or was given up."""

    __slots__ = (
        "began", "deadline", "grip", "limited", "row", "run", "runner", "stop_at", "stopped", "task",
    )  # fmt: skip

    def __init__(self, row: ClaimedRow, *, now: float) -> None:
        """It has its slot, at monotonic time `now`."""
        self.row = row
        self.began = now
        self.runner: Runner | None = None
        self.grip: Grip | None = None
        self.run: Run[Any] | BlockingRun[Any] | None = None
        self.limited = False
        self.stopped = False
        self.stop_at = self.deadline = float("inf")
        self.task: asyncio.Task[Any] | None = None
        """What runs it, until its function has ended."""

    async def call(self, runner: Runner, request: Any, grip: Grip) -> None:
        """Call the function within its time limit; what it raises comes out, PR506 where that has passed.

        An operator's stop comes out as `CancelledError` with `stopped` set, taken back from the task.
        """
        self.runner, self.grip = runner, grip
        task = self.task
        assert task is not None
        before = task.cancelling()
        try:
            await self._within(runner, request, grip)
        except asyncio.CancelledError:
            if not self._taken_back(task, before) and task.cancelling() <= before:
                # Nobody cancelled us: something that the function awaited was. An ordinary failure of its own.
                what = "something that the job awaited was cancelled"
                raise RuntimeError(what) from None
            raise
        except TimeoutError:
            self._taken_back(task, before)
            if self.limited:
                raise runner.overtime() from None
            raise
        except Exception:
            self._taken_back(task, before)
            raise
        except BaseException as error:
            if asyncio.current_task(task.get_loop()) is not task:
                raise  # The loop is gone, and our coroutine is closed.
            self._taken_back(task, before)
            # Without its cause, whose text nobody vouches for.
            what = f"the job raised {type(error).__name__}, which would end its worker"
            raise RuntimeError(what) from None
        else:
            self._taken_back(task, before)
        finally:
            self.task = None

    async def _within(self, runner: Runner, request: Any, grip: Grip) -> None:
        job = runner.job
        if not job.threaded:
            self.run = run = Run(grip, runner.transactions)
            self.deadline = self.began + runner.allowance
            with cause(run.cause):
                await runner.limit.within(job.function(request, run), told=self, task=self.task)
            return
        async with runner.transactions.seated() as seated:
            blocking = BlockingRun[Any](grip, seated, asyncio.get_running_loop())
            self.run = blocking
            with cause(blocking.cause):
                call = partial(_returning, job.function, request, blocking)
                await runner.limit.within(seated.call(call), told=self, task=self.task)

    def stop(self, now: float) -> None:
        """Cancel a function that an operator's word has not ended; a thread goes on, since nothing stops it."""
        self.stop_at = float("inf")
        if self.task is not None and self.runner is not None and not self.runner.job.threaded:
            self.stopped = True
            self.task.cancel("an operator has cancelled the job")
            self.deadline = min(self.deadline, now + LET_GO.total_seconds())

    def give_up(self) -> None:
        """Leave it alone: what it still does changes nothing."""
        if self.grip is not None:
            self.grip.given_up = True
        if isinstance(self.run, Run):
            self.run.cut()

    def _taken_back(self, task: asyncio.Task[Any], before: int) -> bool:
        """Take our own cancellation back; whether it was the only one."""
        return self.stopped and task.cancelling() > before and task.uncancel() <= before


def _returning(function: Callable[[Any, Any], Any], request: Any, run: BlockingRun[Any]) -> None:
    value = function(request, run)
    if hasattr(value, "__await__"):
        if hasattr(value, "close"):
            value.close()
        raise UsageError("PR107", "a `def` job returned something to be awaited, which nobody runs; write `async def`")


def _fields(adapter: TypeAdapter[Any]) -> frozenset[str]:
    try:
        return frozenset(adapter.json_schema(by_alias=True).get("properties", ()))
    except Exception:  # noqa: BLE001 - a type without a schema: its fields are not named
        return frozenset()
