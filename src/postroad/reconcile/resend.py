"""Repair by the events themselves: those of a key are handed to a consumer once more."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from postroad.consume import again
from postroad.consume.consumer import consumer_of
from postroad.errors import UsageError
from postroad.outbox import resend as log
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.work.use import used

if TYPE_CHECKING:
    from postroad.outbox.resend import Logged
    from postroad.reconcile.ground import Ground
    from postroad.sql.asyncpg import Connection


class Pool(Protocol):
    """What a live object must be to reach another service's log: an asyncpg pool."""

    def acquire(self) -> AbstractAsyncContextManager[Connection]:
        """A connection for the block."""
        ...


@dataclass(frozen=True, slots=True)
class Resend:
    """See `resend`."""

    consumer: str
    types: tuple[str, ...]
    log: type[Any] | None
    extra: Callable[[Any], Awaitable[None]] | None = None
    """What takes away a key that the authority does not have: no event does."""
    by_id: bool = False
    """Whether the drifted keys end with the ids of events that were never handled: then no mark is in their way."""

    async def prepare(
        self, ground: Ground, tx: Connection, keys: Sequence[str]
    ) -> Callable[[], Awaitable[None]] | None:  # fmt: skip
        """Have the events of `keys` sent again, in the transaction `tx`; what is left to do once that has committed.

        Their marks go first: a crash before the events are in another database's outbox leaves the drift where it is.
        """
        if not keys:
            return None
        found = log.logged(ground.schema, keys, types=self.types)
        if self.by_id:
            found = log.logged_by_id(ground.schema, [UUID(key.rpartition(" ")[2]) for key in keys])
        if self.log is None:
            events = await drive(found, AsyncpgHand(tx))
        else:
            pool: Pool = used(ground.resources, self.log, by=f"the repair for consumer {self.consumer!r}")
            async with pool.acquire() as connection:
                events = await drive(found, AsyncpgHand(connection))
        if not self.by_id:
            ids = [event.id for event in events]
            await drive(again.forget(ground.schema, self.consumer, ids, keys), AsyncpgHand(tx))
        if self.log is None:
            await drive(log.put(ground.schema, events, target=self.consumer), AsyncpgHand(tx))
            return None
        return lambda: self._put(ground, pool, events)

    async def _put(self, ground: Ground, pool: Pool, events: Sequence[Logged]) -> None:
        async with pool.acquire() as connection, connection.transaction():
            await drive(log.put(ground.schema, events, target=self.consumer), AsyncpgHand(connection))


def resend(
    consumer: Callable[..., Any], *, log: type[Any] | None = None,
    extra: Callable[[Any], Awaitable[None]] | None = None,
) -> Resend:  # fmt: skip
    """Repair by sending `consumer` the events of the drifted key again, with their ids and bytes, oldest first.

    The drifted key must be the key that the events were published with. They go through the outbox, to this consumer
    alone; its marks of them are cleared, so that they are **handled again**: its handler must set what it writes, not
    add to it. What waits in work or lies in quarantine stays where it is. `log` is the type of the App's live object
    (an asyncpg pool) that reaches the database where the events were published; without it, that is the service's own.
    The log has no index by key: each batch of keys reads it once.

    No event takes an extra key away: `extra`, an ``async def`` of a `Drift`, does; without it they are left alone.

    Raises:
        UsageError: PR101, `consumer` is no consumer, or `extra` no ``async def`` with one argument.
    """
    one = consumer_of(consumer)
    if extra is not None and not repairs(extra):
        raise UsageError("PR101", f"resend({one.name!r}): extra is no async def with one argument")
    return Resend(one.name, tuple(item.type for item in one.subscriptions), log, extra)


def repairs(function: object) -> bool:
    """Whether it is an ``async def`` with one argument."""
    return inspect.iscoroutinefunction(function) and len(inspect.signature(function).parameters) == 1
