"""The metrics of reconciliation and of projection lag, for the Prometheus sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from postroad.signals import catalog

if TYPE_CHECKING:
    from postroad.signals.catalog import Signal


class ReconcileMetrics:
    """Labels are the names of declared reconciliations and consumers; keys never are."""

    def __init__(self, into: CollectorRegistry) -> None:
        """Register in `into`."""
        self._drift = Gauge(
            "postroad_reconciliation_drift_items",
            "Keys that have drifted, by how they differ.",
            ["check", "kind"],
            registry=into,
        )
        self._pending = Gauge(
            "postroad_reconciliation_pending_items",
            "Differences that events on their way may put right.",
            ["check"],
            registry=into,
        )
        self._success = Gauge(
            "postroad_reconciliation_last_success_timestamp_seconds",
            "When a comparison last came to its end, as a Unix time.",
            ["check"],
            registry=into,
        )
        self._repairs = Counter(
            "postroad_reconciliation_repairs_total",
            "Keys that a repair touched, by what became of it.",
            ["check", "result"],
            registry=into,
        )
        self._lag = Gauge(
            "postroad_projection_lag_seconds",
            "From an occurrence until it was handled, of the first in the latest batch.",
            ["projection"],
            registry=into,
        )
        self._behind = Gauge(
            "postroad_projection_lag_events", "Events still to come for a consumer.", ["projection"], registry=into
        )
        self.hear: dict[type[Signal], Callable[[Any], None]] = {
            catalog.ReconciliationEnded: self._ended,
            catalog.DriftRepaired: self._repaired,
            catalog.ProjectionLag: lambda signal: self._lag.labels(signal.consumer).set(signal.seconds),
            catalog.ProjectionBehind: lambda signal: self._behind.labels(signal.consumer).set(signal.events),
        }

    def _ended(self, signal: catalog.ReconciliationEnded) -> None:
        for kind in ("missing", "extra", "mismatched"):
            self._drift.labels(signal.reconciliation, kind).set(getattr(signal, kind))
        self._pending.labels(signal.reconciliation).set(signal.pending)
        if signal.end == "complete":
            self._success.labels(signal.reconciliation).set(signal.ended)

    def _repaired(self, signal: catalog.DriftRepaired) -> None:
        for result in ("done", "failed", "left"):
            self._repairs.labels(signal.reconciliation, result).inc(getattr(signal, result))
