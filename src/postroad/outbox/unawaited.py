"""The awaitable of a publish or an enqueue, which tells when it is dropped unawaited."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Final, TypeVar

from typing_extensions import override

from postroad.signals import Signals
from postroad.signals.catalog import PublishDropped

T = TypeVar("T")

DROPPED: Final = Signals()
"""Hears a `PublishDropped` for each publish or enqueue that was called and never awaited, wherever in the process."""


class UnawaitedPublish(RuntimeWarning):
    """A publish or an enqueue was called and never awaited: nothing was staged. Turn it into an error in tests."""


class Publishing(Coroutine[Any, Any, T]):
    """Wraps the coroutine of a publish or an enqueue; awaited, run as a task or closed, it is that coroutine.

    Collected before any of these, it warns (`UnawaitedPublish`) and emits `PublishDropped` on `DROPPED`.
    """

    __slots__ = ("_inner", "_name", "_taken", "_what")

    def __init__(self, inner: Coroutine[Any, Any, T], name: str, what: str = "publish") -> None:
        """Speak for `inner`, which stages the event type, or enqueues the job, `name`."""
        self._inner = inner
        self._name = name
        self._what = what
        self._taken = False

    @override
    def __await__(self) -> Generator[Any, Any, T]:
        self._taken = True
        return self._inner.__await__()

    @override
    def send(self, value: Any, /) -> Any:
        """See `Coroutine.send`."""
        self._taken = True
        return self._inner.send(value)

    @override
    def throw(
        self,
        typ: Any,
        val: Any = None,
        tb: TracebackType | None = None,
        /,
    ) -> Any:
        """See `Coroutine.throw`."""
        self._taken = True
        return self._inner.throw(typ if val is None else val)

    @override
    def close(self) -> None:
        """See `Coroutine.close`."""
        self._taken = True
        self._inner.close()

    def __del__(self) -> None:
        if self._taken:
            return
        self._inner.close()
        DROPPED.emit(PublishDropped(self._name))
        text = f"{self._what} of {self._name} was never awaited: nothing was staged; write `await`"
        warnings.warn(text, UnawaitedPublish, stacklevel=2, source=self)
