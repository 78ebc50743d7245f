"""Intervals and single instants, zones by name, and what is kept of a timing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from postroad.clock import minutes, seconds
from postroad.errors import UsageError
from postroad.schedules.cron import Cron
from postroad.schedules.preview import coming
from postroad.schedules.timing import At, Every, dues, newest, timing_of
from postroad.schedules.zones import zone_named

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ZONE = ZoneInfo("UTC")


def test_an_interval_lies_on_the_grid_of_the_epoch_whoever_asks() -> None:
    every = Every(seconds(5400), seconds(300))
    found = list(dues(every, ZONE, after=NOW, until=NOW + timedelta(hours=4)))
    assert found == [NOW + minutes(5), NOW + minutes(95), NOW + minutes(185)]
    assert all((at.timestamp() - 300) % 5400 == 0 for at in found)
    assert every.next(found[0] - timedelta(microseconds=1), ZONE) == found[0]
    assert every.count(NOW, NOW + timedelta(hours=4), ZONE) == 3


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Every(seconds(0)), "every"),
        (lambda: Every(seconds(-5)), "every"),
        (lambda: Every(seconds(0.5)), "every"),
        (lambda: Every(60), "every"),
        (lambda: Every(seconds(60), seconds(60)), "phase"),
        (lambda: Every(seconds(60), seconds(-1)), "phase"),
        (lambda: Every(seconds(60), seconds(0.25)), "phase"),
        (lambda: At(datetime(2026, 1, 1)), "at"),  # noqa: DTZ001 - the mistake itself
        (lambda: At("2026-01-01"), "at"),
        (lambda: timing_of({}), "stored"),
    ],
)
def test_a_timing_that_is_none_is_refused_by_its_field(make, named: str) -> None:
    with pytest.raises(UsageError, match=rf"^(a )?{named}\b.*\[PR107\]$"):
        make()


def test_one_instant_is_due_once() -> None:
    at = At(datetime(2026, 3, 1, 14, 0, tzinfo=timezone(timedelta(hours=2))))
    assert at.next(NOW - seconds(1), ZONE) == NOW
    assert at.next(NOW, ZONE) is None
    assert (at.count(NOW - seconds(1), NOW, ZONE), at.count(NOW, NOW + minutes(5), ZONE)) == (1, 0)


@pytest.mark.parametrize("timing", [Cron("15 2 * * MON#1"), Every(minutes(5), seconds(30)), At(NOW)])
def test_what_is_kept_of_a_timing_reads_back_as_the_same(timing) -> None:
    assert timing_of(json.loads(json.dumps(timing.stored()))) == timing
    assert timing.explain()


def test_the_newest_of_a_year_of_seconds_are_found_without_going_through_them() -> None:
    year = NOW - timedelta(days=365)
    found, older, last = newest(Every(seconds(1)), ZONE, after=year, until=NOW, most=100)
    assert (len(found), found[-1], older, last) == (100, NOW, 365 * 86_400 - 100, NOW - seconds(100))


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Cuba"])
def test_a_zone_is_taken_by_its_name(name: str) -> None:
    assert zone_named(name).key == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CET", "abbreviation"),
        ("EST", "abbreviation"),
        ("EST5EDT", "abbreviation"),
        ("GMT", "abbreviation"),
        ("CEST", "abbreviation"),
        ("europe/berlin", "did you mean 'Europe/Berlin'?"),
        ("Europe/Belin", "did you mean 'Europe/Berlin'?"),
        ("Mars/Olympus", "IANA"),
        ("", "IANA"),
        ("America", "not known"),
        ("../../etc/passwd", "not known"),
        ("/etc/localtime", "not known"),
        ("right/Europe/Berlin", "not known"),
        ("a\0b", "not known"),
        ("x" * 5000, "not known"),
        (None, "NoneType"),
    ],
)
def test_a_zone_that_is_no_place_is_refused_with_a_hint(name, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        zone_named(name)
    assert refused.value.message.startswith("zone ")
    assert hint in refused.value.message
    assert len(refused.value.message) < 300


def test_a_preview_marks_what_the_clock_does() -> None:
    zone = ZoneInfo("America/New_York")
    spring = coming(Cron("30 2 * * *"), zone, after=datetime(2025, 3, 8, 0, tzinfo=UTC), count=3)
    assert [one.change for one in spring] == [
        None,
        "the clock goes from 02:00 to 03:00 at 07:00 UTC; a time between is due, and runs now",
        None,
    ]
    autumn = coming(Cron("30 1 * * *"), zone, after=datetime(2025, 11, 1, 6, tzinfo=UTC), count=2)
    assert autumn[0].change == "the clock shows 01:30 twice, and this is the first time"
    assert autumn[1].change == "the clock goes from 02:00 to 01:00 at 06:00 UTC"
    hourly = coming(Cron("30 * * * *"), zone, after=datetime(2025, 11, 2, 6, tzinfo=UTC), count=1)
    assert hourly[0].change == "the clock shows 01:30 twice, and this is the second time"
    assert hourly[0].local.isoformat() == "2025-11-02T01:30:00-05:00"
