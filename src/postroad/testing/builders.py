"""Deliveries and runs made by hand: for unit tests of handlers and jobs that need no database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast
from uuid import UUID

from typing_extensions import override

from postroad.clock import SYSTEM_CLOCK
from postroad.consume import Delivery, consumer_of
from postroad.runtime.resources import Objects, Resources, as_yielded
from postroad.signals import Signals
from postroad.testing.letters import letter_type
from postroad.work.job import job_of
from postroad.work.run import BlockingRun, Grip, Run
from postroad.work.store import ClaimedRow
from postroad.work.wire import Wire

T = TypeVar("T")


def make_delivery(
    event: object,
    *,
    tx: T,
    consumer: Callable[..., Any] | None = None,
    key: str | None = None,
    sequence: int | None = None,
    occurred_at: datetime | None = None,
    event_id: UUID | None = None,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    attempt: int = 1,
    redelivered: bool = False,
    resources: Objects = (),
) -> Delivery[T]:
    """What a handler is told beside `event`, for calling it in a unit test: ``await handler(event, delivery)``.

    `tx` is whatever the handler shall find as ``delivery.tx``: a connection of yours in a transaction, a fake, None.
    `consumer` is the handler: it names the delivery, and is needed for a foreign event. `resources`, objects or
    a mapping by type, are what ``delivery.use`` finds. Nothing of the pipeline happens: no inbox, no retry, no lease.

    Raises:
        UsageError: PR109, the class of `event` is not declared (give its `consumer`); PR107, that does not read it.
    """
    owner = None if consumer is None else consumer_of(consumer)
    declared = letter_type(event, owner)
    now = SYSTEM_CLOCK.now()
    identity = event_id or SYSTEM_CLOCK.new_id()
    return Delivery(
        tx=tx, consumer="test" if owner is None else owner.name, id=str(identity), source=declared.source,
        type=declared.type, version=declared.version, key=key, sequence=sequence, occurred_at=occurred_at or now,
        recorded_at=now, correlation_id=correlation_id or str(identity), causation_id=causation_id,
        message_key=identity, attempt=attempt, redelivered=redelivered, resources=Resources(as_yielded(resources)),
    )  # fmt: skip


def make_run(
    job: Callable[..., Any],
    *,
    tx: T,
    attempt: int = 1,
    key: str | None = None,
    due: datetime | None = None,
    cancelled: str | None = None,
    resources: Objects = (),
) -> MadeRun[T]:
    """A run for calling an ``async def`` job in a unit test: ``await job(request, run)``.

    Each ``run.transaction()`` gives `tx`, and opens nothing: a connection of yours in a transaction, a fake, None.
    ``finished`` says whether one was with ``finish=True``, `reported` what ``run.progress`` was told. `cancelled` is
    the reason for which an operator has cancelled it. There are no leases.

    Raises:
        UsageError: PR101, `job` is not declared with @job.
    """
    return MadeRun(_grip(job, attempt=attempt, key=key, due=due, cancelled=cancelled, resources=resources), tx)


def make_blocking_run(
    job: Callable[..., Any],
    *,
    tx: T,
    attempt: int = 1,
    key: str | None = None,
    due: datetime | None = None,
    cancelled: str | None = None,
    resources: Objects = (),
) -> MadeBlockingRun[T]:
    """`make_run` for a ``def`` job."""
    return MadeBlockingRun(_grip(job, attempt=attempt, key=key, due=due, cancelled=cancelled, resources=resources), tx)


class MadeRun(Run[T]):
    """A `Run` that stands on nothing; see `make_run`."""

    def __init__(self, grip: Grip, tx: T) -> None:
        """Made by `make_run`."""
        super().__init__(grip, cast("Any", None))
        self._tx = tx
        self.reported: list[tuple[float, str | None]] = []

    @property
    def finished(self) -> bool:
        """Whether a transaction with ``finish=True`` was left in good order."""
        return self.grip.finished

    @override
    @asynccontextmanager
    async def transaction(self, *, finish: bool = False) -> AsyncIterator[T]:
        """See `Run.transaction`: gives the transaction that was handed in, and ends nothing."""
        self.grip.enter()
        yield self._tx
        self.grip.finished = finish

    @override
    @asynccontextmanager
    async def lock(self, name: str, *, wait: timedelta | None = None) -> AsyncIterator[None]:
        """See `Run.lock`: nobody else is there."""
        yield

    @override
    async def progress(self, fraction: float, note: str | None = None) -> None:
        """See `Run.progress`: kept in `reported`."""
        self.reported.append((fraction, note))


class MadeBlockingRun(BlockingRun[T]):
    """A `BlockingRun` that stands on nothing; see `make_blocking_run`."""

    def __init__(self, grip: Grip, tx: T) -> None:
        """Made by `make_blocking_run`."""
        super().__init__(grip, cast("Any", None), cast("Any", None))
        self._tx = tx
        self.reported: list[tuple[float, str | None]] = []

    @property
    def finished(self) -> bool:
        """Whether a transaction with ``finish=True`` was left in good order."""
        return self.grip.finished

    @override
    @contextmanager
    def transaction(self, *, finish: bool = False) -> Iterator[T]:
        """See `BlockingRun.transaction`: gives the transaction that was handed in, and ends nothing."""
        self.grip.enter()
        yield self._tx
        self.grip.finished = finish

    @override
    def progress(self, fraction: float, note: str | None = None) -> None:
        """See `BlockingRun.progress`: kept in `reported`."""
        self.reported.append((fraction, note))


def _grip(
    job: Callable[..., Any], *, attempt: int, key: str | None, due: datetime | None, cancelled: str | None,
    resources: Objects,
) -> Grip:  # fmt: skip
    declared, now = job_of(job), SYSTEM_CLOCK.now()
    row = ClaimedRow(
        id=1, token=1, queue=declared.queue, kind="job", key=key, attempt=attempt - 1, created_at=now, run_at=now,
        due=due, wire=Wire(body=b"", content_type="application/json", event_type=declared.name),
    )  # fmt: skip
    return Grip(
        row=row, job=declared.name, manager=cast("Any", None), signals=Signals(), clock=SYSTEM_CLOCK,
        resources=Resources(as_yielded(resources)), cancelled=cancelled,
    )  # fmt: skip
