"""One run of an App's own roles, from its start until nothing is left to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import minutes, seconds
from postroad.errors import UsageError
from postroad.runtime.settings import POSTGRES, Role, Settings, TopologyMode
from postroad.signals.logs import LogSink
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.manager import connect
from postroad.testing.journal import Failure, Journal
from postroad.testing.ledger import QUERIES
from postroad.transport.postgres.store import deliveries_of, send
from postroad.work.settings import WorkSettings

if TYPE_CHECKING:
    import asyncpg

    from postroad.consume.consumer import Consumer
    from postroad.runtime.app import App
    from postroad.runtime.declarations import Declarations
    from postroad.runtime.resources import Lifespan
    from postroad.testing.timetable import Timetable
    from postroad.transport.base import Outgoing

ELSEWHERE: Final = "postroad-testing.elsewhere"
"""Stands for the consumers of other Apps: it subscribes to what no consumer of this one does, and nobody runs it."""

WITHIN: Final = seconds(30)
_GRACE: Final = seconds(5)
_LOOK: Final = 0.01  # Seconds; signals wake it before that.
_CHANCE: Final = 0.999
"""Every draw of jitter: retries wait as long as they ever may, so that a test knows how long that is."""
_TIMES: Final = WorkSettings(sweep=minutes(10))
"""Rows become ready once, at the start: however long a drain takes, what it puts off is for the next."""


async def connected(url: str) -> asyncpg.Connection[asyncpg.Record]:
    """A connection for one call of the harness.

    Raises:
        UsageError: another kind of loop than asyncio's runs.
        Unavailable: the database cannot be reached.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        remedy = "let the fixture anyio_backend return 'asyncio'"
        raise UsageError("PR107", f"the road runs on asyncio, and no loop of it runs here; {remedy}") from None
    return await connect(url)


