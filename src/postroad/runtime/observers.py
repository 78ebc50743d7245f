"""Who listens to a process: its log and its metrics."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from postroad.runtime.settings import LogForm
from postroad.signals.logs import LOGGER, JsonFormatter, LogSink
from postroad.signals.prometheus import PrometheusSink

if TYPE_CHECKING:
    from postroad.runtime.settings import Settings
    from postroad.signals import Sink

_TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
_sinks: dict[CollectorRegistry, PrometheusSink] = {}


def observers(settings: Settings, *, standalone: bool) -> tuple[list[Sink], Callable[[], bytes]]:
    """The sinks of a process, and what `/metrics` shows: the client library's own registry, the author's metrics too.

    A process of its own also gets its log set up, on standard error; inside another server that server decides.
    """
    if standalone:
        set_up_log(settings)
    return [LogSink(), _prometheus(REGISTRY)], lambda: generate_latest(REGISTRY)


def set_up_log(settings: Settings) -> None:
    """Log to standard error in the form and from the level that the settings say; the author's handlers stay."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if settings.log is LogForm.JSON else logging.Formatter(_TEXT))
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    logging.getLogger(LOGGER).setLevel(settings.log_level.upper())
    for name in settings.strangers:
        logging.getLogger(LOGGER).warning("%s is not a setting of Postroad and has no effect", name)
    # What pika has to say is told by the transport, translated; its own lines come with tracebacks.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


def _prometheus(registry: CollectorRegistry) -> PrometheusSink:
    # Metrics may be registered once per registry, and two Apps may run in one process.
    sink = _sinks.get(registry)
    if sink is None:
        sink = _sinks[registry] = PrometheusSink(registry)
    return sink
