"""Servers and harness for tests: ours and our users'."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroad.signals.catalog import DeliveryResult
    from postroad.testing.blocking import BlockingRoad
    from postroad.testing.builders import MadeBlockingRun, MadeRun, make_blocking_run, make_delivery, make_run
    from postroad.testing.journal import Drained, Failure
    from postroad.testing.ledger import OpenJob, Published, Quarantined, enqueued_on, published_on
    from postroad.testing.road import Road

_ROOMS = {
    "BlockingRoad": "postroad.testing.blocking",
    "DeliveryResult": "postroad.signals.catalog",
    "Drained": "postroad.testing.journal",
    "Failure": "postroad.testing.journal",
    "MadeBlockingRun": "postroad.testing.builders",
    "MadeRun": "postroad.testing.builders",
    "OpenJob": "postroad.testing.ledger",
    "Published": "postroad.testing.ledger",
    "Quarantined": "postroad.testing.ledger",
    "Road": "postroad.testing.road",
    "enqueued_on": "postroad.testing.ledger",
    "make_blocking_run": "postroad.testing.builders",
    "make_delivery": "postroad.testing.builders",
    "make_run": "postroad.testing.builders",
    "published_on": "postroad.testing.ledger",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562): the pytest plugin is loaded by runs that use none.

    Raises:
        UsageError: PR108, an extra is not installed.
    """
    if name not in _ROOMS:
        message = f"module 'postroad.testing' has no attribute {name!r}"
        raise AttributeError(message)
    try:
        value = getattr(import_module(_ROOMS[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("postroad"):
            raise
        from postroad.errors import UsageError

        message = f"postroad.testing.{name} needs {error.name}; install the extra: pip install 'postroad[run]'"
        raise UsageError("PR108", message) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})


__all__ = [
    "BlockingRoad",
    "DeliveryResult",
    "Drained",
    "Failure",
    "MadeBlockingRun",
    "MadeRun",
    "OpenJob",
    "Published",
    "Quarantined",
    "Road",
    "enqueued_on",
    "make_blocking_run",
    "make_delivery",
    "make_run",
    "published_on",
]
