"""What the broker itself took out of a consumer's queue: read from the headers that it adds, put into quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from postroad.consume import inbox, starts
from postroad.consume.arrival import Arrival, identified, received
from postroad.consume.inbox import Mark
from postroad.failures import FailureClass, Verdict
from postroad.work import store as work

if TYPE_CHECKING:
    from postroad.consume.consumer import Consumer
    from postroad.sql.statement import Pipeline
    from postroad.transport.base import Incoming

CODE: Final = "PR512"
REASONS: Final = frozenset({"rejected", "expired", "maxlen", "delivery_limit"})
"""What RabbitMQ 3.10 to 4.x write into ``x-death``."""

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Death:
    """Why and how often the broker took a message out of a queue, and by which exchange and key it had come there."""

    reason: str = UNKNOWN
    count: int = 0
    exchange: str | None = None
    routing_key: str | None = None


def death_in(headers: Mapping[str, Any], queue: str) -> Death:
    """What ``x-death`` says about `queue`: its newest entry, which is the first. Pure; nothing there makes it raise.

    Releases differ in the rest (``x-first-death-*`` from 3.8, ``x-last-death-*`` from 3.13) and in which counts they
    carry; nothing of that is looked at.
    """
    deaths = headers.get("x-death")
    for entry in deaths if isinstance(deaths, list | tuple) else ():
        if isinstance(entry, Mapping) and entry.get("queue") == queue:
            reason, count, keys = entry.get("reason"), entry.get("count"), entry.get("routing-keys")
            return Death(
                reason=reason if isinstance(reason, str) and reason in REASONS else UNKNOWN,
                count=count if isinstance(count, int) else 0,
                exchange=_text(entry.get("exchange")),
                routing_key=_text(keys[0]) if isinstance(keys, list | tuple) and keys else None,
            )
    return Death()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message of a dead letter queue, as it was before it came there."""

    arrival: Arrival
    death: Death

    @property
    def verdict(self) -> Verdict:
        """What stands on its row."""
        death = self.death
        times = f", {death.count} times" if death.count > 1 else ""
        reason = f"the broker took it out of its queue ({death.reason}{times}); its history is in the header x-death"
        return Verdict(
            failure=FailureClass.QUARANTINE, code=CODE, reason=reason, error_type="dead-letter",
            fingerprint=f"dead-letter:{death.reason}",
        )  # fmt: skip


def read(consumer: Consumer[Any], incoming: Incoming) -> DeadLetter:
    """Put exchange and routing key back to those by which it came to the consumer, as the broker tells.

    Where it does not tell, or they are not its type's owner's, it has no message key: nothing vouches for it.
    """
    arrival, death = received(incoming), death_in(incoming.headers, consumer.name)
    if death.exchange is not None:
        wire = replace(arrival.wire, exchange=death.exchange, routing_key=death.routing_key)
        arrival = replace(arrival, wire=wire)
    return DeadLetter(identified(consumer, arrival), death)


def collected(schema: str, consumer: Consumer[Any], letter: DeadLetter) -> Pipeline[bool]:
    """Keep it in quarantine, once while its row is open, and mark it in the inbox unless a mark stands; whether new.

    With the mark a copy that still lies in the queue is a duplicate. Where one stands already, or another process has
    the message open, that has the last word: a release then ends as a duplicate, or is refused while a retry is open.
    """
    key = letter.arrival.message_key
    if key is not None:
        yield from inbox.claim(schema, consumer.name, key, mark=Mark.QUARANTINED, reason=CODE, owned=False)
        yield from starts.answered(schema, consumer.name, key)
    fresh = yield from work.quarantine(
        schema, queue=consumer.name, key=None if key is None else str(key), wire=letter.arrival.wire,
        verdict=letter.verdict, kind="dead-letter",
    )  # fmt: skip
    return fresh


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
