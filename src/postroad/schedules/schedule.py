"""The declaration of a schedule: when a job runs by itself, and what happens when it cannot."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zoneinfo import ZoneInfo

from postroad.clock import hours, seconds
from postroad.errors import UsageError
from postroad.retry import Backoff
from postroad.schedules.cron import Cron
from postroad.schedules.policy import Missed, Overlap, Plan, Policy
from postroad.schedules.timing import At, Every, timing_of
from postroad.schedules.zones import zone_named
from postroad.work.enqueue import encode
from postroad.work.job import LETTERS, LONGEST, QUEUE, Job, job_of

if TYPE_CHECKING:
    from postroad.schedules.timing import Timing

A = TypeVar("A")

LEAST_START_WITHIN: Final = seconds(30)
"""The scheduler may sleep this long: a shorter deadline would drop occurrences at random."""
_MOST_COUNT: Final = 10_000
_NOTHING: Final = timedelta(0)
_PROBE: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""From here on `args` is tried out with a due time, so that a declaration is checked without a clock."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Schedule:
    """A job that runs by itself, at the times of cron text, of an interval, or once.

    Each due time is one occurrence, recorded whether it runs or not. Its request is ``args(due)``, with `due` aware and
    in the schedule's zone; without `args` it is None. Nothing is read from a clock here.

    Args:
        name: in the rows of schedules, so it stays for life; lower-case letters, digits, ``.``, ``_``, ``-``.
        job: the function that `job` decorated.
        cron: five fields, see `postroad.schedules.cron.Cron`; or
        every: an interval on the grid of the epoch, moved by `phase`; or
        at: one instant, aware.
        zone: the IANA name of the zone in which `cron` is read and `due` is given.
        args: makes the request of an occurrence.
        missed: what becomes of occurrences that could not start within a minute of their time.
        catch_up: how late an occurrence may still start.
        max_catch_up: how many missed occurrences are recorded one by one, and may run.
        overlap: what happens while an earlier occurrence runs.
        limit: the most that queue, and the most that run at once under ``Overlap.ALLOW``.
        jitter: each occurrence starts up to this much later, by a hash of schedule and due time.
        start_within: an occurrence that has not started this long after its time does not start; 30 s at least.
        max_runtime: the time limit of one attempt; by default the job's.
        finish_within: a run that has not ended this long after its start, all attempts together, is cancelled.
        retry: the budget of attempts of an occurrence; by default the job's.
        pause_on_failure: pause the schedule when a run has failed for good or timed out.

    Raises:
        UsageError: PR101, naming every field that is wrong.
    """

    name: str
    job: Job[Any]
    timing: Timing
    zone: ZoneInfo
    policy: Policy
    max_runtime: timedelta | None
    retry: Backoff | None
    args: Callable[[datetime], Any] | None = field(repr=False)

    def __init__(
        self,
        name: str,
        *,
        job: Callable[[A, Any], Any] | Job[A],
        cron: str | None = None,
        every: timedelta | None = None,
        phase: timedelta = _NOTHING,
        at: datetime | None = None,
        zone: str = "UTC",
        args: Callable[[datetime], A] | None = None,
        missed: Missed = Missed.LATEST,
        catch_up: timedelta = hours(24),
        max_catch_up: int = 100,
        overlap: Overlap = Overlap.SKIP,
        limit: int = 100,
        jitter: timedelta = _NOTHING,
        start_within: timedelta | None = None,
        max_runtime: timedelta | None = None,
        finish_within: timedelta | None = None,
        retry: Backoff | None = None,
        pause_on_failure: bool = False,
    ) -> None:
        """See the class."""
        policy = Policy(
            missed=missed, catch_up=catch_up, max_catch_up=max_catch_up, overlap=overlap, limit=limit, jitter=jitter,
            start_within=start_within, finish_within=finish_within, pause_on_failure=pause_on_failure,
        )  # fmt: skip
        wrong = _misnamed(name)
        declared = _tried(wrong, lambda: job if isinstance(job, Job) else job_of(job))
        timing = _tried(wrong, lambda: _timing(cron=cron, every=every, phase=phase, at=at))
        found = _tried(wrong, lambda: zone_named(zone))
        wrong += (mistaken := _mistaken(policy, max_runtime, retry))
        if declared is not None and not mistaken:
            wrong += _contradictions(policy, retry, max_runtime or declared.max_runtime)
        if declared is not None and timing is not None and found is not None:
            wrong += _misfit(declared, args, timing, found)
        if wrong:
            raise UsageError("PR101", f"schedule {name!r:.80} is not valid: {'; '.join(wrong)}")
        _set(self, (name, declared, timing, found, policy, max_runtime, retry, args))

    def request(self, due: datetime) -> Any:
        """The job's request for the occurrence due at `due`, whatever zone that is given in."""
        return None if self.args is None else self.args(due.astimezone(self.zone))

    def plan(self, identity: str) -> Plan:
        """What deciding needs (`postroad.schedules.decide`); `identity` is the stored id of the schedule."""
        return Plan(identity=identity, timing=self.timing, zone=self.zone, policy=self.policy)

    def stored(self) -> dict[str, object]:
        """Every property but the code of `args`, as plain JSON values; durations in seconds."""
        retry = None if self.retry is None else {name: _plain(value) for name, value in asdict(self.retry).items()}
        return {
            "name": self.name,
            "job": self.job.name,
            "queue": self.job.queue,
            "timing": self.timing.stored(),
            "zone": self.zone.key,
            **{one.name: _plain(getattr(self.policy, one.name)) for one in fields(Policy)},
            "max_runtime": _plain(self.max_runtime),
            "retry": retry,
        }

    def fingerprint(self) -> str:
        """A short hash of `stored()`: what is declared alike has the same, in every release."""
        canonical = json.dumps(self.stored(), sort_keys=True, separators=(",", ":"))
        return blake2b(canonical.encode(), digest_size=16).hexdigest()

    def sources(self) -> dict[str, str]:
        """Where each property of `stored()` comes from: ``declared``, ``default``, or ``job``."""
        plain = {one.name: _plain(one.default) for one in fields(Policy)} | {"zone": "UTC"}
        found = {}
        for name, value in self.stored().items():
            found[name] = "default" if name in plain and plain[name] == value else "declared"
        ours = {"queue": True, "max_runtime": self.max_runtime is None, "retry": self.retry is None}
        return found | {name: "job" for name, is_job in ours.items() if is_job}


