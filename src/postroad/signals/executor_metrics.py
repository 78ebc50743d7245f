"""The executor's metrics, for the Prometheus sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from postroad.signals import catalog
from postroad.signals.histogram import BatchHistogram

if TYPE_CHECKING:
    from postroad.signals.catalog import Signal


class ExecutorMetrics:
    """Counts by executor and result: names of tasks are the author's, and without a bound."""

    def __init__(self, into: CollectorRegistry, *, buckets: tuple[float, ...]) -> None:
        """Register in `into`."""
        self._waiting = Gauge(
            "postroad_executor_waiting_tasks", "Background tasks that wait.", ["executor"], registry=into
        )
        self._running = Gauge(
            "postroad_executor_running_tasks", "Background tasks that run.", ["executor"], registry=into
        )
        self._tasks = Counter(
            "postroad_executor_tasks_total",
            "Background tasks by what became of them.",
            ["executor", "result"],
            registry=into,
        )
        self._seconds = BatchHistogram(
            "postroad_executor_task_duration_seconds",
            "From starting a background task until its end.",
            ["executor", "result"],
            buckets=buckets,
            registry=into,
        )
        self.hear: dict[type[Signal], Callable[[Any], None]] = {
            catalog.ExecutorLoad: self._load,
            catalog.ExecutorSettled: self._settled,
            catalog.ExecutorRefused: lambda signal: self._tasks.labels(signal.executor, "refused").inc(),
        }

    def _load(self, signal: catalog.ExecutorLoad) -> None:
        self._waiting.labels(signal.executor).set(signal.waiting)
        self._running.labels(signal.executor).set(signal.running)

    def _settled(self, signal: catalog.ExecutorSettled) -> None:
        self._tasks.labels(signal.executor, signal.result).inc()
        self._seconds.labels(signal.executor, signal.result).observe_many((signal.seconds,))
