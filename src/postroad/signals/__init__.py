"""What happens on the road, told at once to whoever listens: logs, metrics, tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from postroad.signals.catalog import Signal

Sink = Callable[[Signal], None]


class Signals:
    """Hands each record to every sink, synchronously, in the emitting thread.

    A sink must be quick and safe from any thread. An error in one is swallowed and counted in `sink_errors`:
    neither the road nor the other sinks notice. Sinks are called in the order in which they were added.
    """

    __slots__ = ("_lock", "_sinks", "sink_errors")

    def __init__(self, *sinks: Sink) -> None:
        """Start with `sinks`."""
        self._sinks: tuple[Sink, ...] = sinks
        self._lock = threading.Lock()
        self.sink_errors = 0

    def subscribe(self, sink: Sink) -> Callable[[], None]:
        """Add `sink`; the returned function removes it again (calling it twice is harmless)."""
        with self._lock:
            self._sinks = (*self._sinks, sink)

        def remove() -> None:
            with self._lock:
                self._sinks = tuple(other for other in self._sinks if other is not sink)

        return remove

    def emit(self, signal: Signal) -> None:
        """Tell every sink. Never raises, except what must end the process (`SystemExit`, `KeyboardInterrupt`)."""
        for sink in self._sinks:
            try:
                sink(signal)
            except Exception:  # noqa: BLE001 - a sink's trouble is never the road's
                with self._lock:
                    self.sink_errors += 1


__all__ = ["Signal", "Signals", "Sink"]
