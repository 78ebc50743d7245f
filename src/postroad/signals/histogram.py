"""A histogram that takes whole batches: one lock and one search a value, where the client library does far more."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric


class Cell:
    """The observations of one set of labels."""

    __slots__ = ("_bounds", "_lock", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Count into the buckets that end at `bounds`, and one more for what lies above."""
        self._bounds = bounds
        self._lock = threading.Lock()
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe_many(self, values: Sequence[float]) -> None:
        """Count `values`; a bucket includes its bound."""
        if not values:
            return
        bounds, counts = self._bounds, self.counts
        with self._lock:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
            self.total += sum(values)

    def read(self) -> tuple[list[int], float]:
        """The cumulated counts and the sum, as of one moment."""
        with self._lock:
            return list(accumulate(self.counts)), self.total


class BatchHistogram(Collector):
    """A Prometheus histogram with fixed labels; `labels` gives the cell to keep and count into."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        """Register in `registry`; `buckets` are upper bounds, ascending."""
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = tuple(buckets)
        self._cells: dict[tuple[str, ...], Cell] = {}
        registry.register(self)

    def labels(self, *values: str) -> Cell:
        """The cell of one set of label values, made if it is new."""
        cell = self._cells.get(values)
        return cell if cell is not None else self._cells.setdefault(values, Cell(self._bounds))

    @override
    def collect(self) -> Iterable[Metric]:
        """See `Collector.collect`."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        bounds = [*(str(bound) for bound in self._bounds), "+Inf"]
        for values, cell in list(self._cells.items()):
            counts, total = cell.read()
            family.add_metric(values, list(zip(bounds, map(float, counts), strict=True)), total)
        return [family]

    def describe(self) -> Iterable[Metric]:
        """The name without values, so that registering it twice is refused."""
        return [HistogramMetricFamily(self._name, self._text, labels=self._labels)]
