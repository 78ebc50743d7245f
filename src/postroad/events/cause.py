"""What a publish was caused by: the correlation and causation that it inherits from a handler, a job or a request."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class Cause:
    """What runs: `correlation` names the whole story, `causation` is the event's own id; a web request has none."""

    correlation: str
    causation: str | None


_CURRENT: Final[ContextVar[Cause | None]] = ContextVar("postroad_cause", default=None)


def current_cause() -> Cause | None:
    """What the code that runs now was caused by; None outside of handlers, jobs and requests."""
    return _CURRENT.get()


class cause:  # noqa: N801 - used like a function; a generator's manager costs every delivery several times as much
    """Run the block as caused by `what`. Tasks and `asyncio.to_thread` calls started inside inherit it."""

    __slots__ = ("_token", "_what")

    def __init__(self, what: Cause | None) -> None:
        """For one block."""
        self._what = what

    def __enter__(self) -> None:
        """It is the cause from now on."""
        self._token = _CURRENT.set(self._what)

    def __exit__(self, *_: object) -> None:
        """What was the cause before is it again."""
        _CURRENT.reset(self._token)
