"""The declaration of a consumer: a plain function, and beside it the value that says how it is run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeAlias, overload

from typing_extensions import TypeVar

from postroad.clock import minutes, seconds
from postroad.consume.delivery import Delivery
from postroad.errors import UsageError
from postroad.events import Subscription, as_subscription
from postroad.failures import Rules
from postroad.retry import Backoff
from postroad.work.options import Own, misplaced, mistyped

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg
    from psycopg.rows import TupleRow

    from postroad.consume.legacy import Decode
    from postroad.sql.asyncpg import Connection
    from postroad.sql.drive import Form

E = TypeVar("E")
E1 = TypeVar("E1")
E2 = TypeVar("E2")
E3 = TypeVar("E3")
E4 = TypeVar("E4")
E5 = TypeVar("E5")
E6 = TypeVar("E6")
E7 = TypeVar("E7")
E8 = TypeVar("E8")
T = TypeVar("T", default=Own)

AsyncHandler: TypeAlias = Callable[[E, Delivery[T]], Coroutine[Any, Any, None]]
ThreadHandler: TypeAlias = Callable[[E, Delivery[T]], None]
Source: TypeAlias = Subscription[E] | type[E]
Order: TypeAlias = Literal["latest"] | None


class Decorator(Protocol[E, T]):
    """Leaves the handler as it is; `T` is what its delivery's ``tx`` must be."""

    # fmt: off
    # The first two overlap with the others where a `tx` is typed as `Own`, which nobody writes.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: Decorator[E, Own], function: AsyncHandler[E, Connection], /
    ) -> AsyncHandler[E, Connection]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: Decorator[E, Own], function: ThreadHandler[E, psycopg.Connection[TupleRow]], /
    ) -> ThreadHandler[E, psycopg.Connection[TupleRow]]: ...
    @overload
    def __call__(self, function: AsyncHandler[E, T], /) -> AsyncHandler[E, T]: ...
    @overload
    def __call__(self, function: ThreadHandler[E, T], /) -> ThreadHandler[E, T]: ...
    # fmt: on


LONGEST: Final = minutes(25)
"""Handlers end before the broker's consumer time-out of 30 minutes takes the channel away."""

_ATTRIBUTE: Final = "__postroad_consumer__"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
_ARGUMENTS: Final = 2
_MOST_TYPES: Final = 8
_MOST_UNACKED: Final = 65_535
_LONGEST_QUEUE: Final = 255  # AMQP 0-9-1, section 4.2.5.3: a short string.
_RETRY: Final = Backoff()
_RULES: Final = Rules()
_PREFETCHED: Final = 8  # for each handler
_PREFETCHED_IN_GROUPS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Consumer(Generic[E]):
    """How one function handles events; its name is also its queue's and its inbox's, so it stays for life."""

    name: str
    subscriptions: tuple[Subscription[Any], ...]
    function: Callable[[E, Delivery[Any]], Any] = field(repr=False)
    retry: Backoff = _RETRY
    rules: Rules = _RULES
    order: Order = None
    max_runtime: timedelta = seconds(30)
    concurrency: int = 8
    prefetch: int = 64
    group: bool = True
    on: Form[Any] | None = None
    queue: str | None = None
    """The queue of another owner that it takes from; None for its own."""
    decode: Decode[E] | None = field(default=None, repr=False)
    types: Mapping[str, Subscription[Any]] = field(init=False, repr=False)
    threaded: bool = field(init=False)
    """Whether its handler is a plain ``def``, which runs on a thread."""

    def __post_init__(self) -> None:
        """Index the subscriptions by type, and see how the function runs."""
        object.__setattr__(self, "types", {subscription.type: subscription for subscription in self.subscriptions})
        object.__setattr__(self, "threaded", not inspect.iscoroutinefunction(self.function))
        object.__setattr__(self, "group", self.group and not self.threaded)

    @property
    def takes_from(self) -> str:
        """The queue on the broker: its own, which has its name, or another's."""
        return self.name if self.queue is None else self.queue


