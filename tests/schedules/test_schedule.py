"""What a schedule may be declared as, what it is refused for, and what is kept of it."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from postroad.clock import hours, minutes, seconds
from postroad.errors import UsageError
from postroad.retry import Backoff
from postroad.schedules.policy import Missed, Overlap, Policy
from postroad.schedules.schedule import Schedule, plan_of
from postroad.work.job import job


class Report(BaseModel):
    day: date


@job("reports.render", max_runtime=minutes(5))
async def render(request: Report, run) -> None:
    pass


@job("reports.sweep", queue="chores")
def sweep(request: None, run) -> None:
    pass


def of_day(due: datetime) -> Report:
    return Report(day=due.date())


def declared(**options: Any) -> Schedule:
    return Schedule("reports.daily", **{"job": render, "args": of_day, "cron": "15 2 * * *", **options})


def test_the_request_is_made_of_the_due_time_in_the_schedules_zone() -> None:
    daily = declared(zone="America/New_York", cron="30 23 * * *")
    assert daily.request(datetime(2026, 3, 2, 4, 30, tzinfo=UTC)) == Report(day=date(2026, 3, 1))
    assert Schedule("chores", job=sweep, every=minutes(5)).request(datetime(2026, 3, 2, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("options", "named", "hint"),
    [
        ({"cron": "* 25 * * *"}, "hour", "0 to 23"),
        ({"cron": "0 22-2 * * *"}, "hour", "write it as two"),
        ({"cron": "*/0 * * * *"}, "minute", "zero"),
        ({"cron": "*/60 * * * *"}, "minute", "as large as the field"),
        ({"cron": "0 0 30 2 *"}, "day of month", "does not occur"),
        ({"cron": "\u0661 * * * *"}, "minute", "ASCII"),
        ({"zone": "Mars/Olympus"}, "zone", "IANA"),
        ({"zone": "CET"}, "zone", "abbreviation"),
        ({"zone": "EST"}, "zone", "abbreviation"),
        ({"cron": None}, "none of cron, every and at", "exactly one"),
        ({"every": minutes(5)}, "cron and every", "exactly one"),
        ({"phase": minutes(5)}, "phase", "leave it out"),
        ({"cron": None, "every": seconds(0.5)}, "every", "whole seconds"),
        ({"cron": None, "every": 60}, "every", "duration"),
        ({"cron": None, "every": minutes(5), "phase": minutes(5)}, "phase", "below every"),
        ({"cron": None, "at": datetime(2026, 1, 1)}, "at", "zone"),  # noqa: DTZ001 - the mistake itself
        ({"finish_within": minutes(4)}, "finish_within", "below the maximum run time of 0:05:00"),
        ({"finish_within": hours(1), "max_runtime": hours(2)}, "finish_within", "maximum run time of 2:00:00"),
        ({"retry": Backoff(max_age=minutes(4))}, "retry.max_age", "maximum run time"),
        ({"max_runtime": timedelta(days=8)}, "max_runtime", "7 days"),
        ({"max_runtime": seconds(0)}, "max_runtime", "below"),
        ({"start_within": seconds(5)}, "start_within", "below 0:00:30"),
        ({"jitter": seconds(-1)}, "jitter", "below"),
        ({"jitter": 5}, "jitter", "duration"),
        ({"catch_up": None}, "catch_up", "duration"),
        ({"max_catch_up": 0}, "max_catch_up", "whole number"),
        ({"limit": True}, "limit", "whole number"),
        ({"missed": "latest"}, "missed", "Missed.LATEST"),
        ({"overlap": "skip"}, "overlap", "Overlap.SKIP"),
        ({"missed": Missed.ALL, "overlap": Overlap.CANCEL_RUNNING}, "missed=Missed.ALL", "cancel"),
        ({"retry": 5}, "retry", "Backoff"),
        ({"pause_on_failure": 1}, "pause_on_failure", "True or False"),
        ({"job": print}, "print", "@job"),
        ({"args": None}, "args", "takes a request"),
        ({"args": "today"}, "args", "lambda due"),
        ({"args": lambda due: 5}, "args", "takes Report"),
        ({"args": lambda: Report(day=date(2026, 1, 1))}, "args", "TypeError"),
        ({"args": lambda due: Report(day=due.nothing)}, "args", "AttributeError"),
        ({"job": sweep}, "args", "does not fit"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_by_its_field(options, named: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        declared(**options)
    assert refused.value.code == "PR101"
    assert named in refused.value.message
    assert hint in refused.value.message
    assert "\n" not in refused.value.message


async def never_called(due: datetime) -> Report:
    raise AssertionError


def test_an_async_args_is_refused_without_being_called() -> None:
    with pytest.raises(UsageError, match="args is an async function"):
        declared(args=never_called)


@pytest.mark.parametrize("name", ["", "Reports", "a b", "x" * 201, 5])
def test_a_name_that_no_row_can_have_for_life_is_refused(name) -> None:
    with pytest.raises(UsageError, match="name"):
        Schedule(name, job=sweep, cron="@daily")


def test_everything_that_is_wrong_is_told_in_one_line() -> None:
    with pytest.raises(UsageError) as refused:
        declared(cron="* 25 * * *", zone="CET", limit=0)
    assert all(word in refused.value.message for word in ("hour", "zone 'CET'", "limit"))


def test_a_refusal_shows_no_value_of_a_request() -> None:
    with pytest.raises(UsageError) as refused:
        declared(args=lambda due: "very secret")
    assert "secret" not in str(refused.value)


FULL: dict[str, Any] = {
    "cron": None, "every": hours(6), "phase": minutes(15), "zone": "Europe/Paris", "missed": Missed.ALL,
    "catch_up": hours(3), "max_catch_up": 7, "overlap": Overlap.QUEUE_ALL, "limit": 9, "jitter": minutes(3),
    "start_within": minutes(20), "max_runtime": minutes(30), "finish_within": hours(2),
    "retry": Backoff(attempts=3), "pause_on_failure": True,
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, FULL])
def test_what_is_kept_reads_back_as_the_same_plan(options) -> None:
    schedule = declared(**options)
    kept = json.loads(json.dumps(schedule.stored()))
    assert plan_of(kept, "id-1") == schedule.plan("id-1")
    assert kept["job"] == "reports.render"
    assert set(kept) >= {one.name for one in fields(Policy)}


def test_what_is_declared_alike_has_one_fingerprint_and_any_change_another() -> None:
    assert declared().fingerprint() == declared(args=lambda due: Report(day=due.date())).fingerprint()
    changed = [declared(**{name: FULL[name]}).fingerprint() for name in FULL if name not in {"cron", "every", "phase"}]
    changed.append(declared(cron=None, every=hours(6)).fingerprint())
    assert len({declared().fingerprint(), *changed}) == len(changed) + 1


def test_each_property_says_where_it_comes_from() -> None:
    sources = declared(limit=5).sources()
    assert set(sources) == set(declared().stored())
    found = {name: sources[name] for name in ("limit", "overlap", "zone", "timing", "retry", "max_runtime", "queue")}
    assert found == {
        "limit": "declared", "overlap": "default", "zone": "default", "timing": "declared", "retry": "job",
        "max_runtime": "job", "queue": "job",
    }  # fmt: skip
    assert declared(max_runtime=minutes(1)).sources()["max_runtime"] == "declared"


@pytest.mark.parametrize("broken", [{}, {"timing": {"cron": "* * * * *"}}])
def test_a_stored_schedule_that_cannot_be_read_says_so(broken) -> None:
    with pytest.raises(UsageError, match="stored schedule cannot be read"):
        plan_of(broken, "id-1")


def test_it_is_a_value() -> None:
    schedule = declared(jitter=timedelta(seconds=1))
    with pytest.raises(AttributeError):
        schedule.name = "other"
    assert "args" not in repr(schedule)
