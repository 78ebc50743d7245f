"""What is wrong with a consumer's declaration: the pure checks, each in a line that says what to write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad.clock import minutes
from postroad.effects.effect import Effect
from postroad.errors import UsageError
from postroad.events import Subscription, as_subscription

if TYPE_CHECKING:
    from postroad.consume.consumer import Source

LONGEST: Final = minutes(25)
"""Handlers end before the broker's consumer time-out of 30 minutes takes the channel away."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
_ARGUMENTS: Final = 2
_MOST_TYPES: Final = 8
_LONGEST_QUEUE: Final = 255  # AMQP 0-9-1, section 4.2.5.3: a short string.


def subscriptions_of(sources: tuple[Source[Any], ...]) -> tuple[tuple[Subscription[Any], ...], list[str]]:
    """The subscriptions that `sources` stand for, and what is wrong with them."""
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


def shape_problems(name: str, function: Callable[..., Any], *, order: object, max_runtime: timedelta) -> list[str]:
    """What is wrong with name, function, order and time limit."""
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


def effect_problems(effects: Sequence[object], *, order: object, max_runtime: timedelta) -> list[str]:
    """What is wrong with its effects, and with what does not go with any."""
    problems = [
        f"effects holds {type(one).__name__}, not an effect" for one in effects if not isinstance(one, Effect)
    ]  # fmt: skip
    problems += [
        f"its max_runtime leaves no time for effect {one.name!r}, which may take {one.timeout.total_seconds():g} s"
        for one in effects
        if isinstance(one, Effect) and one.timeout >= max_runtime
    ]
    if effects and order is not None:
        problems.append("order='latest' needs a handler's transaction, and with effects none is open; leave it out")
    return problems


def queue_problems(queue: object, *, bind: bool, decode: object) -> list[str]:
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
