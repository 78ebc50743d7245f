"""The schedules' metrics, for the Prometheus sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from postroad.signals import catalog
from postroad.signals.histogram import BatchHistogram

if TYPE_CHECKING:
    from postroad.signals.catalog import Signal


class ScheduleMetrics:
    """Counts by schedule: their names are declared, and so bounded."""

    def __init__(self, into: CollectorRegistry, *, buckets: tuple[float, ...]) -> None:
        """Register in `into`."""
        self._due = Counter(
            "postroad_schedule_due_total", "Occurrences that became due.", ["schedule"], registry=into
        )  # fmt: skip
        self._runs = Counter(
            "postroad_schedule_runs_total",
            "Occurrences by what became of them.",
            ["schedule", "phase", "result"],
            registry=into,
        )
        self._delay = BatchHistogram(
            "postroad_schedule_start_delay_seconds",
            "From when a run was to start until a worker began it.",
            ["schedule"],
            buckets=buckets,
            registry=into,
        )
        self._success = Gauge(
            "postroad_schedule_last_success_timestamp_seconds",
            "When a run of the schedule last succeeded, as a Unix time.",
            ["schedule"],
            registry=into,
        )
        self.hear: dict[type[Signal], Callable[[Any], None]] = {
            catalog.OccurrencesDue: lambda signal: self._due.labels(signal.schedule).inc(signal.count),
            catalog.OccurrenceStarted: lambda signal: self._runs.labels(signal.schedule, "started", "ok").inc(),
            catalog.OccurrencesPassed: self._passed,
            catalog.OccurrenceEnded: self._ended,
        }

    def _passed(self, signal: catalog.OccurrencesPassed) -> None:
        self._runs.labels(signal.schedule, "started", signal.result).inc(signal.count)

    def _ended(self, signal: catalog.OccurrenceEnded) -> None:
        self._runs.labels(signal.schedule, "ended", signal.result).inc()
        if signal.delays:
            self._delay.labels(signal.schedule).observe_many([max(delay, 0.0) for delay in signal.delays])
        if signal.result == "ok":
            self._success.labels(signal.schedule).set(signal.ended)
