"""Time and identifiers."""

from __future__ import annotations

from datetime import UTC, timedelta

from hypothesis import given
from hypothesis import strategies as st

from postroad.clock import SYSTEM_CLOCK, ManualClock, hours, minutes, seconds, uuid7


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_uuid7_carries_its_time_its_version_and_its_variant(unix_ms: int, random: bytes) -> None:
    made = uuid7(unix_ms, random)
    assert made.int >> 80 == unix_ms
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert made.int & (2**62 - 1) == int.from_bytes(random, "big") & (2**62 - 1)


@given(st.integers(0, 2**48 - 2), st.binary(min_size=10, max_size=10), st.binary(min_size=10, max_size=10))
def test_later_uuid7s_sort_after_earlier_ones(unix_ms: int, one: bytes, two: bytes) -> None:
    assert uuid7(unix_ms, one) < uuid7(unix_ms + 1, two)


def test_the_system_clock_is_aware_and_its_steady_clock_only_grows() -> None:
    now, steady = SYSTEM_CLOCK.now(), SYSTEM_CLOCK.monotonic()
    assert now.tzinfo is UTC
    assert SYSTEM_CLOCK.monotonic() >= steady
    made = SYSTEM_CLOCK.new_id()
    assert abs((made.int >> 80) / 1000 - now.timestamp()) < 60
    assert SYSTEM_CLOCK.new_id() != made


def test_a_manual_clock_stands_until_it_is_moved() -> None:
    clock = ManualClock()
    before = (clock.now(), clock.monotonic())
    assert (clock.now(), clock.monotonic()) == before
    clock.advance(minutes(2))
    assert clock.now() - before[0] == timedelta(minutes=2)
    assert clock.monotonic() - before[1] == 120


def test_a_manual_clocks_identifiers_differ_and_repeat_from_run_to_run() -> None:
    one, two = ManualClock(), ManualClock()
    ids = [one.new_id() for _ in range(3)]
    assert len(set(ids)) == 3
    assert ids == [two.new_id() for _ in range(3)] == sorted(ids)


def test_durations_read_as_they_are_written() -> None:
    assert (seconds(90), minutes(1.5), hours(0.025)) == (timedelta(seconds=90),) * 3
