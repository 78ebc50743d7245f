"""The replays' metrics, for the Prometheus sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter

from postroad.signals import catalog
from postroad.signals.histogram import BatchHistogram

if TYPE_CHECKING:
    from postroad.signals.catalog import Signal

EVERYONE: Final = "_all"
"""The label of a replay that goes to all consumers."""


class ReplayMetrics:
    """Counts by the consumer that a replay goes to: operators name them, and the broker knows them."""

    def __init__(self, into: CollectorRegistry, *, buckets: tuple[float, ...]) -> None:
        """Register in `into`."""
        self._events = Counter(
            "postroad_replay_events_total",
            "Events of replays by what became of them.",
            ["consumer", "result"],
            registry=into,
        )
        self._seconds = BatchHistogram(
            "postroad_replay_run_duration_seconds",
            "From the start of a replay until all of it has arrived.",
            ["consumer"],
            buckets=buckets,
            registry=into,
        )
        self.hear: dict[type[Signal], Callable[[Any], None]] = {
            catalog.ReplayAdvanced: self._advanced,
            catalog.ReplayEnded: self._ended,
            catalog.DeliveryRehandled: lambda signal: self._events.labels(signal.consumer, "rehandled").inc(),
        }

    def _advanced(self, signal: catalog.ReplayAdvanced) -> None:
        for result, count in (("sent", signal.sent), ("redacted", signal.redacted)):
            if count:
                self._events.labels(signal.target or EVERYONE, result).inc(count)

    def _ended(self, signal: catalog.ReplayEnded) -> None:
        self._seconds.labels(signal.target or EVERYONE).observe_many([signal.seconds])
