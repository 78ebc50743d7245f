"""What a failure means: the pure classification of whatever a handler raised."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Final, Protocol, TypeVar

from postroad.clock import seconds
from postroad.errors import ContractError, LeaseLost, PostroadError, Unavailable, UsageError
from postroad.foreign import attribute, clean, described, is_lost, sqlstate, type_name

CODE_ERROR_ATTEMPTS: Final = 3
"""A code error is tried this often (a deployment may be under way) before it is quarantined."""

T = TypeVar("T")
Kind = type[T]

_CODE_ERRORS: Final = (TypeError, KeyError, AttributeError, NameError, AssertionError, UsageError)
_LOST_STATES: Final = frozenset({"25P03", "57P01", "57P02", "57P03", "57P05", "53300"})
_NO_RIGHT: Final = "42501"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_OURS: Final = frozenset({"database", "dependency"})  # What pauses are called that are not an author's.
_DEEPEST: Final = 16


class FailureClass(StrEnum):
    """Every delivery and job ends in one of these; they are labels of metrics and words of the tables."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    DROP = "drop"
    QUARANTINE = "quarantine"
    TRANSIENT = "transient"
    DEPENDENCY_DOWN = "dependency_down"
    OUTCOME_UNKNOWN = "outcome_unknown"
    INTERRUPTED = "interrupted"


# Of the members of an ExceptionGroup the worst decides: first what must not be repeated blindly, then what must not
# be charged, then what a person must see.
_WORST_FIRST: Final = (
    FailureClass.OUTCOME_UNKNOWN,
    FailureClass.INTERRUPTED,
    FailureClass.DEPENDENCY_DOWN,
    FailureClass.QUARANTINE,
    FailureClass.TRANSIENT,
    FailureClass.DROP,
)


class _Decision(Exception):
    # What an author raises to decide; not an error.
    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class Drop(_Decision):
    """Raise it in a handler: this delivery needs nothing done; `reason` is kept with its outcome and counted."""


class Quarantine(_Decision):
    """Raise it in a handler: trying again cannot help, a person must look; `reason` is what they see."""


class OutcomeUnknown(_Decision):
    """Raise it in a handler: an outside effect may or may not have happened; it must not be repeated blindly.

    Raised by ``effect.once`` it says `after`: the ledger looks the outcome up meanwhile, and the delivery or job is put
    off, uncharged. Without that nobody looks, and a person decides.
    """

    def __init__(self, reason: str = "", *, after: timedelta | None = None) -> None:
        """`after` is when to ask again."""
        self.after = after
        super().__init__(reason)


class Retry(_Decision):
    """Raise it in a handler: try again, after `after` or else after what the backoff says. It counts as an attempt."""

    def __init__(self, after: timedelta | None = None, reason: str = "") -> None:
        """`after` of less than nothing means at once."""
        self.after = None if after is None else max(after, timedelta(0))
        super().__init__(reason)


class Snooze(_Decision):
    """Raise it in a job: not yet; look again after `after`. No attempt is charged. In a consumer it is a `Retry`."""

    def __init__(self, after: timedelta, reason: str = "") -> None:
        """`after` of less than nothing means at once."""
        self.after = max(after, timedelta(0))
        super().__init__(reason)


class Cancel(_Decision):
    """Raise it in a job: it ends here for good, as cancelled, with `reason`. In a consumer it is a `Drop`."""


class Use(Protocol):
    """Finds the App's live object of a type, as ``delivery.use`` does."""

    def __call__(self, kind: Kind[T], /) -> T:
        """The object."""
        ...


