"""Publishing and enqueueing in the open ``atomic`` block of one of Django's databases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.django.alias import check_open, connection_of, writing
from postroad.outbox.publish import by_schema, default_schema, prepare, prepare_many
from postroad.outbox.stage import StagedEvent, stage
from postroad.sql.drive import drive_sync
from postroad.work import enqueue as work

if TYPE_CHECKING:
    from postroad.work.enqueue import Enqueue, Enqueued

A = TypeVar("A")

DEFAULT: Final = "default"


def within(*, using: str = DEFAULT, clock: Clock = SYSTEM_CLOCK) -> Within:
    """Publish and enqueue in the open ``transaction.atomic()`` block of a database: all of it commits with the block.

    `using` is its alias in ``DATABASES``. ``ATOMIC_REQUESTS`` opens a block around each view. An inner block that is
    rolled back takes its events along. In async code Django has no transactions: call it in the function that
    ``sync_to_async`` runs, beside its ``atomic()``.

    What comes out may be kept, and used by any thread: each call looks for the block that its own thread has open.
    Nothing needs to run: no App, no broker, no other process. `clock` gives identifiers and times; tests move it.
    """
    return Within(using, clock)


class Within:
    """The open block of one of Django's databases, to publish and enqueue in; made by `within`, and by ``on=``."""

    __slots__ = ("_clock", "using")

    def __init__(self, using: str, clock: Clock) -> None:
        """Publish in the block that is open on the database `using` at each call."""
        self.using = using
        self._clock = clock

    @property
    def connection(self) -> Any:
        """Django's connection of this thread, ``connections[using]``.

        Raises:
            UsageError: PR107, there is no such database, or it is not PostgreSQL; PR108, its driver is psycopg2.
        """
        return connection_of(self.using)

    def publish(
        self,
        event: object,
        *,
        key: str | None = None,
        sequence: int | None = None,
        occurred_at: datetime | None = None,
        correlation: str | None = None,
    ) -> UUID:
        """Stage one event in the block, in one round trip, and return the event's id.

        `event` is an instance of a class that its producer declared. `key` (at most 255 bytes) keeps events of one
        thing in order; `sequence` (0 to 2^63-1) is their number within the key, for consumers with ``order="latest"``;
        `occurred_at` is when it happened (aware; now by default). `correlation` names the story that it belongs to:
        inside a handler that of the handled event, which is also its cause; elsewhere the new event's own id.

        The event is sent after the commit, at least once, with this id for ever. A crash before the commit leaves
        nothing; publishing again after an error is a new event. An error from the database comes out as Django's, and
        marks the block to be rolled back, as any query's would.

        Raises:
            UsageError: before anything is sent: PR105, no block is open (that of a `TestCase` does not count); PR107
                or PR108, the database is not PostgreSQL by psycopg 3; PR109, the class is not declared; PR107, a value
                is not valid; PR106, the payload is over its limit.
            SchemaError: PR202, Postroad's tables are not in this database: ``manage.py migrate``.
            AccessRefused: PR303, the connection's role may not publish.
        """
        connection = check_open(self.using, "a publish")
        prepared = prepare(
            event,
            key=key,
            sequence=sequence,
            occurred_at=occurred_at,
            correlation=correlation,
            clock=self._clock,
        )
        return _stage(connection, [prepared])[0]

    def publish_many(self, events: Sequence[object]) -> list[UUID]:
        """Stage several events in their order, in one round trip (per 2,000 events, or 8 MiB); their ids.

        Each is an event, or a `Publish` with its options. All of them are checked before anything is sent.

        Raises:
            UsageError: as `publish` does, if one of them is not valid.
        """
        connection = check_open(self.using, "a publish")
        return _stage(connection, prepare_many(events, clock=self._clock))

    def enqueue(
        self,
        job: Callable[[A, Any], Any],
        request: A,
        *,
        run_at: datetime | None = None,
        priority: int = 0,
        queue: str | None = None,
        unique: str | None = None,
    ) -> Enqueued:
        """Leave one job in the block, in one round trip; what became of it.

        The options, and what is promised, are those of `postroad.psycopg.Within.enqueue`: at least one run after the
        commit, not before `run_at`, and nothing new while a job of that queue with the same `unique` key is open.

        Raises:
            UsageError: before anything is sent: PR105, PR107 and PR108, as `publish`; PR101, `job` is not one; PR107,
                the request does not fit it or an option is not valid; PR106, the request is over its limit.
        """
        connection = check_open(self.using, "an enqueue")
        row = work.prepare(job, request, run_at=run_at, priority=priority, queue=queue, unique=unique)
        with writing(connection) as hand:
            return drive_sync(work.enqueue(default_schema(), [row]), hand)[0]

    def enqueue_many(self, jobs: Sequence[Enqueue[Any]]) -> list[Enqueued]:
        """Leave several jobs in their order, in one round trip (per 2,000 jobs, or 8 MiB); what became of each.

        Each is an `Enqueue` with its options. All of them are checked before anything is sent. Of two with one unique
        key the first is written.

        Raises:
            UsageError: as `enqueue` does, if one of them is not valid.
        """
        connection = check_open(self.using, "an enqueue")
        rows = work.prepare_many(jobs)
        with writing(connection) as hand:
            return drive_sync(work.enqueue(default_schema(), rows), hand)


def _stage(connection: Any, prepared: list[tuple[str, StagedEvent]]) -> list[UUID]:
    with writing(connection) as hand:
        for schema, rows in by_schema(prepared):
            drive_sync(stage(schema, rows), hand)
    return [row.id for _, row in prepared]