# One for each number of types: a type checker has no other way to join them into the union that the handler takes.
# fmt: off
@overload
def consumer(
    a: Source[E1], /, *,
    name: str, retry: Backoff = ..., rules: Rules = ..., order: Order = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., group: bool = ..., on: Form[T] | None = ...,
    queue: str | None = ..., bind: bool = ..., decode: Decode[E1] | None = ...,
) -> Decorator[E1, T]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], /, *,
    name: str, retry: Backoff = ..., rules: Rules = ..., order: Order = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., group: bool = ..., on: Form[T] | None = ...,
    queue: str | None = ..., bind: bool = ..., decode: Decode[E1 | E2] | None = ...,
) -> Decorator[E1 | E2, T]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], /, *,
    name: str, retry: Backoff = ..., rules: Rules = ..., order: Order = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., group: bool = ..., on: Form[T] | None = ...,
    queue: str | None = ..., bind: bool = ..., decode: Decode[E1 | E2 | E3] | None = ...,
) -> Decorator[E1 | E2 | E3, T]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], d: Source[E4], /, *,
    name: str, retry: Backoff = ..., rules: Rules = ..., order: Order = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., group: bool = ..., on: Form[T] | None = ...,
    queue: str | None = ..., bind: bool = ..., decode: Decode[E1 | E2 | E3 | E4] | None = ...,
) -> Decorator[E1 | E2 | E3 | E4, T]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], d: Source[E4],
    e: Source[E5], /, *,
    name: str, retry: Backoff = ..., rules: Rules = ..., order: Order = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., group: bool = ..., on: Form[T] | None = ...,
    queue: str | None = ..., bind: bool = ..., decode: Decode[E1 | E2 | E3 | E4 | E5] | None = ...,
) -> Decorator[E1 | E2 | E3 | E4 | E5, T]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], d: Source[E4],
    e: Source[E5], f: Source[E6], /, *,
    name: str, retry: Backoff = ..., rules: Rules = ..., order: Order = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., group: bool = ..., on: Form[T] | None = ...,
    queue: str | None = ..., bind: bool = ..., decode: Decode[E1 | E2 | E3 | E4 | E5 | E6] | None = ...,
) -> Decorator[E1 | E2 | E3 | E4 | E5 | E6, T]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], d: Source[E4],
    e: Source[E5], f: Source[E6], g: Source[E7], /, *,
    name: str, retry: Backoff = ..., rules: Rules = ..., order: Order = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., group: bool = ..., on: Form[T] | None = ...,
    queue: str | None = ..., bind: bool = ..., decode: Decode[E1 | E2 | E3 | E4 | E5 | E6 | E7] | None = ...,
) -> Decorator[E1 | E2 | E3 | E4 | E5 | E6 | E7, T]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], d: Source[E4],
    e: Source[E5], f: Source[E6], g: Source[E7], h: Source[E8], /, *,
    name: str, retry: Backoff = ..., rules: Rules = ..., order: Order = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., group: bool = ..., on: Form[T] | None = ...,
    queue: str | None = ..., bind: bool = ..., decode: Decode[E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8] | None = ...,
) -> Decorator[E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8, T]: ...
# fmt: on
def consumer(
    *sources: Source[Any],
    name: str,
    retry: Backoff = _RETRY,
    rules: Rules = _RULES,
    order: Order = None,
    max_runtime: timedelta = seconds(30),
    concurrency: int = 8,
    prefetch: int | None = None,
    group: bool = True,
    on: Form[Any] | None = None,
    queue: str | None = None,
    bind: bool = True,
    decode: Decode[Any] | None = None,
) -> Decorator[Any, Any]:
    """Make a function ``handler(event, delivery)`` the consumer of one to eight event types.

    The handler runs inside an open transaction, ``delivery.tx``; what it writes there takes effect once per
    (consumer, event), whatever is delivered twice, crashes or restarts. What it does elsewhere may happen again.

    An ``async def`` handler gets an asyncpg connection. A ``def`` handler runs on a thread of its own, one of
    `concurrency`, and gets a psycopg connection. `on` gives either another: a session of SQLAlchemy's, for instance.

    Args:
        *sources: `Subscription` values, or event classes of the same repository.
        name: its queue and its inbox; lower-case letters, digits, ``.``, ``_``, ``-``, at most 200.
        retry: the budget of attempts and the delays between them.
        rules: which of the author's exceptions mean drop, quarantine or try again.
        order: ``"latest"`` drops an event whose sequence is not above the last one seen of its key.
        max_runtime: the handler's time limit; at the limit its transaction is rolled back and the attempt charged. A
            thread cannot be stopped: one that goes on has lost its connection, and is not used until it returns.
        concurrency: how many handlers of this consumer run at once in a process; never two of one key.
        prefetch: how many unacked deliveries the broker hands out in advance; by default eight per handler, and 32
            where deliveries may share a transaction. What one process holds no other can take: lower it where
            handlers take seconds.
        group: whether deliveries may share a transaction while handlers are fast, and a savepoint each once one has
            failed; False gives each a transaction of its own, as ``def`` handlers always have.
        on: whose transactions the handler gets (`postroad.sqlalchemy.AsyncSessions` and its like, in the App's
            database); by default the App's own pool, or psycopg for a ``def`` handler.
        queue: a queue of RabbitMQ that stands already and is another's, in place of one of its own: nothing declares,
            binds or deletes it, a start only looks whether it is there. Say ``bind=False`` with it. What it holds is
            as trustworthy as whoever may write to it: the exchange is not compared with the type's owner.
        bind: False says with `queue` that nothing is to be bound.
        decode: with `queue`: turns body and `Properties` into an event of one of the sources, which the message's
            ``message_id`` then identifies, or into an `Envelope`. It is called for every copy and every attempt, on
            the event loop, so it is pure and quick. Where it raises, or gives something else, the message is
            quarantined (PR501, PR502) with the error's type and nothing of the body. Without it CloudEvents are read.

    Returns:
        A decorator that leaves the function as it is: it can still be called in a test.

    Raises:
        UsageError: PR101, naming everything that is wrong with the declaration; PR108, a ``def`` handler needs psycopg,
            which is not installed.
    """
    counts = {"concurrency": concurrency} | ({} if prefetch is None else {"prefetch": prefetch})
    wrong = mistyped(retry=retry, rules=rules, max_runtime=max_runtime, counts=counts)

    def declare(function: Any) -> Any:
        if wrong:
            raise UsageError("PR101", f"consumer {name!r} is not valid: {'; '.join(wrong)}")
        wanted = _prefetch(function, concurrency, group=group) if prefetch is None else prefetch
        subscriptions, problems = _subscriptions(sources)
        problems += _problems(name, function, order=order, max_runtime=max_runtime)
        problems += [
            *misplaced(on, threaded=not inspect.iscoroutinefunction(function)),
            *_queue_problems(queue, bind=bind, decode=decode),
        ]
        if concurrency < 1 or not 1 <= wanted <= _MOST_UNACKED:
            problems.append(
                f"concurrency is at least 1 and prefetch 1 to {_MOST_UNACKED}, never 0 (which is unlimited)"
            )
        if problems:
            raise UsageError("PR101", f"consumer {name!r} is not valid: {'; '.join(problems)}")
        if on is None and not inspect.iscoroutinefunction(function) and find_spec("psycopg") is None:
            remedy = "install the extra: pip install 'postroad[psycopg]'"
            raise UsageError("PR108", f"consumer {name!r} has a `def` handler, which needs psycopg; {remedy}")
        value = Consumer(
            name=name, subscriptions=subscriptions, function=function, retry=retry, rules=rules, order=order,
            max_runtime=max_runtime, concurrency=concurrency, prefetch=wanted,
            group=group, on=on, queue=queue, decode=decode,
        )  # fmt: skip
        setattr(function, _ATTRIBUTE, value)
        return function

    return declare


