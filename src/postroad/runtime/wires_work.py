"""Which rows of work a process runs, and on what: its consumers' retries and its jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from postroad.consume import Retries
from postroad.effects.ledger import Ledger
from postroad.effects.resolver import Resolver
from postroad.sql.transactions import AsyncpgTransactions
from postroad.work.claimer import Claimer
from postroad.work.completion import Completions
from postroad.work.jobs import JobQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroad.consume import Attempts
    from postroad.effects import Effect
    from postroad.runtime.process import Database, Ground
    from postroad.work.job import Job
    from postroad.work.lane import Handler
    from postroad.work.settings import WorkSettings

Queues: TypeAlias = "Mapping[str, Sequence[Job[Any]]]"

_THREADS: Final = 2
"""Threads for each ``def`` job that may run at once: one that is stuck leaves its slot to another."""


def claimer_of(
    ground: Ground, database: Database, attempts: Sequence[Attempts], *, work: Queues | None,
    deliveries: Mapping[str, Handler], times: WorkSettings,
) -> Claimer | None:  # fmt: skip
    """The claimer of a process, if it has anything to claim.

    That is the `deliveries` that it takes and, where it does `work`, its consumers' retries and these queues of jobs.
    """
    if work is None and not deliveries:
        return None
    retries = [] if work is None else [Retries(each, signals=ground.signals, clock=ground.clock) for each in attempts]
    handlers: dict[str, Handler] = {**deliveries, **{handler.queue: handler for handler in retries}}
    completions = Completions(database.manager, owner=ground.tasks, signals=ground.signals, clock=ground.clock)
    own = AsyncpgTransactions(database.manager)
    every = [job for jobs in (work or {}).values() for job in jobs]
    return Claimer(
        database.manager, database.keeper, handlers=handlers,
        jobs=[
            JobQueue(
                name, jobs, manager=database.manager, completions=completions, resources=ground.resources,
                transactions=_transactions(ground, own, every, queue=jobs[0]), signals=ground.signals,
                clock=ground.clock, chance=ground.chance, leases=database.leases,
                guests=[job for job in every if job.queue != name],
            )
            for name, jobs in (work or {}).items()
        ],
        signals=ground.signals, clock=ground.clock, owner=ground.tasks,
        settings=replace(times, lease=ground.settings.worker_lease),
    )  # fmt: skip


def ledger_of(ground: Ground, effects: Sequence[Effect[Any]]) -> Ledger:
    """The ledger of these effects, on connections of its own."""
    settings = ground.settings
    return Ledger(
        settings.database_url, effects, schema=settings.schema, resources=ground.resources, owner=ground.tasks,
        signals=ground.signals, clock=ground.clock,
    )  # fmt: skip


def resolver(ground: Ground, ledger: Ledger) -> Resolver:
    """The service that looks up what nobody knows, and closes the ledger at the end."""
    return Resolver(ledger, owner=ground.tasks, chance=ground.chance)


def pooled(queues: Queues) -> int:
    """How many connections of the pool these queues use at most: one for each ``async def`` job that runs."""
    return sum(jobs[0].concurrency for jobs in queues.values() if not all(job.threaded for job in jobs))


def threaded(queues: Queues) -> int:
    """How many connections of their own these queues use at most: one for each ``def`` job that runs."""
    return sum(jobs[0].concurrency for jobs in queues.values() if any(job.threaded for job in jobs))


def _transactions(
    ground: Ground, own: AsyncpgTransactions, every: Sequence[Job[Any]], *, queue: Job[Any]
) -> Callable[[Job[Any]], Any]:
    """What the runs of each job open in one queue: what it names, else the App's pool, or threads of that queue.

    Any job of the App may come there. `queue` is one that is declared in it; threads start when they are needed.
    """
    threads: Any = None
    if any(job.threaded and job.on is None for job in every):
        from postroad.sql.threaded import PsycopgTransactions

        url, size = ground.settings.database_url, _THREADS * queue.concurrency
        threads = PsycopgTransactions(url, ground.tasks, size=size, name=queue.queue)
    return lambda job: (
        (threads if job.threaded else own)
        if job.on is None
        else job.on.transactions(
            ground.settings.database_url, ground.tasks, name=queue.queue,
            size=queue.concurrency * (_THREADS if job.threaded else 1),
        )
    )  # fmt: skip
