"""How far a projection is behind: events still to come for a consumer, and how long the latest ones took."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.clock import hours
from postroad.sql.statement import queries
from postroad.transport.postgres.store import SUFFIX

if TYPE_CHECKING:
    from postroad.consume.consumer import Consumer
    from postroad.sql import Pipeline

QUERIES: Final = queries("postroad.reconcile", "lag.sql")

MOST: Final = 100_000
"""More than these are counted as so many."""
SAMPLE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a consumer is behind; None is what cannot be seen from here.

    Still to come are events that wait in the `outbox`, in the consumer's `queue` of the transport, and in `work` for
    another attempt or for their effects; `quarantined` ones come only when a person says so. `oldest_seconds` is the
    age of the oldest of those that wait in this database. Of the latest deliveries (100 at most), the median and the
    longest time from staging an event until it was handled.
    """

    consumer: str
    outbox: int | None
    queue: int | None
    work: int
    quarantined: int
    oldest_seconds: float | None
    median_seconds: float | None
    longest_seconds: float | None

    @property
    def to_come(self) -> int | None:
        """How many events are still to come; None where a part of the road cannot be seen."""
        if self.outbox is None or self.queue is None:
            return None
        return self.outbox + self.queue + self.work


def lag(
    schema: str, consumer: Consumer[Any], *, logged: bool, here: bool, queue: int | None, now: datetime
) -> Pipeline[Lag]:  # fmt: skip
    """How far `consumer` is behind; `logged` says whether its events' outbox is in this database.

    `queue` is how much waits in its queue on a broker; where events are carried `here`, the database knows.
    """
    types = sorted({item.type for item in consumer.subscriptions})
    (row,) = yield QUERIES.statement("behind", schema, consumer.name, types, consumer.name + SUFFIX, MOST)
    (took,) = yield QUERIES.statement("took", schema, consumer.name, SAMPLE, _beyond(now))
    ages = [row["work_oldest"], row["queue_oldest"], row["outbox_oldest"] if logged else None]
    return Lag(
        consumer=consumer.name, outbox=row["outbox"] if logged else None,
        queue=row["queue"] if here else queue, work=row["work"], quarantined=row["quarantined"],
        oldest_seconds=max((age for age in ages if age is not None), default=None), median_seconds=took["median"],
        longest_seconds=took["longest"],
    )  # fmt: skip


def _beyond(now: datetime) -> UUID:
    """Above every id that was made by now."""
    return UUID(int=round((now + hours(1)).timestamp() * 1000) << 80)
