"""Waits and budgets: pure arithmetic."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.clock import hours, minutes, seconds
from postroad.errors import UsageError
from postroad.retry import Backoff, full_jitter, next_look

CHANCE = st.floats(0, 1, exclude_max=True)
FIRST = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=1))


@given(first=FIRST, times=st.floats(1, 1e6), factor=st.floats(1, 1e300), attempt=st.integers(1, 10**9), chance=CHANCE)
def test_a_delay_lies_in_the_upper_half_of_its_bound(first, times, factor, attempt, chance) -> None:
    budget = Backoff(first=first, most=min(first * times, timedelta(days=10_000)), factor=factor)
    delay = budget.delay(attempt, chance=chance)
    tiny = timedelta(microseconds=1)
    assert first / 2 - tiny <= delay <= budget.most + tiny
    assert delay <= budget.delay(attempt + 1, chance=chance) + tiny


def test_delays_double_until_the_most() -> None:
    budget = Backoff(first=seconds(2), most=seconds(10))
    most = [budget.delay(attempt, chance=1.0).total_seconds() for attempt in range(1, 6)]
    least = [budget.delay(attempt, chance=0.0).total_seconds() for attempt in range(1, 6)]
    assert most == pytest.approx([2, 4, 8, 10, 10])
    assert least == pytest.approx([1, 2, 4, 5, 5])


@given(attempt=st.integers(1, 40), age=st.timedeltas(timedelta(0), timedelta(days=3)))
def test_a_budget_ends_by_attempts_or_by_age(attempt, age) -> None:
    budget = Backoff(attempts=12, max_age=hours(24))
    assert budget.spent(attempt, age=age) == (attempt >= 12 or age >= hours(24))


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"factor": 0.5},
        {"factor": math.nan},
        {"factor": math.inf},
        {"first": timedelta(0)},
        {"first": seconds(5), "most": seconds(4)},
        {"max_age": timedelta(0)},
    ],
)
def test_a_budget_that_cannot_work_is_refused(wrong) -> None:
    with pytest.raises(UsageError, match="PR107"):
        Backoff(**wrong)


@given(tries=st.integers(0, 10**6), chance=CHANCE)
def test_a_reconnect_waits_anything_up_to_its_bound(tries, chance) -> None:
    wait = full_jitter(tries, first=seconds(0.5), most=seconds(30), chance=chance)
    assert timedelta(0) <= wait <= seconds(30)
    assert full_jitter(tries, first=seconds(0.5), most=seconds(30), chance=0.0) == timedelta(0)


def test_the_default_budget_lasts_for_longer_than_a_lunch() -> None:
    budget = Backoff()
    waited = sum((budget.delay(attempt, chance=0.0) for attempt in range(1, budget.attempts)), timedelta(0))
    assert waited > minutes(10)


@given(left=st.floats(-5, 1e5), crowd=st.integers(0, 10_000), chance=st.floats(0, 1, exclude_max=True))
def test_looks_are_bounded_jittered_and_end_with_the_time_that_is_left(left: float, crowd: int, chance: float) -> None:
    pause = next_look(left=left, crowd=crowd, chance=chance)
    if left <= 0:
        assert pause is None
        return
    assert pause is not None
    assert 0 < pause <= min(left, 3.0)
    assert pause == left or pause >= 0.125
    assert crowd < 40 or pause == left or pause >= 1.0, "a crowd asks no more often than one by one could"
