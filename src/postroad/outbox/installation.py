"""The installation: which database this is, what tells it from a copy, and the broker that it may send to."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Protocol

from postroad.clock import minutes
from postroad.sql.statement import Queries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postroad.sql import Statement

TOKENS_LAST: Final = minutes(1)
"""How long a pair of tokens is used. A copy is told from its original once it is older than two of them."""

REMEDY: Final = "see `postroad adopt`"

QUERIES: Final = Queries(
    files("postroad.outbox").joinpath("installation.sql").read_text("utf-8"), source="postroad.outbox/installation.sql"
)


class Marks(Protocol):
    """What an installation leaves on its broker: durable marks, and the name that one running database holds."""

    @property
    def broker(self) -> str:
        """Which broker this is; safe to print."""
        ...

    def on_lost(self, hear: Callable[[], None]) -> None:
        """Who is told, on the running loop, that the broker was lost, and what was held with it."""
        ...

    async def has(self, mark: str) -> bool:
        """Whether the broker has this mark."""
        ...

    async def put(self, mark: str) -> None:
        """Make it have the mark. Safe to repeat."""
        ...

    async def remove(self, mark: str) -> None:
        """Make it not have the mark. Safe to repeat."""
        ...

    async def hold(self, name: str, instance: int) -> bool:
        """Hold `name` for `instance`, along with others of the same, until `close`; False while another one has it."""
        ...

    async def taken(self, name: str, instance: int) -> bool:
        """Whether another instance than this holds `name`; changes nothing."""
        ...

    async def close(self) -> None:
        """Let go of what is held."""
        ...


@dataclass(frozen=True, slots=True)
class Installation:
    """The row of ``installation``, and where it was read: at which place, on which running server."""

    id: str
    broker: str | None
    place: str | None
    token: str | None
    next: str | None
    here: str
    instance: int
    due: bool

    @property
    def name(self) -> str:
        """What a running database of this installation holds on the broker."""
        return f"postroad.installation.{self.id}"

    def mark(self, token: str | None) -> str:
        """The broker's mark for one of the tokens."""
        return f"{self.name}.{token}"


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a database may send: not while there is a `doubt`. `half`: a change of tokens was not finished."""

    doubt: str
    half: bool = False


async def standing(row: Installation, marks: Marks) -> Standing:
    """Whether the database that `row` was read from is the one that is bound to this broker. Changes nothing.

    Raises:
        Unavailable: the broker is away.
    """
    if row.token is None:
        return Standing("")
    if row.place != row.here:
        return Standing(f"this database is a copy: it was bound to broker {row.broker} elsewhere; {REMEDY}")
    if await marks.has(row.mark(row.token)):
        return Standing("")
    if row.next is not None and await marks.has(row.mark(row.next)):
        return Standing("", half=True)
    if row.broker != marks.broker:
        return Standing(f"this database is bound to broker {row.broker}, not to {marks.broker}; {REMEDY}")
    return Standing(
        f"broker {marks.broker} does not know this state of the database: it is a copy, was restored, or the broker"
        f" was made anew; {REMEDY}"
    )


def look(schema: str) -> Statement:
    """Read the installation; see `read`."""
    return QUERIES.statement("look", schema, TOKENS_LAST)


def read(row: Mapping[str, Any]) -> Installation:
    """What `look` found."""
    return Installation(**{name: row[name] for name in Installation.__slots__})


def prepare(schema: str, row: Installation) -> Statement:
    """Begin to bind: an id and a token that are marked nowhere yet. Safe to repeat, and from several at once."""
    return QUERIES.statement("prepare", schema, row.here)


def bind(schema: str, row: Installation, broker: str) -> Statement:
    """Bind to `broker`, which has the mark of `row.next`."""
    return QUERIES.statement("bind", schema, row.next, broker)


def advance(schema: str, row: Installation, broker: str) -> Statement:
    """The next token takes the place of the one before; no row where somebody else has done it."""
    return QUERIES.statement("advance", schema, row.token, row.next, broker)


def adopt(schema: str, by: str) -> Statement:
    """Make it an installation of its own, bound to nothing."""
    return QUERIES.statement("adopt", schema, by)


def waiting(schema: str) -> Statement:
    """How many events wait, and for how long."""
    return QUERIES.statement("waiting", schema)


def discard(schema: str) -> Statement:
    """Send nothing of what waits."""
    return QUERIES.statement("discard", schema)
