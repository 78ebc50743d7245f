"""The metrics of effects, for the Prometheus sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from postroad.signals import catalog
from postroad.signals.histogram import BatchHistogram

if TYPE_CHECKING:
    from postroad.signals.catalog import Signal

_UNCERTAIN: Final = frozenset({"sent", "unknown", "reconciling", "manual"})


class EffectMetrics:
    """Counts by the names of declared effects; keys and references are never labels."""

    def __init__(self, into: CollectorRegistry, *, buckets: tuple[float, ...]) -> None:
        """Register in `into`."""
        self._calls = Counter(
            "postroad_effect_calls_total",
            "Calls of owners of effects, by what came back.",
            ["effect", "result"],
            registry=into,
        )
        self._seconds = BatchHistogram(
            "postroad_effect_call_duration_seconds",
            "How long an owner took.",
            ["effect", "result"],
            buckets=buckets,
            registry=into,
        )
        self._look_ups = Counter(
            "postroad_effect_look_ups_total", "Look-ups of unknown outcomes.", ["effect", "answer"], registry=into
        )
        self._open = Gauge(
            "postroad_effect_open_items", "Effects without an outcome.", ["effect", "state"], registry=into
        )
        self._oldest = Gauge(
            "postroad_effect_oldest_unknown_age_seconds",
            "Age of the oldest effect that was sent and has no outcome.",
            ["effect"],
            registry=into,
        )
        self._reported: set[tuple[str, str]] = set()
        self.hear: dict[type[Signal], Callable[[Any], None]] = {
            catalog.EffectAnswered: self._answered,
            catalog.EffectReturned: lambda signal: self._calls.labels(signal.effect, "recorded").inc(),
            catalog.EffectConflict: lambda signal: self._calls.labels(signal.effect, "conflict").inc(),
            catalog.EffectLookedUp: lambda signal: self._look_ups.labels(signal.effect, signal.answer).inc(),
            catalog.EffectsOpen: self._counted,
        }

    def _answered(self, signal: catalog.EffectAnswered) -> None:
        self._calls.labels(signal.effect, signal.result).inc()
        self._seconds.labels(signal.effect, signal.result).observe_many((signal.seconds,))

    def _counted(self, signal: catalog.EffectsOpen) -> None:
        found = {(effect, state): count for effect, state, count, _ in signal.open}
        oldest = dict.fromkeys((effect for effect, _ in self._reported), 0.0)
        for effect, state, _, age in signal.open:
            known = oldest.get(effect, 0.0)
            oldest[effect] = max(known, age) if state in _UNCERTAIN else known
        for effect, state in self._reported | found.keys():
            self._open.labels(effect, state).set(found.get((effect, state), 0))
        for effect, age in oldest.items():
            self._oldest.labels(effect).set(age)
        self._reported |= found.keys()
