"""What a publish was caused by: the correlation and causation that a handler's publishes inherit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Cause:
    """The event being handled: `correlation` names the whole story, `causation` is the event's own id."""

    correlation: str
    causation: str


_CURRENT: Final[ContextVar[Cause | None]] = ContextVar("postroad_cause", default=None)


def current_cause() -> Cause | None:
    """What the code that runs now was caused by; None outside of handlers."""
    return _CURRENT.get()


@contextmanager
def cause(what: Cause | None) -> Iterator[None]:
    """Run the block as caused by `what`. Tasks and `asyncio.to_thread` calls started inside inherit it."""
    token = _CURRENT.set(what)
    try:
        yield
    finally:
        _CURRENT.reset(token)
