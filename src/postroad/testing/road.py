"""The harness around a user's App: what it published and enqueued, and the way to run what waits, in a test's loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import UsageError
from postroad.events.event_type import event_type_of
from postroad.outbox.publish import default_schema
from postroad.runtime.resources import as_yielded
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.testing import ledger
from postroad.testing.ledger import QUERIES, OpenJob, Published, Quarantined
from postroad.testing.letters import letter
from postroad.testing.trial import WITHIN, Trial, connected
from postroad.work.job import job_of

if TYPE_CHECKING:
    from uuid import UUID

    import asyncpg

    from postroad.consume import Delivery
    from postroad.runtime.app import App
    from postroad.runtime.resources import Lifespan, Objects
    from postroad.signals.catalog import DeliveryResult
    from postroad.sql import Pipeline
    from postroad.testing.journal import Drained

E = TypeVar("E")
A = TypeVar("A")
T = TypeVar("T")


class Road:
    """An App on a database of its own, over the PostgreSQL transport, where nothing runs until a test says so.

    `drain` and `deliver` run the App's own roles (dispatcher, transport, consumers, claimer) on the test's loop, and
    stop them before they return: between two calls nothing moves, so that what a test reads is what it left. There is
    no fake in between, but for one thing: what no consumer of the App subscribes to is taken by a stand-in for those
    of other Apps. Everything reads committed rows alone. `resources`, objects or a mapping by type, stand in for what
    the App's lifespan yields.

    Works on any asyncio loop (pytest-asyncio, anyio's asyncio backend); holds no connection between two calls.
    """

    def __init__(self, app: App, url: str, *, resources: Objects | None = None) -> None:
        """Test `app` on the migrated database `url`; the fixture ``road`` makes one.

        Raises:
            UsageError: `app` is not an App.
        """
        given: object = app  # Untyped fixtures may return anything.
        if not hasattr(given, "declarations"):
            kind = type(given).__name__
            raise UsageError("PR107", f"the road leads through an App, not {kind}; return it from `postroad_app`")
        self.app = app
        self.url = url
        self.schema = default_schema()
        self._lifespan = None if resources is None else _lent(as_yielded(resources))

    @override
    def __repr__(self) -> str:
        return f"Road({self.app!r})"

    # --- what is there ----------------------------------------------------------------------------------------------

    async def published(self, kind: type[E]) -> list[Published[E]]:
        """The committed events of one class, in the order in which they were staged, dispatched or not.

        Raises:
            UsageError: PR109, `kind` is not declared by a producer; PR107, the App does not publish it.
        """
        declared = event_type_of(kind)
        if declared not in [event for producer in self.app.declarations.producers for event in producer.events]:
            message = f"{self.app!r} does not publish {declared.type} v{declared.version}"
            raise UsageError("PR107", f"{message}; add its producer to publishes=[...]")
        return await self._read(ledger.published(self.schema, kind))

    async def enqueued(self, job: Callable[[A, Any], Any]) -> list[OpenJob[A]]:
        """The committed jobs of one kind that wait: best priority first, oldest first. What has run is gone.

        Raises:
            UsageError: PR101, `job` is not declared with @job.
        """
        return await self._read(ledger.enqueued(self.schema, job_of(job)))

    async def quarantined(self, handler: Callable[[E, Any], Any]) -> list[Quarantined[E]]:
        """What lies open in quarantine of one consumer or job, oldest first.

        Raises:
            UsageError: PR107, it is neither one of the App's consumers nor one of its jobs.
        """
        for owner in self.app.declarations.handled:
            if owner.function is handler:
                return await self._read(ledger.quarantined(self.schema, owner))
        raise self._not_mine(handler, "consumer or job")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        """Open a transaction on a connection of its own, for the test's own reads, writes and publishes.

        Leaving it commits, an error rolls back.
        """
        connection = await connected(self.url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    # --- what happens -----------------------------------------------------------------------------------------------

    async def drain(self, *, raises: bool = True, within: timedelta = WITHIN) -> Drained:
        """Run everything that waits until nothing is left: dispatch, deliveries, jobs and retries that are due.

        What handlers publish and enqueue meanwhile is run too. What is due later stays (see `advance`), and so does
        what failed: its retry waits for its full delay. With `raises` the errors come out at the end.

        Raises:
            Exception: what a consumer or job raised, if its delivery was put off or quarantined for it, with a note
                that says so; several as an `ExceptionGroup`. Not with ``raises=False``.
            TimeoutError: it is not done `within` that time.
            UsageError: the App has nothing to run; a dependency is away; an event or job waits that nobody will run.
        """
        declared = self.app.declarations
        if not (declared.consumers or declared.jobs):
            raise UsageError("PR107", f"drain: {self.app!r} has neither consumers nor jobs, so that nothing would run")
        trial = self._trial()
        await trial.drain(within=within)
        return self._told(trial, raises=raises)

    async def deliver(
        self,
        event: E | bytes,
        *,
        to: Callable[[E, Delivery[Any]], Any],
        twice: bool = False,
        key: str | None = None,
        sequence: int | None = None,
        occurred_at: datetime | None = None,
        event_id: UUID | None = None,
        raises: bool = True,
        within: timedelta = WITHIN,
    ) -> list[DeliveryResult]:
        """Bring one event to one consumer, through its real pipeline, and nothing else: what became of each copy.

        `event` is an instance of a class that the consumer reads (also a foreign one), or the bytes of an envelope in
        structured JSON. `twice` brings it again afterwards, with the same identity: ``[OK, DUPLICATE]`` shows that it
        was handled once. What the handler publishes stays in the outbox; retries of this consumer that are due run.

        Raises:
            Exception: what the handler raised, as in `drain`.
            TimeoutError: it is not done `within` that time.
            UsageError: PR107, `to` is not one of the App's consumers, or does not read this event.
        """
        consumer = next((one for one in self.app.declarations.consumers if one.function is to), None)
        if consumer is None:
            raise self._not_mine(to, "consumer")
        outgoing = letter(
            event, consumer, identity=event_id or SYSTEM_CLOCK.new_id(), now=SYSTEM_CLOCK.now(), key=key,
            sequence=sequence, occurred_at=occurred_at,
        )  # fmt: skip
        trial = self._trial()
        trial.consumer = consumer
        await trial.send(outgoing, times=2 if twice else 1, within=within)
        self._told(trial, raises=raises)
        return [result for _, result in trial.journal.settled]

    async def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:  # fmt: skip
        """Let that much time pass for whatever waits: jobs with ``run_at``, retries, refused events.

        No clock moves: `now()`, in the database as in Python, says what it said. The times of the rows that wait are
        moved back instead, those by which a retry budget's age is measured too. Nothing runs; `drain` afterwards.

        Raises:
            UsageError: the time is not positive.
        """
        by = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if by <= timedelta(0):
            raise UsageError("PR107", "advance: time only passes; give a positive minutes=, or hours=, days=, seconds=")
        await self._read(ledger.advance(self.schema, by))

    async def clear(self) -> None:
        """Empty Postroad's tables, for tests that share a database; the author's own tables are the author's."""
        async with self.transaction() as connection:
            await AsyncpgHand(connection).fetch(QUERIES.statement("clear", self.schema))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _trial(self) -> Trial:
        return Trial(app=self.app, url=self.url, schema=self.schema, lifespan=self._lifespan)

    def _told(self, trial: Trial, *, raises: bool) -> Drained:
        drained = trial.journal.drained()
        if raises:
            drained.check()
        return drained

    async def _read(self, work: Pipeline[T]) -> T:
        async with self.transaction() as connection:
            return await drive(work, AsyncpgHand(connection))

    def _not_mine(self, function: object, what: str) -> UsageError:
        name = getattr(function, "__qualname__", repr(type(function).__name__))
        return UsageError("PR107", f"{name} is no {what} of {self.app!r}; give one of its functions")


def _lent(things: object) -> Lifespan:
    async def lifespan() -> Any:
        yield things

    return lifespan
