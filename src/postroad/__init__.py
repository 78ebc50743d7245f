"""Postroad: reliable messaging, workers and scheduled jobs on PostgreSQL and RabbitMQ."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroad.clock import hours, minutes, seconds
    from postroad.consume import Delivery, Properties, cloud_event, consumer
    from postroad.effects import Absent, Done, EffectAttempt, Found, Refused, Unknown, effect
    from postroad.events import Envelope, Keep, Producer, Sensitive, Subscription
    from postroad.failures import Cancel, Dependency, Drop, OutcomeUnknown, Quarantine, Retry, Rules, Snooze
    from postroad.reconcile import Drift, Reconciliation, Source, pages, resend
    from postroad.retry import Backoff
    from postroad.runtime.app import App
    from postroad.runtime.background import Executor
    from postroad.schedules.policy import Missed, Overlap
    from postroad.schedules.schedule import Schedule
    from postroad.work.job import job
    from postroad.work.run import BlockingRun, Run

_ROOMS = {
    "Absent": "postroad.effects",
    "App": "postroad.runtime.app",
    "Backoff": "postroad.retry",
    "BlockingRun": "postroad.work.run",
    "Cancel": "postroad.failures",
    "Delivery": "postroad.consume",
    "Dependency": "postroad.failures",
    "Done": "postroad.effects",
    "Drift": "postroad.reconcile",
    "Drop": "postroad.failures",
    "EffectAttempt": "postroad.effects",
    "Envelope": "postroad.events",
    "Executor": "postroad.runtime.background",
    "Found": "postroad.effects",
    "Keep": "postroad.events",
    "Missed": "postroad.schedules.policy",
    "OutcomeUnknown": "postroad.failures",
    "Overlap": "postroad.schedules.policy",
    "Producer": "postroad.events",
    "Properties": "postroad.consume",
    "Quarantine": "postroad.failures",
    "Reconciliation": "postroad.reconcile",
    "Refused": "postroad.effects",
    "Retry": "postroad.failures",
    "Rules": "postroad.failures",
    "Run": "postroad.work.run",
    "Schedule": "postroad.schedules.schedule",
    "Sensitive": "postroad.events",
    "Snooze": "postroad.failures",
    "Source": "postroad.reconcile",
    "Subscription": "postroad.events",
    "Unknown": "postroad.effects",
    "cloud_event": "postroad.consume",
    "consumer": "postroad.consume",
    "effect": "postroad.effects",
    "hours": "postroad.clock",
    "job": "postroad.work.job",
    "minutes": "postroad.clock",
    "pages": "postroad.reconcile",
    "resend": "postroad.reconcile",
    "seconds": "postroad.clock",
}

# Which extra brings what a room may miss; any other missing module is a fault, and comes out as it is.
_EXTRAS = dict.fromkeys(("asyncpg", "cronsim", "pika", "prometheus_client", "rich", "typer", "uvloop"), "run")


def __getattr__(name: str) -> object:
    """Import a public name from its room when it is first used (PEP 562), so that publishing needs only the core.

    Raises:
        UsageError: PR108, an extra that the room needs is not installed.
    """
    if name not in _ROOMS:
        message = f"module 'postroad' has no attribute {name!r}"
        raise AttributeError(message)
    try:
        value = getattr(import_module(_ROOMS[name]), name)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _EXTRAS:
            raise
        from postroad.errors import UsageError

        remedy = f"install the extra: pip install 'postroad[{_EXTRAS[module]}]'"
        raise UsageError("PR108", f"postroad.{name} needs {module}; {remedy}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})


__all__ = [
    "Absent",
    "App",
    "Backoff",
    "BlockingRun",
    "Cancel",
    "Delivery",
    "Dependency",
    "Done",
    "Drift",
    "Drop",
    "EffectAttempt",
    "Envelope",
    "Executor",
    "Found",
    "Keep",
    "Missed",
    "OutcomeUnknown",
    "Overlap",
    "Producer",
    "Properties",
    "Quarantine",
    "Reconciliation",
    "Refused",
    "Retry",
    "Rules",
    "Run",
    "Schedule",
    "Sensitive",
    "Snooze",
    "Source",
    "Subscription",
    "Unknown",
    "cloud_event",
    "consumer",
    "effect",
    "hours",
    "job",
    "minutes",
    "pages",
    "resend",
    "seconds",
]