def plan_of(stored: Mapping[str, Any], identity: str) -> Plan:
    """The plan of a stored schedule, for commands and processes that do not declare it.

    Raises:
        UsageError: PR107, it does not hold one, or its zone is not known here.
    """
    durations = {"catch_up", "jitter", "start_within", "finish_within"}
    try:
        given = {one.name: stored[one.name] for one in fields(Policy)}
        given |= {name: None if given[name] is None else seconds(given[name]) for name in durations}
        given |= {"missed": Missed(given["missed"]), "overlap": Overlap(given["overlap"])}
        timing, zone = timing_of(stored["timing"]), zone_named(stored["zone"])
    except (KeyError, TypeError, ValueError) as error:
        message = f"a stored schedule cannot be read: {type(error).__name__} {error}; declare it anew"
        raise UsageError("PR107", message) from error
    return Plan(identity=identity, timing=timing, zone=zone, policy=Policy(**given))


T = TypeVar("T")


def _tried(wrong: list[str], make: Callable[[], T]) -> T | None:
    """What is made, or None and what is wrong."""
    try:
        return make()
    except UsageError as error:
        wrong.append(error.message)
        return None


def _set(schedule: Schedule, values: tuple[object, ...]) -> None:
    """The fields of a frozen value, in their order."""
    for one, value in zip(fields(schedule), values, strict=True):
        object.__setattr__(schedule, one.name, value)


def _misnamed(name: object) -> list[str]:
    fits = isinstance(name, str) and QUEUE.fullmatch(name)
    return [] if fits else [f"the name {name!r:.80} is not {LETTERS}"]