def _prefetch(function: Any, concurrency: int, *, group: bool) -> int:
    each = _PREFETCHED_IN_GROUPS if group and inspect.iscoroutinefunction(function) else _PREFETCHED
    return min(concurrency * each, max(concurrency, _MOST_UNACKED))


def consumer_of(function: Callable[..., Any]) -> Consumer[Any]:
    """The consumer that `function` was declared as.

    Raises:
        UsageError: it was not decorated with `consumer`.
    """
    found = getattr(function, _ATTRIBUTE, None)
    if not isinstance(found, Consumer):
        shown = getattr(function, "__qualname__", type(function).__name__)
        raise UsageError("PR101", f"{shown} is not a consumer; decorate it with @consumer(..., name=...)")
    return found


def _subscriptions(sources: tuple[Source[Any], ...]) -> tuple[tuple[Subscription[Any], ...], list[str]]:
    found: list[Subscription[Any]] = []
    problems: list[str] = []
    for source in sources:
        try:
            found.append(as_subscription(source))
        except UsageError as error:
            problems.append(error.message)
    types = [subscription.type for subscription in found]
    twice = sorted({kind for kind in types if types.count(kind) > 1})
    if twice:
        problems.append(f"{', '.join(twice)} is subscribed to twice; one version of a type per consumer")
    if not sources:
        problems.append("it subscribes to nothing; name one to eight event types")
    if len(sources) > _MOST_TYPES:
        problems.append(f"it subscribes to {len(sources)} types; split it into consumers of at most {_MOST_TYPES}")
    return tuple(found), problems


def _problems(name: str, function: Callable[..., Any], *, order: object, max_runtime: timedelta) -> list[str]:
    problems = []
    given: object = name  # Untyped code may hand in anything.
    if not (isinstance(given, str) and _NAME.fullmatch(given)):
        problems.append(
            "a name is lower-case letters, digits, '.', '_' and '-', at most 200, and begins with a letter or digit"
        )
    if not inspect.isroutine(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        problems.append("the handler is neither an 'async def' nor a 'def' function, or it yields")
    elif len(_positional(function)) != _ARGUMENTS:
        problems.append("the handler takes two arguments: the event and its delivery")
    if order not in {None, "latest"}:
        problems.append(f"order is None or 'latest', not {order!r}")
    if not timedelta(0) < max_runtime < LONGEST:
        problems.append(f"max_runtime is above zero and below {LONGEST}; longer work is a job")
    return problems


def _queue_problems(queue: object, *, bind: bool, decode: object) -> list[str]:
    """What is wrong with a queue that is another's, or with what only such a one has."""
    if queue is None:
        return [] if bind is True and decode is None else ["`bind` and `decode` are for a consumer with `queue`"]
    problems = []
    if not isinstance(queue, str) or not 0 < len(queue.encode(errors="replace")) <= _LONGEST_QUEUE:
        problems.append("queue is the name of a queue that stands, 1 to 255 bytes")
    if bind is not False:
        problems.append("a queue of another owner is never bound: say bind=False")
    if decode is not None and (not callable(decode) or inspect.iscoroutinefunction(decode)):
        problems.append("decode is a plain function from body and properties to an event or an Envelope")
    return problems


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [parameter for parameter in parameters if parameter.kind in kinds]
