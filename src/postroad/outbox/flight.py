"""One row of the outbox on its way: what the dispatcher knows of it from the read to the delete."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from postroad.transport.base import REPLAY_HEADER, Outgoing

if TYPE_CHECKING:
    from uuid import UUID

    from postroad.leases import Lease

CONTENT_TYPE: Final = "application/cloudevents+json"
ATTEMPT_HEADER: Final = "postroad-attempt"

_ROUTE = re.compile(r"(?P<type>.+)\.v(?P<version>\d+)")
_NO_HEADERS: Final[Mapping[str, Any]] = {}


class Route(NamedTuple):
    """Where events of one type and version go; all of it follows from the routing key ``<type>.v<version>``."""

    key: str
    type: str
    version: int
    producer: str

    @property
    def exchange(self) -> str:
        """Everybody who subscribed."""
        return f"{self.producer}.events"

    @property
    def replay_exchange(self) -> str:
        """One consumer, whose queue is bound under its own name."""
        return f"{self.producer}.replay"


def route(key: str) -> Route:
    """Read a routing key; one without a version counts as version 0."""
    parts = _ROUTE.fullmatch(key)
    kind, version = (parts["type"], int(parts["version"])) if parts else (key, 0)
    return Route(key, kind, version, kind.partition(".")[0])


@dataclass(slots=True, eq=False)
class Flight:
    """A row and its event; `lease` is the shard's lease under which it was read. Times are monotonic seconds.

    `lane` is the routing key whose limits and breaker count for it; empty for a row that goes to one consumer alone.
    A `probe` finds out whether its route is well again. A `suspect` may have made the broker close the channel.
    """

    shard: int
    place: int
    seq: int
    recorded: datetime
    retention: int
    route: Route
    key_hash: int | None
    target: str | None
    attempts: int
    lease: Lease
    replay: UUID | None = None
    outgoing: Outgoing | None = None
    size: int = 0
    sent_at: float = 0.0
    settled_at: float = 0.0
    reason: str = field(default="", repr=False)
    probe: bool = False
    suspect: bool = False
    lane: str = field(init=False)

    def __post_init__(self) -> None:
        """Name the lane."""
        self.lane = self.route.key if self.target is None else ""


def outgoing(flight: Flight, body: Mapping[str, Any], *, ticket: int) -> Outgoing:
    """The publish of a row: the stored bytes as they are, and the properties that brokers and operators need."""
    where = flight.route
    headers: dict[str, Any] = {ATTEMPT_HEADER: flight.attempts} if flight.attempts else {}
    if flight.replay is not None:
        headers[REPLAY_HEADER] = str(flight.replay)
    exchange, key = (where.exchange, where.key) if flight.target is None else (where.replay_exchange, flight.target)
    return Outgoing(
        ticket, exchange, key, body["envelope"], body["id"], where.type, where.producer, body["correlation"],
        CONTENT_TYPE, headers or _NO_HEADERS, flight.probe,
    )  # fmt: skip
