"""The declaration of a consumer: a plain function, and beside it the value that says how it is run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeAlias, overload

from typing_extensions import TypeVar

from postroad.clock import seconds
from postroad.consume.delivery import Delivery
from postroad.consume.problems import effect_problems, queue_problems, shape_problems, subscriptions_of
from postroad.errors import UsageError
from postroad.events import Subscription
from postroad.failures import Rules
from postroad.retry import Backoff
from postroad.work.options import Own, misplaced, mistyped

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg
    from psycopg.rows import TupleRow

    from postroad.consume.legacy import Decode
    from postroad.effects.effect import Effect
    from postroad.sql.asyncpg import Connection
    from postroad.sql.drive import Form
    from postroad.work.run import BlockingRun, Run

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
AsyncRunHandler: TypeAlias = "Callable[[E, Run[Any]], Coroutine[Any, Any, None]]"
ThreadRunHandler: TypeAlias = "Callable[[E, BlockingRun[Any]], None]"
Handler: TypeAlias = Callable[[E, Any], Any]
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


class RunDecorator(Protocol[E]):
    """Leaves the handler of a consumer with effects as it is."""

    @overload
    def __call__(self, function: AsyncRunHandler[E], /) -> AsyncRunHandler[E]: ...
    @overload
    def __call__(self, function: ThreadRunHandler[E], /) -> ThreadRunHandler[E]: ...


_ATTRIBUTE: Final = "__postroad_consumer__"
_MOST_UNACKED: Final = 65_535
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
    effects: tuple[Effect[Any], ...] = ()
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
        object.__setattr__(self, "group", self.group and not self.threaded and not self.effects)

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
# The same for those that name effects: their handlers get a run.
@overload
def consumer(
    a: Source[E1], /, *,
    name: str, effects: Sequence[Effect[Any]], retry: Backoff = ..., rules: Rules = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., on: Form[Any] | None = ...,
) -> RunDecorator[E1]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], /, *,
    name: str, effects: Sequence[Effect[Any]], retry: Backoff = ..., rules: Rules = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., on: Form[Any] | None = ...,
) -> RunDecorator[E1 | E2]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], /, *,
    name: str, effects: Sequence[Effect[Any]], retry: Backoff = ..., rules: Rules = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., on: Form[Any] | None = ...,
) -> RunDecorator[E1 | E2 | E3]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], d: Source[E4], /, *,
    name: str, effects: Sequence[Effect[Any]], retry: Backoff = ..., rules: Rules = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., on: Form[Any] | None = ...,
) -> RunDecorator[E1 | E2 | E3 | E4]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], d: Source[E4],
    e: Source[E5], /, *,
    name: str, effects: Sequence[Effect[Any]], retry: Backoff = ..., rules: Rules = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., on: Form[Any] | None = ...,
) -> RunDecorator[E1 | E2 | E3 | E4 | E5]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], d: Source[E4],
    e: Source[E5], f: Source[E6], /, *,
    name: str, effects: Sequence[Effect[Any]], retry: Backoff = ..., rules: Rules = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., on: Form[Any] | None = ...,
) -> RunDecorator[E1 | E2 | E3 | E4 | E5 | E6]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], d: Source[E4],
    e: Source[E5], f: Source[E6], g: Source[E7], /, *,
    name: str, effects: Sequence[Effect[Any]], retry: Backoff = ..., rules: Rules = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., on: Form[Any] | None = ...,
) -> RunDecorator[E1 | E2 | E3 | E4 | E5 | E6 | E7]: ...
@overload
def consumer(
    a: Source[E1], b: Source[E2], c: Source[E3], d: Source[E4],
    e: Source[E5], f: Source[E6], g: Source[E7], h: Source[E8], /, *,
    name: str, effects: Sequence[Effect[Any]], retry: Backoff = ..., rules: Rules = ..., max_runtime: timedelta = ...,
    concurrency: int = ..., prefetch: int | None = ..., on: Form[Any] | None = ...,
) -> RunDecorator[E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8]: ...
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
    effects: Sequence[Effect[Any]] = (),
    queue: str | None = None,
    bind: bool = True,
    decode: Decode[Any] | None = None,
) -> Any:
    """Make a function ``handler(event, delivery)`` the consumer of one to eight event types.

    The handler runs inside an open transaction, ``delivery.tx``; what it writes there takes effect once per
    (consumer, event), whatever is delivered twice, crashes or restarts. What it does elsewhere may happen again.

    An ``async def`` handler gets an asyncpg connection. A ``def`` handler runs on a thread of its own, one of
    `concurrency`, and gets a psycopg connection. `on` gives either another: a session of SQLAlchemy's, for instance.

    With `effects` it is ``handler(event, run)``: its deliveries are written to `work` and acked at once, and run there
    leased and fenced as jobs do, with no open transaction. ``run.transaction(finish=True)`` commits the inbox's
    outcome, its writes and the end of the row together. Runs of one key may overlap.

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
        effects: the acts outside the database that it calls ``once``; see `postroad.effects.effect`.
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
        subscriptions, problems = subscriptions_of(sources)
        problems += shape_problems(name, function, order=order, max_runtime=max_runtime)
        problems += misplaced(on, threaded=not inspect.iscoroutinefunction(function))
        problems += queue_problems(queue, bind=bind, decode=decode)
        problems += effect_problems(effects, order=order, max_runtime=max_runtime)
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
            group=group, on=on, effects=tuple(effects), queue=queue, decode=decode,
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
