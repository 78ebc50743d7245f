"""The one table of claimable work, and what lies beside it: quarantine, and what is finished.

Names come from their modules when they are first used: declaring and enqueueing a job takes no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroad.work.store import (
        ClaimedRow,
        Depth,
        Kept,
        delay,
        delay_again,
        finish,
        give_back,
        quarantine,
        quarantine_claimed,
        quarantine_state,
    )
    from postroad.work.wire import Wire


def __getattr__(name: str) -> object:
    """Import a public name from its module (PEP 562)."""
    if name not in __all__:
        message = f"module 'postroad.work' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module("postroad.work.wire" if name == "Wire" else "postroad.work.store"), name)
    globals()[name] = value
    return value


__all__ = [
    "ClaimedRow",
    "Depth",
    "Kept",
    "Wire",
    "delay",
    "delay_again",
    "finish",
    "give_back",
    "quarantine",
    "quarantine_claimed",
    "quarantine_state",
]
