"""What an author declares: two streams that should say the same, and how a difference is repaired."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from postroad.clock import seconds
from postroad.errors import UsageError
from postroad.reconcile.ground import Ground, Source, ground_of
from postroad.reconcile.merge import Kind, merged
from postroad.reconcile.resend import Resend, repairs
from postroad.work.use import Kind as Type
from postroad.work.use import used

if TYPE_CHECKING:
    from postroad.reconcile.checking import Checked
    from postroad.reconcile.ground import Stream
    from postroad.reconcile.merge import Page
    from postroad.reconcile.repairing import Repaired
    from postroad.sql.asyncpg import Connection
    from postroad.work.run import Run

T = TypeVar("T")

SETTLE: Final = seconds(60)
"""How long a difference may be an event on its way."""
LIMIT: Final = 1000
"""How many keys one run may repair."""
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
OWN: Final = "postroad."
"""What the names of built-in reconciliations begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A key whose difference has outlived the waiting time: what a repair is given.

    `tx` is an open transaction of the service's database: what is written on it commits with the note that something
    was done. `expected` and `found` are the fingerprints, None where that side has nothing.
    """

    reconciliation: str
    key: str
    kind: Kind
    expected: str | None
    found: str | None
    since: datetime
    tx: Connection = field(repr=False)
    ground: Ground = field(repr=False)

    def use(self, kind: Type[T]) -> T:
        """The App's live object of type `kind`, made by its ``lifespan``.

        Raises:
            UsageError: the App has none of that type.
        """
        return used(self.ground.resources, kind, by=f"the repair of {self.reconciliation!r}")


Repair: TypeAlias = "Callable[[Drift], Awaitable[None]] | Resend"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reconciliation:
    """Two streams of (key, fingerprint) in the order of their keys, which should say the same.

    `authority` is what holds, `projection` what was made of it: each a function of a `Source` that returns an async
    iterator; `pages` makes one of a query. Neither is ever held in memory. A difference is *suspected* at first; it is
    **drift** once it is still there after `settle`, and the authority has said the same all that time: what events on
    their way will put right is no drift. `repair` is an ``async def`` of a `Drift`, or `resend(consumer)`; one run of
    it touches at most `limit` keys. It must be safe to repeat: a crash repeats what had not committed.

    Raises:
        UsageError: PR101, the declaration is not valid; one error with everything that is wrong.
    """

    name: str = field(kw_only=False)
    authority: Stream = field(repr=False)
    projection: Stream = field(repr=False)
    repair: Repair | None = field(default=None, repr=False)
    settle: timedelta = SETTLE
    limit: int = LIMIT

    def __post_init__(self) -> None:
        """Check it as a whole."""
        wrong = [] if NAME.fullmatch(self.name) else ["its name must be 1 to 200 of a-z, 0-9, '.', '_' and '-'"]
        sides: dict[str, object] = {"authority": self.authority, "projection": self.projection}
        no_function = [side for side, given in sides.items() if not callable(given)]
        wrong += [f"{side} is no function that returns an async iterator" for side in no_function]
        if not (self.repair is None or isinstance(self.repair, Resend) or repairs(self.repair)):
            wrong.append("repair is neither an async def with one argument nor resend(...)")
        settle: object = self.settle
        if not isinstance(settle, timedelta) or settle < timedelta(0):
            wrong.append("settle is no length of time")
        if not (type(self.limit) is int and self.limit > 0):
            wrong.append("limit is no number from 1 on")
        if wrong:
            raise UsageError("PR101", f"reconciliation {self.name!r}: {'; '.join(wrong)}")

    @property
    def inbox_of(self) -> str | None:
        """The consumer whose inbox it compares: what is missing there is still to come."""
        return None

    def compared(self, ground: Ground, after: str | None) -> AsyncGenerator[Page, None]:
        """How the streams compare beyond the key `after`, a page at a time."""
        source = Source(after, ground)
        return merged(self.authority(source), self.projection(source), after=after)

    async def check(self, run: Run[Any]) -> Checked:
        """Compare, wait, and compare again, from within a job; see `postroad.reconcile.checking.check`.

        A job that is killed or fails goes on where it was, at its next attempt. Give it a `max_runtime` that both
        looks fit in, and `settle` between them. Its process's metrics tell what was found.
        """
        from postroad.reconcile.checking import check

        return await check(ground_of(run), self)

    async def mend(self, run: Run[Any]) -> Repaired:
        """Repair what has drifted, from within a job: all of it, or nothing where that is more than `limit`.

        So many differences at once are rather the fault of a stream, which a person looks at first.
        """
        from postroad.reconcile.repairing import mend

        return await mend(ground_of(run), self)