@dataclass(slots=True, kw_only=True)
class Trial:
    """The App under test, on one database; nothing runs between two calls."""

    app: App
    url: str = field(repr=False)
    schema: str
    lifespan: Lifespan | None = None
    consumer: Consumer[Any] | None = None
    """Run this one alone, and dispatch nothing."""
    timetable: Timetable | None = None
    """The App's schedules, where they are to be planned."""
    journal: Journal = field(init=False)
    _hand: AsyncpgHand = field(init=False)
    _began: datetime = field(init=False)

    async def drain(self, *, within: timedelta) -> None:
        """Run what waits to its end; where nothing does, nothing is started.

        Raises:
            TimeoutError: see `_quiet`.
            UsageError: see `_quiet`; or nobody will ever run what waits.
        """
        async with self._looking():
            if self.timetable is not None:
                await self.timetable.begin(self._hand)
            if await self._left():
                async with self._running():
                    await self._quiet(within=within)
                await self._hand.fetch(QUERIES.statement("forget", self.schema, deliveries_of(ELSEWHERE)))
            await self._refuse_strangers()

    async def send(self, outgoing: Outgoing, *, times: int, within: timedelta) -> None:
        """Hand an event to the transport, as a dispatcher does, and run it to its end; `times` one after the other.

        Raises:
            TimeoutError: see `_quiet`.
            UsageError: see `_quiet`.
        """
        async with self._looking(), self._running():
            for _ in range(times):
                await self._hand.fetch(send(self.schema, [outgoing]))
                await self._quiet(within=within)

    @asynccontextmanager
    async def _looking(self) -> AsyncIterator[None]:
        connection = await connected(self.url)
        self.journal = Journal()
        try:
            self._hand = AsyncpgHand(connection)
            self._began = (await self._hand.fetch(QUERIES.statement("now", self.schema)))[0]["now"]
            yield
        finally:
            await connection.close()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        """Run the roles for the block; at its end they finish what is in hand."""
        await self._listen()
        trial = self.app.trial(
            self._settings(), self.journal.recorded(self.declared), sinks=[self.journal.hear, LogSink()],
            chance=_CHANCE, times=_TIMES, lifespan=self.lifespan,
        )  # fmt: skip
        async with trial:
            yield

    async def _quiet(self, *, within: timedelta) -> None:
        """Wait until nothing is left that could run now: it looks at the tables, and at each signal again.

        What fails meanwhile and is put off waits for its time; a later drain runs it, once that has come.

        Raises:
            TimeoutError: after `within`, with what is left.
            UsageError: a dependency is away.
        """
        deadline = asyncio.get_running_loop().time() + within.total_seconds()
        while left := await self._left():
            if self.journal.away is not None:
                raise UsageError("PR107", f"drain: {self.journal.away}; make it answer, or give the road a fake of it")
            if asyncio.get_running_loop().time() > deadline:
                what = ", ".join(f"{count} in {queue}" for queue, count in sorted(left.items()))
                message = f"drain: not done within {within.total_seconds():g} s; left: {what}"
                raise TimeoutError(message)
            await self._news()

    async def _refuse_strangers(self) -> None:
        """Refuse what waits for ever.

        Raises:
            UsageError: a job waits that this App does not run, or an event of a producer that it does not publish.
        """
        rows = await self._hand.fetch(QUERIES.statement("strangers", self.schema, self._queues(), self._began))
        for row in rows:
            if row["kind"] == "job":
                where = f"waits in queue {row['place']!r}, which no job of {self.app!r} has"
                raise UsageError("PR107", f"drain: job {row['name']!r} {where}; add it to jobs=[...]")
            why = f"was not dispatched ({row['place'] or 'nobody publishes it'})"
            message = f"drain: event {row['name']!r} {why}; add its producer to publishes=[...] of {self.app!r}"
            raise UsageError("PR107", message)

    @property
    def declared(self) -> Declarations:
        """What runs."""
        if self.consumer is None:
            return self.app.declarations
        return replace(self.app.declarations, producers=(), consumers=(self.consumer,), jobs=())

    def _settings(self) -> Settings:
        dispatches = set() if self.consumer is not None else {Role.DISPATCH}
        return Settings(
            database_url=self.url, direct_url=self.url, broker_url=POSTGRES, schema=self.schema, grace=_GRACE,
            roles=frozenset({Role.CONSUME, Role.WORK} | dispatches), topology=TopologyMode.APPLY,
        )  # fmt: skip

    async def _listen(self) -> None:
        """Let what others would consume go there, as it would from a broker."""
        declared = self.declared
        consumed = {item.type for consumer in declared.consumers for item in consumer.subscriptions}
        types = {event.type for producer in declared.producers for event in producer.events} - consumed
        await self._hand.fetch(QUERIES.statement("listen", self.schema, ELSEWHERE, sorted(types)))

    async def _left(self) -> dict[str, int]:
        """What waits; where nothing does, the schedules go on to what starts next."""
        left = await self._waiting()
        while not left and self.timetable is not None:
            broken = await self.timetable.plan(self._hand)
            for one in broken:
                self.journal.tell(Failure(name=one["name"], became="not started", code="", reason=one["reason"]))
            left = await self._waiting()
            if not broken:
                break
        return left

    async def _waiting(self) -> dict[str, int]:
        staged = bool(self.declared.producers)
        rows = await self._hand.fetch(QUERIES.statement("waiting", self.schema, self._began, staged, self._queues()))
        left = {row["queue"]: row["count"] for row in rows if row["count"]}
        submitted = sum(self.app.executor.unfinished.values())
        return left | ({"the executor": submitted} if submitted else {})

    def _queues(self) -> list[str]:
        names = [consumer.name for consumer in self.declared.consumers]
        return [*names, *map(deliveries_of, names), *self.declared.queues]

    async def _news(self) -> None:
        try:
            async with asyncio.timeout(_LOOK):
                await self.journal.news.wait()
        except TimeoutError:
            pass
        self.journal.news.clear()
