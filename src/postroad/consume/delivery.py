"""What a handler is told about the event that it handles."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar

from postroad.work.use import Kind, Resources, used

if TYPE_CHECKING:
    from uuid import UUID

    from postroad.sql.asyncpg import Connection

T = TypeVar("T")
Tx_co = TypeVar("Tx_co", covariant=True, default="Connection")


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def use(self, kind: Kind[T]) -> T:
        """The App's live object of type `kind`, made by its ``lifespan``.

        Raises:
            UsageError: the App has none of that type.
        """
        return used(self.resources, kind, by=f"consumer {self.consumer!r}")
