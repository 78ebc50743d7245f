"""The inbox of a consumer against the log: what was published and never handled, found by a digest for each hour."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from typing_extensions import override

from postroad.clock import hours, minutes
from postroad.consume.consumer import consumer_of
from postroad.reconcile.ground import PATIENCE, nothing
from postroad.reconcile.merge import PAGE, Kind, Page, merged
from postroad.reconcile.reconciliation import Reconciliation
from postroad.reconcile.resend import Resend
from postroad.sql.statement import queries
from postroad.work.use import used

if TYPE_CHECKING:
    from postroad.reconcile.ground import Ground
    from postroad.reconcile.resend import Pool
    from postroad.sql.asyncpg import Connection

QUERIES: Final = queries("postroad.reconcile", "handled.sql")

WITHIN: Final = timedelta(days=7)
_SEVEN: Final = 7
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_HOUR: Final = hours(1)
_STRETCH: Final = timedelta(days=1)
_AHEAD: Final = minutes(5)  # Clocks of authors differ.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handled(Reconciliation):
    """See `handled`. A key is the hour in which an event was staged, and its id; nothing is ever extra."""

    consumer: str
    types: tuple[str, ...]
    log: type[Any] | None = field(repr=False)
    within: timedelta

    @property
    @override
    def inbox_of(self) -> str:
        """See `Reconciliation.inbox_of`."""
        return self.consumer

    @override
    async def compared(self, ground: Ground, after: str | None) -> AsyncGenerator[Page, None]:
        """Go through the hours; where the digests differ, through the ids of that hour."""
        async with self._log(ground) as log, ground.manager.connection(patience=PATIENCE) as own:
            hours_ = _Hours(ground.schema, log, own, self.consumer, list(self.types))
            first = await self._first(ground, own)
            first = first if after is None else max(first, _hour_of(after))
            end = ground.clock.now() + _AHEAD
            while first < end:
                until = min(first + _STRETCH, end)
                for hour, count, same in await hours_.digests(first, until):
                    if same:
                        yield Page(_key(hour), count)
                        continue
                    async for page in hours_.missing(hour, after):
                        yield page
                first += _STRETCH

    async def _first(self, ground: Ground, own: Connection) -> datetime:
        """From when on everything should have been handled: the window's begin, or the consumer's first mark.

        What was found before and still stands is looked at whatever its age.
        """
        now = ground.clock.now()
        begin = now - self.within
        begun, _ = _bounds(begin, now)
        row = await own.fetchrow(QUERIES.text("first", ground.schema), self.consumer, self.name, begun)
        assert row is not None
        mark = None if row["mark"] is None else _time(row["mark"])
        if not row["before"] and mark is not None and mark < now:
            begin = mark
        begin = begin if row["drift"] is None else min(begin, _hour_of(row["drift"]))
        return begin.replace(minute=0, second=0, microsecond=0)

    @asynccontextmanager
    async def _log(self, ground: Ground) -> AsyncIterator[Connection]:
        if self.log is None:
            async with ground.manager.connection(patience=PATIENCE) as connection:
                yield connection
            return
        pool: Pool = used(ground.resources, self.log, by=f"reconciliation {self.name!r}")
        async with pool.acquire() as connection:
            yield connection


def handled(
    consumer: Callable[..., Any], *, log: type[Any] | None = None, within: timedelta = WITHIN,
    settle: timedelta = minutes(5),
) -> Reconciliation:  # fmt: skip
    """What was published and never reached `consumer`: no mark of its inbox, not delayed, not in quarantine.

    Hour by hour, a digest of the ids in the log is compared with one of the marks; only where they differ are ids
    looked at. It goes back `within`, but not beyond the consumer's first mark, which must not be longer than marks and
    the log's days are kept. `log` is as for `resend`; the repair is `resend`, by ids. Its name is ``CONSUMER.handled``.

    Raises:
        UsageError: PR101, `consumer` is no consumer.
    """
    one = consumer_of(consumer)
    return Handled(
        f"{one.name}.handled", authority=nothing, projection=nothing, settle=settle, consumer=one.name, log=log,
        types=tuple(item.type for item in one.subscriptions), within=within,
        repair=Resend(one.name, tuple(item.type for item in one.subscriptions), log, by_id=True),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Hours:
    """Log and marks of one hour, and how they compare."""

    schema: str
    log: Connection
    own: Connection
    consumer: str
    types: list[str]

    async def digests(self, first: datetime, until: datetime) -> list[tuple[datetime, int, bool]]:
        """The hours in which anything was staged, with how much, and whether there are the same marks."""
        logged = await self.log.fetch(QUERIES.text("logged", self.schema), *self._of_log(first, until))
        marked = await self.own.fetch(QUERIES.text("marked", self.schema), self.consumer, *_bounds(first, until))
        marks = {row["hour"]: row for row in marked}
        hours_ = sorted(logged, key=lambda row: int(row["hour"]))
        return [
            (datetime.fromtimestamp(row["hour"] * 3600, UTC), row["count"], row == marks.get(row["hour"]))
            for row in hours_
        ]  # fmt: skip

    async def missing(self, hour: datetime, after: str | None) -> AsyncIterator[Page]:
        """The events of that hour without a mark."""
        published = _stream(
            self.log, QUERIES.text("logged_ids", self.schema), *self._of_log(hour, hour + _HOUR), hour=hour
        )
        marks = _stream(
            self.own, QUERIES.text("marked_ids", self.schema), self.consumer, *_bounds(hour, hour + _HOUR), hour=hour
        )  # fmt: skip
        async with aclosing(merged(published, marks, after=after)) as pages:
            async for page in pages:
                yield Page(page.last, page.compared, [one for one in page.differences if one.kind is Kind.MISSING])

    def _of_log(self, first: datetime, until: datetime) -> tuple[Any, ...]:
        return (self.types, first, until, *_bounds(first, until))


async def _stream(
    connection: Connection, query: str, *args: Any, hour: datetime
) -> AsyncIterator[tuple[str, str]]:  # fmt: skip
    after = UUID(int=0)
    while rows := await connection.fetch(query, *args, after, PAGE):
        for row in rows:
            yield f"{_key(hour)} {row['id']}", ""
        after = rows[-1]["id"]
        if len(rows) < PAGE:
            return


def _key(hour: datetime) -> str:
    return f"{hour:%Y-%m-%dT%H:00Z}"


def _hour_of(key: str) -> datetime:
    return datetime.strptime(key[:17], "%Y-%m-%dT%H:%MZ").replace(tzinfo=UTC)


def _time(id: UUID) -> datetime:  # noqa: A002 - the column
    return datetime.fromtimestamp((id.int >> 80) / 1000, UTC) if id.version == _SEVEN else _NEVER


def _bounds(first: datetime, until: datetime) -> tuple[UUID, UUID]:
    """The ids between which those of a time lie: their first 48 bits are milliseconds."""
    low, high = (UUID(int=round(at.timestamp() * 1000) << 80) for at in (first, until))
    return low, high
