"""What a test hears of a run: errors of handlers, what became of deliveries and jobs, whether something pauses."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import CODES, PostroadError
from postroad.signals.catalog import (
    DeliveryDelayed,
    DeliveryQuarantined,
    DeliveryResult,
    DeliverySettled,
    IntakePaused,
    JobDelayed,
    JobQuarantined,
    WorkSettled,
)

if TYPE_CHECKING:
    from postroad.runtime.declarations import Declarations
    from postroad.signals import Signal

_ASKED_FOR: Final = "Snooze"
"""A job that asks for time has not failed."""
_NEVER_RAN: Final = frozenset({"PR501", "PR502", "PR503", "PR504", "PR505", "PR510", "PR511", "PR512", "PR513"})
"""With these codes it was refused before the author's code could raise anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A delivery or job that failed: `became` delayed or quarantined. `error` is what the author's code raised."""

    name: str
    became: str
    code: str
    reason: str
    error: BaseException | None = field(default=None, repr=False)

    def exception(self) -> BaseException:
        """What the author's code raised, with a note; else an error with the failure's own code."""
        what = f"{self.name} failed and was {self.became}: {self.reason or 'no reason given'}"
        if self.error is None:
            return PostroadError(self.code, what) if self.code in CODES else AssertionError(what)
        if what not in getattr(self.error, "__notes__", ()):
            self.error.add_note(what)
        return self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What a drain did: deliveries by their result, jobs that ran to their end, and every failure in its order."""

    deliveries: Counter[DeliveryResult]
    jobs: int
    failures: tuple[Failure, ...]

    def check(self) -> None:
        """Raise what failed: the one error as it is, several as a group.

        Raises:
            BaseException: what the author's code raised.
            PostroadError: with the failure's own code, where it was not the author's code that raised.
            AssertionError: the same, where it has none.
            BaseExceptionGroup: several.
        """
        errors = [failure.exception() for failure in self.failures]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup(f"{len(errors)} deliveries or jobs failed", errors)


class Journal:
    """Hears every signal of a run, in whatever thread it is emitted."""

    def __init__(self) -> None:
        """Listen on the running loop."""
        self.settled: list[tuple[str, DeliveryResult]] = []
        self.away: str | None = None
        self.news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._raised: list[tuple[str, BaseException]] = []
        self._failures: list[Failure] = []
        self._jobs = 0

    def drained(self) -> Drained:
        """What was heard so far."""
        with self._lock:
            results = Counter(result for _, result in self.settled)
            return Drained(deliveries=results, jobs=self._jobs, failures=tuple(self._failures))

    def hear(self, signal: Signal) -> None:
        """A sink: keep what tells of an outcome."""
        with self._lock:
            self._keep(signal)
        self._loop.call_soon_threadsafe(self.news.set)

    def _keep(self, signal: Signal) -> None:
        match signal:
            case DeliverySettled():
                self.settled += [(signal.consumer, signal.result)] * signal.count
            case DeliveryDelayed() | JobDelayed() if signal.error_type.rpartition(".")[2] != _ASKED_FOR:
                after = f"delayed by {signal.delay_seconds:.3g} s"
                self._fail(signal, after, error_type=signal.error_type, code="")
            case DeliveryQuarantined() | JobQuarantined():
                self._fail(signal, "quarantined", error_type="", code=signal.code)
            case WorkSettled(kind="job", result="ok"):
                self._jobs += signal.count
            case IntakePaused():
                self.away = f"{signal.consumer} waits for {signal.reason}"
            case _:
                return

    def _fail(self, signal: Any, became: str, *, error_type: str, code: str) -> None:
        name = signal.job if isinstance(signal, JobDelayed | JobQuarantined) else signal.consumer
        error = None if code in _NEVER_RAN else self._taken(name, f"{error_type} {signal.reason}")
        self._failures.append(Failure(name=name, became=became, code=code, reason=signal.reason, error=error))

    def _taken(self, name: str, told: str) -> BaseException | None:
        """The error that belongs to a failure: the first of that name, by preference one of a type that is told."""
        own = [pair for pair in self._raised if pair[0] == name]
        named = [pair for pair in own if type(pair[1]).__name__ in told]
        for pair in (*named, *own):
            self._raised.remove(pair)
            return pair[1]
        return None

    # --- the author's functions -----------------------------------------------------------------------------------

    def recorded(self, declared: Declarations) -> Declarations:
        """The same declarations, with functions whose errors are heard here before they go on."""
        return replace(
            declared,
            consumers=tuple(replace(one, function=self._hearing(one.name, one.function)) for one in declared.consumers),
            jobs=tuple(replace(one, function=self._hearing(one.name, one.function)) for one in declared.jobs),
        )

    def _hearing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def handling(given: Any, told: Any) -> Any:
                try:
                    return await function(given, told)
                except Exception as error:
                    self._note(name, error)
                    raise

            return handling

        @functools.wraps(function)
        def blocking(given: Any, told: Any) -> Any:
            try:
                return function(given, told)
            except Exception as error:
                self._note(name, error)
                raise

        return blocking

    def _note(self, name: str, error: BaseException) -> None:
        with self._lock:
            self._raised.append((name, error))
