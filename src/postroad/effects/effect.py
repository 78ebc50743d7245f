"""The declaration of an effect: who acts, under which key, and how an outcome that nobody knows is found out."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_type_hints
from uuid import UUID, uuid5

from pydantic import PydanticUserError, TypeAdapter
from pydantic_core import PydanticSerializationError

from postroad.clock import minutes, seconds
from postroad.errors import UsageError
from postroad.retry import Backoff

if TYPE_CHECKING:
    from postroad.effects.outcome import Outcome, Owner
    from postroad.work.run import BlockingRun, Run

C = TypeVar("C")

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
_LOOKS: Final = Backoff(first=seconds(2), most=minutes(10))
_SETTLE: Final = seconds(60)
_LONGEST_KEY: Final = 512
_MOST_BYTES: Final = 65_536
_VERSION: Final = "v1"
_NAMESPACE: Final = UUID("6f0c5b8e-2f0a-5d0e-9a44-0d3a7a2f7c11")
_ARGUMENTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Effect(Generic[C]):
    """An act outside the database that happens at most once per key; made by `effect`."""

    name: str
    owner: type[Owner[C]]
    key: Callable[[C], str] = field(repr=False)
    adapter: TypeAdapter[C] = field(repr=False)
    timeout: timedelta
    settle: timedelta
    answers: int
    key_window: timedelta | None
    looks: Backoff
    volatile: frozenset[str]

    @property
    def can_look_up(self) -> bool:
        """Whether its owner can find out what became of a request."""
        return callable(getattr(self.owner, "look_up", None))

    async def once(self, command: C, run: Run[Any]) -> Outcome:
        """Have the owner act, at most once for the command's key, and return what came of it: now, or back then.

        Commits rows of its own, fenced by the run: before the request leaves, and after its answer. So it is called
        outside `run.transaction()`, from a job or a consumer that names the effect. What it returns is recorded: write
        it down in a transaction after it. Killed at any moment, the next attempt returns the recorded outcome, or waits
        until an unknown one was looked up; only a proven absence is sent again, under the same provider key.

        Raises:
            OutcomeUnknown: nobody knows yet what became of it. Let it out: the job or delivery is put off, uncharged,
                until the ledger knows.
            ContractError: PR514, the key was used with another request; nothing was called.
            LeaseLost: PR401, another worker has the row by now; let it out.
            UsageError: PR107, a transaction is open, the App does not name the effect, or key or command are not valid.
        """
        from postroad.effects.ledger import ledger_of

        return await ledger_of(self, run).once(self, command, run)

    def once_sync(self, command: C, run: BlockingRun[Any]) -> Outcome:
        """`once` for a ``def`` function: it blocks the job's own thread."""
        from postroad.effects.ledger import ledger_of

        ledger = ledger_of(self, run)
        return asyncio.run_coroutine_threadsafe(ledger.once(self, command, run), run.loop).result()

    def request(self, command: C) -> Request:
        """What the ledger keeps of `command`.

        Raises:
            UsageError: PR107, its key is not a text of 1 to 512 characters, or the command does not fit the owner.
        """
        key: object = self.key(command)
        if not (isinstance(key, str) and 0 < len(key) <= _LONGEST_KEY and key.isprintable()):
            problem = f"its key is a text of 1 to {_LONGEST_KEY} printable characters, not {type(key).__name__}"
            raise UsageError("PR107", f"effect {self.name!r}: {problem}")
        try:
            body = self.adapter.dump_json(command, warnings="error")
        except PydanticSerializationError:
            what = f"a command of type {type(command).__name__} does not fit what perform() takes"
            raise UsageError("PR107", f"effect {self.name!r}: {what}") from None
        if len(body) > _MOST_BYTES:
            raise UsageError("PR106", f"effect {self.name!r}: the command has {len(body)} bytes, over {_MOST_BYTES}")
        provider_key = str(uuid5(_NAMESPACE, f"{self.name}\0{key}"))
        return Request(key, self._fingerprint(body), provider_key, body)

    def _fingerprint(self, body: bytes) -> str:
        """The same for the same request, whatever the order of its fields and the values of its volatile ones."""
        value = json.loads(body)
        if isinstance(value, dict):
            value = {name: inner for name, inner in value.items() if name not in self.volatile}
        text = json.dumps([self.name, value], sort_keys=True, separators=(",", ":"))
        return f"{_VERSION}:{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Request:
    """A command as the ledger keeps it."""

    key: str
    fingerprint: str
    provider_key: str
    body: bytes = field(repr=False)