def _timing(*, cron: str | None, every: timedelta | None, phase: timedelta, at: datetime | None) -> Timing:
    given = [name for name, value in (("cron", cron), ("every", every), ("at", at)) if value is not None]
    if len(given) != 1:
        named = " and ".join(given) or "none"
        raise UsageError("PR107", f"{named} of cron, every and at is given; give exactly one")
    if every is None and phase != _NOTHING:
        raise UsageError("PR107", f"phase is of an interval; leave it out, or give every instead of {given[0]}")
    if cron is not None:
        return Cron(cron)
    return Every(every, phase) if every is not None else At(at)  # type: ignore[arg-type]  # one is given


def _mistaken(policy: Policy, max_runtime: object, retry: object) -> list[str]:
    """Types and ranges of the options, one by one."""
    wrong = [
        f"{name} is not {kind.__name__}; write {kind.__name__}.{next(iter(kind)).name}"
        for name, kind in (("missed", Missed), ("overlap", Overlap))
        if not isinstance(getattr(policy, name), kind)
    ]
    for name in ("max_catch_up", "limit"):
        value = getattr(policy, name)
        if type(value) is not int or not 1 <= value <= _MOST_COUNT:
            wrong.append(f"{name} is a whole number from 1 to {_MOST_COUNT:,}")
    durations = {
        "catch_up": (policy.catch_up, _NOTHING),
        "jitter": (policy.jitter, _NOTHING),
        "start_within": (policy.start_within, LEAST_START_WITHIN),
        "finish_within": (policy.finish_within, seconds(1)),
        "max_runtime": (max_runtime, timedelta(microseconds=1)),
    }
    for name, (given, least) in durations.items():
        if given is None and name not in {"catch_up", "jitter"}:
            continue
        if not isinstance(given, timedelta):
            wrong.append(f"{name} is not a duration; write minutes(5)")
        elif given < least:
            wrong.append(f"{name} {given} is below {least}")
    if isinstance(max_runtime, timedelta) and max_runtime > LONGEST:
        wrong.append(f"max_runtime {max_runtime} is above {LONGEST}")
    if retry is not None and not isinstance(retry, Backoff):
        wrong.append("retry is not a Backoff; write Backoff(attempts=5)")
    flag: object = policy.pause_on_failure
    if not isinstance(flag, bool):
        wrong.append("pause_on_failure is not True or False")
    return wrong


def _contradictions(policy: Policy, retry: Backoff | None, max_runtime: timedelta) -> list[str]:
    """What contradicts itself: a run that is given up before one attempt may have ended, or cancelled by the next."""
    wrong = []
    if policy.missed is Missed.ALL and policy.overlap is Overlap.CANCEL_RUNNING:
        wrong.append(
            "missed=Missed.ALL and overlap=Overlap.CANCEL_RUNNING: each missed run would cancel the one before"
        )
    if policy.finish_within is not None and policy.finish_within < max_runtime:
        hint = "raise it, or lower max_runtime (the job's, if the schedule has none)"
        wrong.append(f"finish_within {policy.finish_within} is below the maximum run time of {max_runtime}; {hint}")
    if retry is not None and retry.max_age < max_runtime:
        wrong.append(f"retry.max_age {retry.max_age} is below the maximum run time of {max_runtime}; raise it")
    return wrong


def _misfit(job: Job[Any], args: object, timing: Timing, zone: ZoneInfo) -> list[str]:
    """Whether a request that `args` makes is one of the job; no text shows a value of it."""
    if args is not None and not callable(args):
        return [f"args is a {type(args).__name__} and cannot be called; write args=lambda due: ..."]
    if inspect.iscoroutinefunction(args):
        return ["args is an async function; write a plain one, as args=lambda due: ..."]
    due = timing.at if isinstance(timing, At) else timing.next(_PROBE, zone)
    assert due is not None, "text that can never be due was refused"
    try:
        request = None if args is None else args(due.astimezone(zone))
    except Exception as error:  # noqa: BLE001 - the author's function
        return [f"args raised {type(error).__name__} for the due time {due.isoformat()}; it takes one aware datetime"]
    try:
        encode(job, request)
    except UsageError as error:
        if args is None:
            return [f"args is missing: job {job.name} takes a request; write args=lambda due: ... ({error.message})"]
        return [f"args does not fit: {error.message}"]
    return []


def _plain(value: object) -> object:
    if isinstance(value, StrEnum):
        return value.value
    return value.total_seconds() if isinstance(value, timedelta) else value
