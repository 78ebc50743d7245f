"""What a comparison stands on: the service's own database, its live objects, its signals and its clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from postroad.clock import seconds
from postroad.work.use import Kind, Resources, used

if TYPE_CHECKING:
    from postroad.clock import Clock
    from postroad.reconcile.merge import Items
    from postroad.signals import Signals
    from postroad.sql.manager import Manager
    from postroad.work.run import Run

T = TypeVar("T")

PATIENCE: Final = seconds(60)
"""How long one page of a stream may take in the service's own database."""
_PAGE: Final = 1000


class Fetching(Protocol):
    """What a live object must offer for `pages`: asyncpg's pools and connections do."""

    async def fetch(self, query: str, *args: Any) -> Sequence[Any]:
        """The rows of a query with ``$1`` parameters."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where a reconciliation runs, and in whose name."""

    manager: Manager
    resources: Resources
    signals: Signals
    clock: Clock
    by: str

    @property
    def schema(self) -> str:
        """The service's schema."""
        return self.manager.schema


def ground_of(run: Run[Any]) -> Ground:
    """The ground of a job's run: its process's pool and live objects."""
    grip = run.grip
    return Ground(
        manager=grip.manager, resources=grip.resources, signals=grip.signals, clock=grip.clock, by=f"job {run.job}"
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    """What a stream is asked for: the keys beyond `after` (None: all of them), in order.

    A run that was killed goes on from there. A stream that yields earlier keys, too, is compared rightly, only later.
    """

    after: str | None
    ground: Ground = field(repr=False)

    def use(self, kind: Kind[T]) -> T:
        """The App's live object of type `kind`, made by its ``lifespan``.

        Raises:
            UsageError: the App has none of that type.
        """
        return used(self.ground.resources, kind, by="a reconciliation")

    async def fetch(self, query: str, *args: Any) -> Sequence[Any]:
        """The rows of a query in the service's own database: a statement of its own, of at most a minute.

        Raises:
            Unavailable: the database is away, or did not answer in time.
        """
        async with self.ground.manager.connection(patience=PATIENCE) as connection:
            rows: Sequence[Any] = await connection.fetch(query, *args)
        return rows


Stream: TypeAlias = Callable[[Source], "Items"]


def pages(query: str, *, on: type[Any] | None = None) -> Stream:
    """A stream of a table: ``SELECT key, fingerprint ... WHERE key > $1 ORDER BY key LIMIT $2``, a page at a time.

    The key is a text with ``COLLATE "C"``, in WHERE and ORDER BY, best with an index of that collation. It runs in the
    service's own database, or `on` the App's live object of that type (an asyncpg pool). Between two pages nothing is
    held, neither rows nor a transaction, however large the table is.
    """

    async def stream(source: Source) -> AsyncIterator[tuple[str, str]]:
        where: Any = source if on is None else source.use(on)
        after = source.after or ""
        while rows := await where.fetch(query, after, _PAGE):
            for row in rows:
                yield row[0], row[1]
            after = rows[-1][0]
            if len(rows) < _PAGE:
                return

    return stream


async def nothing(_source: Source) -> AsyncIterator[tuple[str, str]]:
    """A stream without any key: whatever the other has is too much."""
    none: tuple[tuple[str, str], ...] = ()
    for item in none:
        yield item