@dataclass(frozen=True, slots=True)
class Dependency:
    """Something outside that handlers cannot do without, and how to ask whether it is there.

    Name the exceptions that speak of it in ``Rules(down={GatewayDown: gateway})``. When a handler raises one, `check`
    is awaited with ``use``, which finds the App's live objects: it returns where the dependency is there, and raises
    where it is not; no answer within `timeout` (2 s) counts as not. Then the consumer takes nothing until it answers,
    and no attempt is charged. While it answers, such a failure is transient like any other, and charged: so a message
    that fails by itself does not stop the others.

    `check` is asked after such failures, at most once in half a second, and every 0.2 to 2 s while the consumer
    waits, by each consumer and process apart. It must not change anything.
    """

    name: str
    check: Callable[[Use], Awaitable[object]] = field(repr=False, kw_only=True)
    timeout: timedelta = field(default=seconds(2), kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what could never be asked.

        Raises:
            UsageError: PR101, the name is not one or is ours, `check` is no ``async def``, `timeout` is not above zero.
        """
        if not _NAME.fullmatch(self.name):
            problem = "a name is lower-case letters, digits, '.', '_' and '-', at most 63"
        elif self.name in _OURS:
            problem = "that name is Postroad's own; say which one it is"
        elif not inspect.iscoroutinefunction(self.check):
            problem = "check is an `async def` that takes `use`; wrap what blocks in asyncio.to_thread"
        elif self.timeout <= timedelta(0):
            problem = "timeout is above zero"
        else:
            return
        raise UsageError("PR101", f"dependency {self.name!r} is not valid: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an author's exception classes mean. The most specific class wins; then drop, quarantine, down, transient.

    `drop` maps a class to the reason that is kept and counted, `down` to the dependency that it speaks of. A rule for
    a class holds for its subclasses. A lost lease, cancellation and our own database's absence are not the author's
    to rule on.
    """

    transient: Sequence[type[BaseException]] = ()
    quarantine: Sequence[type[BaseException]] = ()
    drop: Mapping[type[BaseException], str] = field(default_factory=dict)
    down: Mapping[type[BaseException], Dependency] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what could never match.

        Raises:
            UsageError: something that is not an exception class, or not a dependency.
        """
        named: tuple[object, ...] = self.kinds
        for given in named:
            if not (isinstance(given, type) and issubclass(given, BaseException)):
                raise UsageError("PR101", f"rules name exception classes; {given!r} is none")
        for given in self.down.values():
            if not isinstance(given, Dependency):
                raise UsageError("PR101", f"down maps exception classes to a Dependency; {given!r} is none")
        names = [each.name for each in {id(each): each for each in self.down.values()}.values()]
        if len(set(names)) < len(names):
            raise UsageError("PR101", f"two dependencies of one name among {', '.join(sorted(names))}; keep one value")

    @property
    def kinds(self) -> tuple[type[BaseException], ...]:
        """The exception classes that it rules on."""
        return (*self.transient, *self.quarantine, *self.drop, *self.down)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a failure means. Everything in it is safe to store and print: no foreign error's message, no payload.

    `code` is a ``PR...`` code, the five characters of an SQLSTATE, or one of ``author``, ``rule``, ``code``,
    ``interrupted`` and ``other``. `fingerprint` is the same for failures of one kind from one place.
    `connection_lost`: the error looks like a lost connection, to a database or something else. Whose it was, only
    the caller knows: if it was ours, nothing is charged. `dependency` is what the failure speaks of; whether it is
    away, only its check can tell.
    """

    failure: FailureClass
    code: str
    reason: str
    error_type: str
    fingerprint: str
    retry_after: timedelta | None = None
    connection_lost: bool = False
    dependency: Dependency | None = None


@dataclass(frozen=True, slots=True)
class _Finding:
    """What one link of an error's chain says."""

    failure: FailureClass
    code: str
    reason: str
    retry_after: timedelta | None = None
    connection_lost: bool = False
    dependency: Dependency | None = None


def classify(error: BaseException, *, rules: Rules, attempt: int) -> Verdict:
    """Say what `error`, raised in attempt number `attempt` (from 1), means under `rules`.

    Pure and total: no error makes it raise, and foreign errors are read by their attributes, no driver is imported.
    It looks through ``__cause__`` and SQLAlchemy's ``orig``; of an ``ExceptionGroup`` the worst member decides. What
    nothing speaks for is transient: its budget of attempts ends in quarantine.
    """
    return _classify(error, rules, attempt, depth=0)


def _classify(error: BaseException, rules: Rules, attempt: int, *, depth: int) -> Verdict:
    if isinstance(error, BaseExceptionGroup) and depth < _DEEPEST:
        members = [_classify(member, rules, attempt, depth=depth + 1) for member in error.exceptions]
        return min(members, key=lambda verdict: _WORST_FIRST.index(verdict.failure))
    finding = _find(error, rules, attempt)
    verdict = Verdict(
        failure=finding.failure,
        code=finding.code,
        reason=finding.reason,
        error_type=type_name(error),
        fingerprint="",
        retry_after=finding.retry_after,
        connection_lost=finding.connection_lost,
        dependency=finding.dependency,
    )
    return replace(verdict, fingerprint=_fingerprint(verdict, error))


def _find(error: BaseException, rules: Rules, attempt: int) -> _Finding:
    if not isinstance(error, Exception):
        return _Finding(FailureClass.INTERRUPTED, "interrupted", f"{type_name(error)} ended it")
    for link in _chain(error):
        found = _ours(link) or _ruled(link, rules, error) or _foreign(link, error)
        if found is not None:
            return found
    if isinstance(error, _CODE_ERRORS):
        return _code_error(error, attempt)
    return _Finding(FailureClass.TRANSIENT, "other", described(error))


def spent(verdict: Verdict, attempt: int) -> Verdict:
    """What a failure means whose attempt was the last one allowed."""
    last = f"{verdict.failure} {verdict.error_type}: {verdict.reason}"
    reason = f"the retry budget is spent after attempt {attempt}; last: {last}"
    return replace(verdict, failure=FailureClass.QUARANTINE, code="PR507", reason=reason, retry_after=None)


def died(attempt: int) -> Verdict:
    """What it means that the worker died in the last allowed attempt, number `attempt`."""
    reason = f"the retry budget is spent after attempt {attempt}; its worker died in the last"
    return Verdict(
        failure=FailureClass.QUARANTINE, code="PR507", reason=reason, error_type="crash", fingerprint="crash"
    )


def sqlstates(error: BaseException) -> Iterator[str]:
    """The SQLSTATEs of `error` and of what it was raised from or wraps, outermost first."""
    for link in _chain(error):
        state = sqlstate(link)
        if state is not None:
            yield state


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it was raised from or wraps, outermost first; cycles end."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting and len(seen) < _DEEPEST:
        link = waiting.pop(0)
        if not isinstance(link, BaseException) or id(link) in seen:
            continue
        seen.add(id(link))
        # asyncio.timeout raises its TimeoutError from a CancelledError, which then says nothing about us.
        if link is error or not isinstance(link, asyncio.CancelledError):
            yield link
        waiting += [attribute(link, "orig"), link.__cause__]


def _ours(link: BaseException) -> _Finding | None:
    if isinstance(link, LeaseLost):
        return _Finding(FailureClass.INTERRUPTED, link.code, clean(link))
    # A right that is missing is an answer of a database that is there: judged by the driver's error behind it.
    if isinstance(link, Unavailable) and attribute(link.__cause__, "sqlstate") != _NO_RIGHT:
        return _Finding(FailureClass.DEPENDENCY_DOWN, link.code, clean(link), connection_lost=True)
    if isinstance(link, ContractError):
        return _Finding(FailureClass.QUARANTINE, link.code, clean(link))
    return None


def _ruled(link: BaseException, rules: Rules, outer: BaseException) -> _Finding | None:
    """The most specific of the author's rules and decisions; their order breaks ties."""
    of_link = type(link).__mro__
    said = clean(link.reason) if isinstance(link, _Decision) else ""
    named = said or described(link, outer=outer)
    after = link.after if isinstance(link, Retry | Snooze | OutcomeUnknown) else None
    candidates = [
        *((given, _Finding(FailureClass.DROP, "rule", clean(reason))) for given, reason in rules.drop.items()),
        *((given, _Finding(FailureClass.QUARANTINE, "rule", named)) for given in rules.quarantine),
        *(
            (given, _Finding(FailureClass.DEPENDENCY_DOWN, "rule", named, dependency=dependency))
            for given, dependency in rules.down.items()
        ),
        *((given, _Finding(FailureClass.TRANSIENT, "rule", named, after)) for given in rules.transient),
        (Drop, _Finding(FailureClass.DROP, "author", said)),
        (Quarantine, _Finding(FailureClass.QUARANTINE, "author", said)),
        (OutcomeUnknown, _Finding(FailureClass.OUTCOME_UNKNOWN, "author", said, after)),
        (Retry, _Finding(FailureClass.TRANSIENT, "author", said, after)),
        (Snooze, _Finding(FailureClass.TRANSIENT, "author", said, after)),
        (Cancel, _Finding(FailureClass.DROP, "author", said)),
    ]
    matching = [(of_link.index(given), finding) for given, finding in candidates if given in of_link]
    return min(matching, key=lambda match: match[0])[1] if matching else None


def _foreign(link: BaseException, outer: BaseException) -> _Finding | None:
    """What drivers raise, told by its attributes and names."""
    state = sqlstate(link)
    if state is not None:
        lost = state.startswith("08") or state in _LOST_STATES
        return _Finding(FailureClass.TRANSIENT, state, described(link, state, outer=outer), connection_lost=lost)
    if is_lost(link):
        return _Finding(FailureClass.TRANSIENT, "other", described(link, outer=outer), connection_lost=True)
    return None


def _code_error(error: BaseException, attempt: int) -> _Finding:
    code = error.code if isinstance(error, PostroadError) else "code"
    reason = clean(error) if isinstance(error, PostroadError) else described(error)
    if attempt >= CODE_ERROR_ATTEMPTS:
        return _Finding(FailureClass.QUARANTINE, code, reason)
    return _Finding(FailureClass.TRANSIENT, code, reason)


def _place(error: BaseException) -> str:
    """File and function of the innermost frame: no line, so that an edit above it changes nothing."""
    trace = error.__traceback__
    if trace is None:
        return "unknown place"
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return f"{PurePath(code.co_filename).name}:{code.co_qualname}"


def _fingerprint(verdict: Verdict, error: BaseException) -> str:
    parts = (verdict.failure, verdict.code, verdict.error_type, _place(error))
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()
