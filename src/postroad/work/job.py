"""The declaration of a job: a plain function, and beside it the value that says how it is run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, get_type_hints, overload

from pydantic import PydanticUserError, TypeAdapter
from typing_extensions import TypeVar

from postroad.clock import minutes
from postroad.errors import UsageError
from postroad.failures import Rules
from postroad.retry import Backoff
from postroad.work.options import Own, misplaced, mistyped

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from postroad.sql.drive import Form
    from postroad.work.run import BlockingRun, Run

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T", default=Own)
F = TypeVar("F", bound=Callable[..., Any])

LONGEST: Final = timedelta(days=7)
_ATTRIBUTE: Final = "__postroad_job__"
QUEUE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
"""What jobs and queues may be called."""
LETTERS: Final = "lower-case letters, digits, '.', '_' and '-', at most 200, from a letter or digit on"
_ARGUMENTS: Final = 2
_RETRY: Final = Backoff()
_RULES: Final = Rules()
_MOST_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job(Generic[A]):
    """How one function is run as a job; its name is in the rows of `work`, so it stays for life."""

    name: str
    queue: str
    function: Callable[..., Any] = field(repr=False)
    adapter: TypeAdapter[A] = field(repr=False)
    retry: Backoff = _RETRY
    rules: Rules = _RULES
    max_runtime: timedelta = minutes(5)
    concurrency: int = 8
    fleet: int | None = None
    max_bytes: int = _MOST_BYTES
    on: Form[Any] | None = None
    threaded: bool = False
    """Whether its function is a plain ``def``, which runs on a thread."""


class JobDecorator(Protocol[T]):
    """Leaves the function as it is; `T` is what the transactions of its run must be."""

    # fmt: off
    @overload
    def __call__(self: JobDecorator[Own], function: F, /) -> F: ...
    @overload
    def __call__(
        self, function: Callable[[A, Run[T]], Coroutine[Any, Any, R]], /
    ) -> Callable[[A, Run[T]], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[[A, BlockingRun[T]], R], /) -> Callable[[A, BlockingRun[T]], R]: ...
    # fmt: on


def job(
    name: str,
    *,
    queue: str | None = None,
    retry: Backoff = _RETRY,
    rules: Rules = _RULES,
    max_runtime: timedelta = minutes(5),
    concurrency: int = 8,
    fleet: int | None = None,
    max_bytes: int = _MOST_BYTES,
    on: Form[T] | None = None,
) -> JobDecorator[T]:
    """Make a function ``work(request, run)`` the job `name`: started by a committed row, until it has an outcome.

    `request` is any type that pydantic can read from JSON, as annotated. The function runs at least once for each
    row: a killed worker's job starts again elsewhere, within the worker's lease plus one sweep. What it commits through
    ``run.transaction()`` is fenced: it takes effect only while the job is this run's. What it does elsewhere may happen
    again.

    Args:
        name: the kind of job in every row; lower-case letters, digits, ``.``, ``_``, ``-``, at most 200.
        queue: where its rows wait; by default a queue of its own, with the job's name. Jobs that share a queue share
            its `concurrency`, `fleet`, and pauses.
        retry: the budget of attempts and the delays between them; `max_age` counts from the time that it was first due.
        rules: which of the author's exceptions mean drop, quarantine or try again.
        max_runtime: the time limit of one attempt, after which it is cancelled and charged. A thread cannot be stopped:
            one that goes on is reported stuck, its slot is opened again, and what it still commits changes nothing.
        concurrency: how many jobs of the queue run at once in a process.
        fleet: how many run at once in all processes together; by default as many as the processes have room for.
        max_bytes: the longest request, as JSON.
        on: whose transactions ``run.transaction()`` opens (`postroad.sqlalchemy.AsyncSessions` and its like, in the
            App's database); by default the App's own pool, or psycopg for ``def``.

    Returns:
        A decorator that leaves the function as it is: it can still be called in a test.

    Raises:
        UsageError: PR101, naming everything that is wrong with the declaration.
    """
    given: object = name  # Untyped code may hand in anything.
    if callable(given):
        raise UsageError("PR101", f"@job has no name; write @job({getattr(given, '__name__', 'name').lower()!r})")
    counts = {"concurrency": concurrency, "max_bytes": max_bytes} | ({} if fleet is None else {"fleet": fleet})
    wrong = mistyped(retry=retry, rules=rules, max_runtime=max_runtime, counts=counts)
    wrong = wrong or _ranges(max_runtime, counts)

    def declare(function: Any) -> Any:
        adapter, problems = _request(function)
        threaded = not inspect.iscoroutinefunction(function)
        problems += [*_names(name, queue), *wrong, *_mismatched(function, threaded=threaded)]
        problems += misplaced(on, threaded=threaded)
        if problems or adapter is None:
            raise UsageError("PR101", f"job {name!r} is not valid: {'; '.join(problems)}")
        value = Job(
            name=name, queue=queue or name, function=function, adapter=adapter, retry=retry, rules=rules,
            max_runtime=max_runtime, concurrency=concurrency, fleet=fleet, max_bytes=max_bytes, on=on,
            threaded=threaded,
        )  # fmt: skip
        setattr(function, _ATTRIBUTE, value)
        return function

    return declare


def job_of(function: Callable[..., Any]) -> Job[Any]:
    """The job that `function` was declared as.

    Raises:
        UsageError: it was not decorated with `job`.
    """
    found = getattr(function, _ATTRIBUTE, None)
    if not isinstance(found, Job):
        shown = getattr(function, "__qualname__", type(function).__name__)
        raise UsageError("PR101", f"{shown} is not a job; decorate it with @job(name)")
    return found


def _request(function: Callable[..., Any]) -> tuple[TypeAdapter[Any] | None, list[str]]:
    """The adapter of the function's first argument, or what is wrong with its shape."""
    if not inspect.isroutine(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return None, ["it is neither an 'async def' nor a 'def' function, or it yields"]
    names = list(inspect.signature(function).parameters)
    if len(names) != _ARGUMENTS:
        return None, ["the function takes two arguments: the request and its run"]
    try:
        # Of the first alone: `Run` may well be imported for type checkers only.
        first = {names[0]: inspect.get_annotations(function)[names[0]]}
        bearer = type("request", (), {"__annotations__": first})
        hints = get_type_hints(bearer, globalns=getattr(function, "__globals__", {}), include_extras=True)
        return TypeAdapter(hints[names[0]]), []
    except KeyError:
        return None, [f"the request {names[0]!r} has no annotation, so nothing can check what a row holds"]
    except (NameError, PydanticUserError) as error:
        return None, [f"the annotation of {names[0]!r} cannot be read ({type(error).__name__}); import it at run time"]


def _mismatched(function: Callable[..., Any], *, threaded: bool) -> list[str]:
    """Whether the second argument is annotated with the run of the other kind of function; unread, it is let be."""
    other, own = ("Run", "BlockingRun") if threaded else ("BlockingRun", "Run")
    try:
        name = [*inspect.signature(function).parameters][1]
        bearer = type("run", (), {"__annotations__": {name: inspect.get_annotations(function)[name]}})
        hint = get_type_hints(bearer, globalns=getattr(function, "__globals__", {}))[name]
    except Exception:  # noqa: BLE001 - often imported for type checkers only; then they tell
        return []
    kind = getattr(hint, "__origin__", hint)
    # By name: the room of runs brings a driver along, and who enqueues may have another.
    if (getattr(kind, "__module__", ""), getattr(kind, "__qualname__", "")) != ("postroad.work.run", other):
        return []
    return [f"{name!r} is annotated as {other}, but {'a `def`' if threaded else 'an `async def`'} job gets a {own}"]


def _names(name: object, queue: object) -> list[str]:
    return [
        f"{word} {given!r} is not {LETTERS}"
        for word, given in {"the name": name, "the queue": name if queue is None else queue}.items()
        if not (isinstance(given, str) and QUEUE.fullmatch(given))
    ]


def _ranges(max_runtime: timedelta, counts: Mapping[str, int]) -> list[str]:
    problems = []
    if not timedelta(0) < max_runtime <= LONGEST:
        problems.append(f"max_runtime is above zero and at most {LONGEST}")
    if any(count < 1 for count in counts.values()):
        problems.append("concurrency, fleet and max_bytes are at least 1")
    return problems
