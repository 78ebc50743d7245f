"""Publishes as rows of work: one statement for all that waits, and the answers once it is committed."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from postroad.errors import Unavailable
from postroad.failures import sqlstates
from postroad.transport.base import Outgoing, Settled, Settlement
from postroad.transport.postgres import store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from postroad.sql.manager import Manager

MOST: Final = 500
"""Publishes of one statement."""

NOBODY: Final = "no consumer subscribes to it in this database; run `postroad topology apply` for the consumer's App"
_CONTENT: Final = frozenset({"22", "23", "54"})
"""The classes of SQLSTATE that speak of values: not valid, against a constraint, too large."""
_AWAY: Final = "the database was lost before it answered"


class PostgresPublisher:
    """Implements `Publisher` on the service's own database, on the caller's loop.

    What was handed over goes out in order, one statement at a time. CONFIRMED means that a row of work for every
    subscribed consumer is committed, RETURNED that there is none. Where the database is lost the fate of a statement
    is unknown: the dispatcher hands it over again, and rows that stand already stand for their repeats.
    """

    def __init__(self, manager: Manager, *, wake: Callable[[str], None], changed: Callable[[], None]) -> None:
        """Publish to `manager`'s schema; `wake` is told each queue that has got rows, `changed` that there is work."""
        self._manager = manager
        self._wake = wake
        self._changed = changed
        self._waiting: deque[Outgoing] = deque()
        self._running = False
        self._settled: Callable[[Sequence[Settled]], None] = lambda _: None
        self._writable: Callable[[], None] = lambda: None

    @property
    def writable(self) -> bool:
        """See `Publisher.writable`."""
        return self._running

    @property
    def waits(self) -> bool:
        """Whether something was handed over that is not on its way yet."""
        return bool(self._waiting)

    def publish(self, batch: Sequence[Outgoing]) -> None:
        """See `Publisher.publish`."""
        if not self._running:
            asyncio.get_running_loop().call_soon(self._unknown, list(batch))
            return
        self._waiting.extend(batch)
        self._changed()

    def on_settled(self, hear: Callable[[Sequence[Settled]], None]) -> None:
        """See `Publisher.on_settled`."""
        self._settled = hear

    def on_writable(self, hear: Callable[[], None]) -> None:
        """See `Publisher.on_writable`."""
        self._writable = hear

    # --- the transport's service --------------------------------------------------------------------------------

    def attach(self, *, running: bool) -> None:
        """The transport runs from now on, or does no more: what waits then is settled UNKNOWN."""
        if running != self._running:
            self._running = running
            self._writable()
        if not running:
            left = [*self._waiting]
            self._waiting.clear()
            self._unknown(left)

    async def send(self) -> None:
        """Send a batch of what waits, and settle it: UNKNOWN where anything is raised.

        A batch that the database refuses for what one of them holds is sent again one by one, and that one REFUSED.

        Raises:
            AccessRefused: the role may not.
            Unavailable: the database is away.
        """
        batch = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
        size = len(batch)
        while batch:
            some = batch[:size]
            try:
                rows = await self._manager.fetch(store.send(self._manager.schema, some))
            except BaseException as error:
                state = _of_content(error)
                if state is None:
                    self._unknown(batch)
                    raise
                if size > 1:
                    size = 1
                    continue
                self._settled([Settled(some[0].ticket, Settlement.REFUSED, f"the database refuses it ({state})")])
            else:
                self._answer(some, {row["ticket"]: row["consumers"] for row in rows})
            del batch[:size]

    def _answer(self, batch: Sequence[Outgoing], found: Mapping[int, Sequence[str]]) -> None:
        self._settled([_answer(one, found.get(one.ticket)) for one in batch])
        for consumer in {name for names in found.values() for name in names}:
            self._wake(store.deliveries_of(consumer))

    def _unknown(self, batch: Iterable[Outgoing]) -> None:
        answers = [Settled(one.ticket, Settlement.UNKNOWN, _AWAY) for one in batch]
        if answers:
            self._settled(answers)


def _of_content(error: BaseException) -> str | None:
    """What tells that a statement failed for what it holds, so that it fails whenever it is sent; None if nothing."""
    state = next(sqlstates(error), None)
    if state is not None:
        return state if state[:2] in _CONTENT and not isinstance(error, Unavailable) else None
    return type(error).__name__ if isinstance(error, ValueError | OverflowError) else None


def _answer(outgoing: Outgoing, consumers: Sequence[str] | None) -> Settled:
    if consumers:
        return Settled(outgoing.ticket, Settlement.CONFIRMED)
    return Settled(outgoing.ticket, Settlement.RETURNED, NOBODY)
