"""What a handler is told about the event that it handles."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Generic, Protocol

from typing_extensions import TypeVar

from postroad.errors import UsageError
from postroad.leases.hold import TTL
from postroad.work.use import Kind, Resources, used

if TYPE_CHECKING:
    from uuid import UUID

    from postroad.leases import AsyncLease, SyncLease
    from postroad.sql.asyncpg import Connection

T = TypeVar("T")
Tx_co = TypeVar("Tx_co", covariant=True, default="Connection")


@dataclass(slots=True, kw_only=True, eq=False)  # Not frozen: that would cost every one four times as much.
class Delivery(Generic[Tx_co]):
    """One event on its way through one consumer.

    `tx` is the open transaction of this delivery: what is written on it commits together with the mark that makes
    every further copy a duplicate. It is valid until the handler returns. `attempt` is 1 the first time and grows
    with each charged failure; `redelivered` is the broker's flag and says nothing about attempts. `occurred_at` and
    `recorded_at` (when it was staged) are aware UTC, and None only from producers that are not Postroad's.
    """

    tx: Tx_co = field(repr=False)
    consumer: str
    id: str
    source: str
    type: str
    version: int
    key: str | None
    sequence: int | None
    occurred_at: datetime | None
    recorded_at: datetime | None
    correlation_id: str
    causation_id: str | None
    message_key: UUID
    attempt: int
    redelivered: bool
    resources: Resources = field(default_factory=dict, repr=False)
    holder: Holder | None = field(default=None, repr=False)
    """Who takes leases for `lease`; ours."""

    def use(self, kind: Kind[T]) -> T:
        """The App's live object of type `kind`, made by its ``lifespan``.

        Raises:
            UsageError: the App has none of that type.
        """
        return used(self.resources, kind, by=f"consumer {self.consumer!r}")

    def lease(
        self, name: str, *, ttl: timedelta = TTL, wait: timedelta | None = None
    ) -> AbstractAsyncContextManager[AsyncLease]:
        """Hold the lease `name` for a block of an ``async def`` handler; see `postroad.leases.Leases.hold`.

        What the handler writes on `tx` is under the lease until it commits: where the block ends well, the name is
        given up by that commit, or not committed at all once another has it. Where the handler fails after the
        block, the name is free when `ttl` is over. A handler that waits holds up its group: ``group=False``.

        Raises:
            LeaseHeld: PR402, another has it; at once, or after `wait`. Not caught, the delivery is retried.
            LeaseLost: PR401, it was lost. Not caught, the delivery is given back, uncharged.
            UsageError: an argument is not valid.
        """
        return self._holder().lease(name, ttl=ttl, wait=wait)

    def lease_sync(
        self, name: str, *, ttl: timedelta = TTL, wait: timedelta | None = None
    ) -> AbstractContextManager[SyncLease]:
        """`lease` for a ``def`` handler: at the loss the connection of `tx` is cut; call ``lease.check()`` besides."""
        return self._holder().lease_sync(name, ttl=ttl, wait=wait)

    def _holder(self) -> Holder:
        if self.holder is None:
            raise UsageError("PR107", f"consumer {self.consumer!r} has no leases; run it in an App")
        return self.holder


class Holder(Protocol):
    """Takes leases for a handler."""

    def lease(self, name: str, *, ttl: timedelta, wait: timedelta | None) -> AbstractAsyncContextManager[AsyncLease]:
        """See `Delivery.lease`."""
        ...

    def lease_sync(self, name: str, *, ttl: timedelta, wait: timedelta | None) -> AbstractContextManager[SyncLease]:
        """See `Delivery.lease_sync`."""
        ...