def effect(
    name: str,
    owner: type[Owner[C]],
    *,
    key: Callable[[C], str],
    timeout: timedelta = seconds(30),
    settle: timedelta | None = None,
    answers: int = 1,
    key_window: timedelta | None = None,
    looks: Backoff = _LOOKS,
    volatile: Sequence[str] = (),
) -> Effect[C]:
    """Declare the effect `name`: what `owner` does happens at most once for each key.

    Args:
        name: part of every key, so it stays for life; lower-case letters, digits, ``.``, ``_``, ``-``, at most 200.
        owner: the class of the live object that acts, which the App's ``lifespan`` yields; see `Owner`.
        key: what makes two commands the same act, such as a payment's number. Never random, never an attempt's.
        timeout: the time limit of one call of the owner; after it the outcome is unknown.
        settle: how long a request may still be on its way: only after that does an absence prove anything. By default
            twice the time limit, 60 s at least.
        answers: how many look-ups in a row must say `Absent`: two or more where the provider's answers lag behind.
        key_window: for how long the provider remembers a provider key, where it honours them. Until then (less one time
            limit) an owner without ``look_up`` repeats the same request under the same key as its look-up; after it no
            `Absent` is believed any more, and a person decides.
        looks: how long to wait between look-ups; they go on until one knows.
        volatile: fields of the command that may differ between repeats, such as a time of asking.

    Raises:
        UsageError: PR101, naming everything that is wrong with the declaration.
    """
    adapter, problems = _command(owner)
    given: object = name  # Untyped code may hand in anything.
    if not (isinstance(given, str) and _NAME.fullmatch(given)):
        problems.append("a name is lower-case letters, digits, '.', '_' and '-', at most 200, from a letter or digit")
    problems += _times(timeout=timeout, settle=settle, key_window=key_window)
    problems += _others(key=key, looks=looks, answers=answers, volatile=volatile)
    if problems or adapter is None:
        raise UsageError("PR101", f"effect {name!r} is not valid: {'; '.join(problems)}")
    return Effect(
        name=name, owner=owner, key=key, adapter=adapter, timeout=timeout,
        settle=max(timeout * 2, _SETTLE) if settle is None else settle, answers=answers, key_window=key_window,
        looks=looks, volatile=frozenset(volatile),
    )  # fmt: skip


def _others(*, key: object, looks: object, answers: object, volatile: object) -> list[str]:
    told = {
        "key is a function of the command, such as lambda command: command.payment_id": callable(key),
        "looks is not a Backoff; write Backoff(first=seconds(2))": isinstance(looks, Backoff),
        "answers is a whole number, 1 at least": type(answers) is int and answers >= 1,
        "volatile is a list of fields": not isinstance(volatile, str),
    }
    return [problem for problem, fine in told.items() if not fine]


def _times(*, timeout: object, settle: object, key_window: object) -> list[str]:
    nothing = timedelta(0)
    problems = []
    if not (isinstance(timeout, timedelta) and timeout > nothing):
        problems.append("timeout is a duration above zero, such as seconds(30)")
    if settle is not None and not (isinstance(settle, timedelta) and settle >= nothing):
        problems.append("settle is a duration, such as seconds(60)")
    if key_window is not None and not (
        isinstance(key_window, timedelta) and isinstance(timeout, timedelta) and key_window > timeout
    ):
        problems.append("key_window is a duration above the time limit, such as hours(24)")
    return problems


def _command(owner: Any) -> tuple[TypeAdapter[Any] | None, list[str]]:
    """The adapter of what the owner's perform() takes, or what is wrong with the owner."""
    perform = getattr(owner, "perform", None)
    if not inspect.isclass(owner) or not inspect.isfunction(perform):
        return None, ["the owner is not a class with perform(self, command, attempt)"]
    problems = [
        f"{method}() takes two arguments: the command and the attempt"
        for method in ("perform", "look_up")
        if hasattr(owner, method) and len(inspect.signature(getattr(owner, method)).parameters) != _ARGUMENTS
    ]
    if problems:
        return None, problems
    first = [*inspect.signature(perform).parameters][1]
    try:
        bearer = type("command", (), {"__annotations__": {first: inspect.get_annotations(perform)[first]}})
        hints = get_type_hints(bearer, globalns=getattr(perform, "__globals__", {}), include_extras=True)
        return TypeAdapter(hints[first]), []
    except KeyError:
        return None, [f"perform()'s {first!r} has no annotation, so nothing can keep or read a command"]
    except (NameError, PydanticUserError) as error:
        return None, [f"the annotation of {first!r} cannot be read ({type(error).__name__}); import it at run time"]
