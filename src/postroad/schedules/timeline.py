"""Reads a timeline: a schedule, its policy and what happened when, as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from postroad.clock import seconds
from postroad.errors import UsageError
from postroad.schedules.cron import Cron
from postroad.schedules.policy import Missed, Outcome, Overlap, Plan, Policy
from postroad.schedules.timing import Every
from postroad.schedules.zones import zone_named

OVERLAPS: Final = {"buffer_one": "queue_one", "buffer_all": "queue_all", "cancel_other": "cancel_running"}
"""Words of other schedulers for ours."""
MISSED: Final = {"run_latest": "latest", "run_once_now": "latest", "run_all": "all"}
EVENTS: Final = frozenset(
    {
        "created", "last_processed", "last_run", "scheduler_down", "scheduler_up", "leader_lost", "leader_elected",
        "suspend", "resume", "enabled", "pause", "unpause", "trigger", "backfill", "run_started", "run_active",
        "run_finished", "run_ended_after_cancel", "evaluate", "tick", "refresh", "restart", "due", "stop",
    }
)  # fmt: skip
_PAST: Final = frozenset({"last_processed", "last_run"})
_DURATIONS: Final = {
    "catchup_window_s": "catch_up",
    "starting_deadline_s": "start_within",
    "max_runtime_s": "finish_within",
    "jitter_max_s": "jitter",
    "catch_up_s": "catch_up",
    "start_within_s": "start_within",
    "finish_within_s": "finish_within",
    "jitter_s": "jitter",
}
_COUNTS: Final = frozenset({"max_catch_up", "limit"})
_NOTED: Final = frozenset({"overlap", "missed", "paused", "jitter_offsets_s", "pause_on_failure"})
# What another scheduler sets and ours always does, by the value at which the two agree.
_ALWAYS: Final[Mapping[str, object]] = {"misfire_threshold_s": 60, "resume_from": "now"}
_BESIDE: Final = frozenset({"retry_limit"})  # Of the job, which no decision here depends on.


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happens to a schedule, or to the one who schedules."""

    at: datetime
    type: str
    scheduled: datetime | None = None
    overlap: Overlap | None = None
    first: datetime | None = None
    last: datetime | None = None
    outcome: Outcome = Outcome.SUCCEEDED
    seed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A plan, and its events in order, from `begins` (everything due by then has been decided) to `until`."""

    name: str
    plan: Plan
    events: tuple[Event, ...]
    begins: datetime
    until: datetime
    up: bool
    """Whether the scheduler works from the beginning."""
    paused: bool


def read(case: object) -> Timeline:
    """Read one timeline.

    Raises:
        UsageError: PR107, naming the field that is missing, of another type, or of a policy that does not exist here.
    """
    given = _mapping(case, "the case")
    name = str(given.get("id", "unnamed"))
    schedule, policy = _mapping(given.get("schedule"), "schedule"), _mapping(given.get("policy", {}), "policy")
    rows = given.get("events")
    if not isinstance(rows, list) or not rows:
        raise _refused("events is not a list of events")
    events = sorted((_event(row, place) for place, row in enumerate(rows)), key=lambda event: event.at)
    last = max((place for place, event in enumerate(events) if event.type in _PAST), default=None)
    stops = [event.at for event in events if event.type == "stop"]
    started = schedule.get("start")
    if started is not None and events[0].type != "enabled":
        raise _refused("schedule.start: a schedule has no beginning of its own here; create it then")
    begins = _instant(started, "schedule.start") if started is not None else events[last or 0].at
    if events[0].type == "due":
        begins -= timedelta(microseconds=1)  # What is due then is yet to be decided.
    return Timeline(
        name=name,
        plan=_plan(name, schedule, policy),
        events=tuple(events[0 if last is None else last + 1 :]),
        begins=begins,
        until=max(stops) if stops else max([events[-1].at, *_expected(given.get("expect"))]),
        up=last is None and started is None,
        paused=bool(policy.get("paused", False)),
    )


def pending_of(case: Mapping[str, Any]) -> tuple[list[tuple[int, Overlap | None]], bool]:
    """Of a case without times: the pending occurrences by number, each with its own overlap, and whether one runs.

    Raises:
        UsageError: PR107, naming the field.
    """
    events = case.get("events")
    event = _mapping(events[0] if isinstance(events, list) and len(events) == 1 else None, "events[0], the only one,")
    numbers = event.get("pending")
    own = _mapping(case.get("policy"), "policy").get("per_occurrence_overlap")
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise _refused("events[0].pending is not a list of whole numbers")
    if not isinstance(own, list) or len(own) != len(numbers):
        raise _refused("policy.per_occurrence_overlap is not a list as long as events[0].pending")
    where = "policy.per_occurrence_overlap"
    overlaps = [None if str(one).startswith("default") else _overlap(one, where) for one in own]
    return list(zip(numbers, overlaps, strict=True)), bool(event.get("something_running", False))


def _plan(name: str, schedule: Mapping[str, Any], policy: Mapping[str, Any]) -> Plan:
    zone = zone_named(schedule.get("tz", "UTC"))
    unknown = set(schedule) - {"cron", "interval", "tz", "start"}
    if unknown:
        raise _refused(f"schedule.{min(unknown)} does not exist here")
    if "cron" in schedule:
        return Plan(
            identity=name, timing=Cron(schedule["cron"]), zone=zone, policy=_policy(policy), offsets=_offsets(policy)
        )
    interval = _mapping(schedule.get("interval"), "schedule.interval (or schedule.cron)")
    if interval.get("anchor", "epoch") != "epoch":
        raise _refused(f"schedule.interval.anchor {interval['anchor']!r}: intervals lie on the grid of the epoch here")
    every = Every(_duration(interval.get("every_s"), "every_s"), _duration(interval.get("phase_s", 0), "phase_s"))
    return Plan(identity=name, timing=every, zone=zone, policy=_policy(policy), offsets=_offsets(policy))


def _policy(given: Mapping[str, Any]) -> Policy:
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name in _DURATIONS:
            made[_DURATIONS[name]] = _duration(value, f"policy.{name}")
        elif name in _COUNTS and type(value) is int and value > 0:
            made[name] = value
        elif not (name in _NOTED or name in _BESIDE or (name in _ALWAYS and _ALWAYS[name] == value)):
            raise _refused(f"policy.{name} {value!r:.60}: there is no such policy here")
    if "overlap" in given:
        made["overlap"] = _overlap(given["overlap"], "policy.overlap")
    if "missed" in given:
        wanted = MISSED.get(str(given["missed"]), given["missed"])
        if wanted not in list(Missed):
            raise _refused(f"policy.missed {wanted!r:.60}: there is no such policy here, but {', '.join(Missed)}")
        made["missed"] = Missed(wanted)
    return Policy(pause_on_failure=bool(given.get("pause_on_failure", False)), **made)


def _offsets(policy: Mapping[str, Any]) -> dict[datetime, timedelta]:
    given = _mapping(policy.get("jitter_offsets_s", {}), "policy.jitter_offsets_s")
    return {_instant(due, "policy.jitter_offsets_s"): _duration(by, f"offset of {due}") for due, by in given.items()}


def _event(row: object, place: int) -> Event:
    where = f"events[{place}]"
    given = _mapping(row, where)
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in EVENTS:
        raise _refused(f"{where}.type {kind!r:.60}: there is no such event of a schedule here")
    needs = {"backfill": ("from", "to"), "run_finished": ("scheduled",), "run_ended_after_cancel": ("scheduled",)}
    times = {name: given.get(name) for name in ("scheduled", "from", "to")}
    missing = [name for name in needs.get(kind, ()) if times[name] is None]
    if missing:
        raise _refused(f"{where}.{missing[0]} is missing: a {kind} needs it")
    found = {name: None if value is None else _instant(value, f"{where}.{name}") for name, value in times.items()}
    outcome = given.get("outcome", Outcome.SUCCEEDED)
    if outcome not in list(Outcome):
        raise _refused(f"{where}.outcome {outcome!r:.60} is none of {', '.join(Outcome)}")
    return Event(
        at=_instant(given.get("at"), f"{where}.at"),
        type=kind,
        scheduled=found["scheduled"],
        first=found["from"],
        last=found["to"],
        overlap=None if given.get("overlap") is None else _overlap(given["overlap"], f"{where}.overlap"),
        outcome=Outcome(outcome),
        seed=None if given.get("seed") is None else str(given["seed"]),
    )


def _overlap(given: object, where: str) -> Overlap:
    wanted = OVERLAPS.get(str(given), given)
    if wanted not in list(Overlap):
        raise _refused(f"{where} {given!r:.60}: there is no such policy here, but {', '.join(Overlap)}")
    return Overlap(str(wanted))


def _expected(expect: object) -> list[datetime]:
    """The starts that the case expects: it is played until then."""
    runs = expect.get("runs") if isinstance(expect, Mapping) else None
    return [
        _instant(run["started"], "expect.runs")
        for run in (runs if isinstance(runs, list) else ())
        if isinstance(run, Mapping) and "started" in run
    ]


def _instant(given: object, where: str) -> datetime:
    try:
        at = datetime.fromisoformat(given) if isinstance(given, str) else None
    except ValueError:
        at = None
    if at is None or at.utcoffset() is None:
        raise _refused(f"{where} {given!r:.60} is no instant; write 2026-03-01T00:00:00Z")
    return at.astimezone(UTC)


def _duration(given: object, where: str) -> timedelta:
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise _refused(f"{where} {given!r:.60} is no number of seconds")
    try:
        return seconds(given)
    except (OverflowError, ValueError):  # Not a number, or far too large a one.
        raise _refused(f"{where} {given!r:.60} is no number of seconds") from None


def _mapping(given: object, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise _refused(f"{where} is no JSON object")
    return given


def _refused(what: str) -> UsageError:
    return UsageError("PR107", what)
