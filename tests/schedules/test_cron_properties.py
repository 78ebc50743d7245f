"""Cron arithmetic against a calendar gone through minute by minute, where clocks change most oddly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.schedules import cron as cron_module
from postroad.schedules import zones
from postroad.schedules.cron import Cron
from postroad.schedules.timing import dues, newest
from postroad.schedules.zones import changes
from schedules import oracle

NAMES = (
    "UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Santiago", "Pacific/Chatham",
    "Antarctica/Troll", "America/Nuuk", "Asia/Amman", "Pacific/Apia", "Africa/Casablanca", "America/St_Johns",
    "Asia/Kathmandu", "America/Sao_Paulo", "America/Havana", "Asia/Hebron", "Africa/Cairo", "America/Caracas",
)  # fmt: skip
FIRST, LAST = datetime(2005, 1, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
MOMENTS = {name: [at for at, *_ in changes(ZoneInfo(name), FIRST, LAST)] or [FIRST] for name in NAMES}


def field(least: int, most: int) -> st.SearchStrategy[str]:
    one = st.integers(least, most).map(str)
    stretch = st.tuples(st.integers(least, most), st.integers(least, most)).map(lambda ends: f"{min(ends)}-{max(ends)}")
    step = st.tuples(st.one_of(st.just("*"), one, stretch), st.integers(1, most - least)).map(
        lambda parts: f"{parts[0]}/{parts[1]}"
    )
    items = st.lists(st.one_of(one, stretch, step), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), one, items)


TEXTS = st.tuples(
    field(0, 59), field(0, 23), st.one_of(st.just("*"), field(1, 28), st.just("L")), st.just("*"),
    st.one_of(st.just("*"), field(0, 7)),
).map(" ".join)  # fmt: skip
AROUND = st.sampled_from(NAMES).flatmap(
    lambda name: st.tuples(
        st.just(ZoneInfo(name)),
        st.sampled_from(MOMENTS[name]),
        st.timedeltas(timedelta(hours=-25), timedelta(hours=4)),
    )
)
WINDOW = timedelta(hours=26)


def assert_as_the_calendar(text: str, around: tuple[ZoneInfo, datetime, timedelta]) -> None:
    zone, change, shift = around
    after = change + shift
    cron = Cron(text)
    found = list(dues(cron, zone, after=after, until=after + WINDOW))
    assert found == oracle.due(text, zone, after=after, until=after + WINDOW)
    assert cron.count(after, after + WINDOW, zone) == len(found)


@settings(max_examples=100, deadline=None)
@given(TEXTS, AROUND)
def test_due_times_around_clock_changes_are_those_of_the_calendar(text, around):
    assert_as_the_calendar(text, around)


ODD = (
    ("30 2 * * *", "America/New_York", "2025-03-09T07:00:00"),
    ("0,30 2 * * *", "Australia/Lord_Howe", "2024-10-05T15:30:00"),
    ("30 1 * * *", "Antarctica/Troll", "2025-03-30T01:00:00"),
    ("15 23 * * *", "America/Nuuk", "2024-03-31T01:00:00"),
    ("0 0 * * *", "Asia/Amman", "2018-03-29T22:00:00"),
    ("0 12 * * *", "Pacific/Apia", "2011-12-30T10:00:00"),
    ("1 0 * * *", "America/St_Johns", "2010-11-07T02:31:00"),
    ("45 2,3 * * *", "Pacific/Chatham", "2024-09-28T14:00:00"),
)


@pytest.mark.parametrize(("text", "zone", "change"), ODD)
def test_the_oddest_changes_are_those_of_the_calendar(text, zone, change):
    around = (ZoneInfo(zone), datetime.fromisoformat(change).replace(tzinfo=UTC), timedelta(hours=-20))
    assert_as_the_calendar(text, around)


@pytest.mark.sabotage
def test_sabotage_without_the_rule_for_changes_times_in_a_gap_vanish(monkeypatch):
    monkeypatch.setattr(zones, "MOST_SHIFT", 0)
    zones.spans.cache_clear()
    try:
        with pytest.raises(AssertionError):
            test_the_oddest_changes_are_those_of_the_calendar(*ODD[0])
    finally:
        zones.spans.cache_clear()


@pytest.mark.sabotage
def test_sabotage_steps_of_a_utc_day_miss_the_change(monkeypatch):
    def naive(zone: ZoneInfo, day: int) -> tuple[zones.Span, ...]:
        start = day * zones.DAY
        offset = zones.offset_at(zone, start)
        return (zones.Span(start, start + zones.DAY, offset, offset, start),)

    monkeypatch.setattr(cron_module, "spans", naive)
    with pytest.raises(AssertionError):
        test_the_oddest_changes_are_those_of_the_calendar(*ODD[0])


@settings(max_examples=60, deadline=None)
@given(TEXTS, AROUND)
def test_each_due_time_is_strictly_later_and_asked_again_gives_the_same(text, around):
    zone, change, shift = around
    cron, after = Cron(text), change + shift
    found = list(dues(cron, zone, after=after, until=after + WINDOW))
    assert all(one < other for one, other in pairwise([after, *found]))
    assert list(dues(Cron(text), zone, after=after, until=after + WINDOW)) == found
    for before, due in pairwise([after, *found[:20]]):
        between = before + (due - before) / 2
        assert cron.next(between, zone) == due
        assert cron.next(due - timedelta(microseconds=1), zone) == due


@settings(max_examples=40, deadline=None)
@given(TEXTS, AROUND, st.integers(1, 30))
def test_the_newest_of_many_are_the_last_ones(text, around, most):
    zone, change, shift = around
    cron, after = Cron(text), change + shift
    every = list(dues(cron, zone, after=after, until=after + WINDOW))
    if len(every) <= most:
        return
    found, older, last = newest(cron, zone, after=after, until=after + WINDOW, most=most)
    assert found == every[-most:]
    assert (older, last) == (len(every) - most, every[-most - 1])
