"""Local trust: pure arithmetic on a clock that the test moves."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.clock import ManualClock, seconds
from postroad.errors import LeaseLost, UsageError
from postroad.leases.lease import Lease, checked_ttl, margin


def leased(clock: ManualClock, ttl: timedelta = seconds(10)) -> Lease:
    return Lease("shard:03", token=4, holder=uuid4(), ttl=ttl, sent=clock.monotonic(), clock=clock)


def test_trust_ends_a_margin_before_the_database_lets_others_in() -> None:
    clock = ManualClock()
    lease = leased(clock)
    clock.advance(seconds(8.99))
    assert lease.held
    lease.check()
    clock.advance(seconds(0.02))
    assert not lease.held


def test_a_check_of_a_lost_lease_says_which_and_what_to_do() -> None:
    clock = ManualClock()
    lease = leased(clock)
    clock.advance(seconds(60))
    with pytest.raises(LeaseLost, match=r"'shard:03' \(token 4\).*stop.*\[PR401\]"):
        lease.check()


def test_a_step_of_the_time_of_day_changes_nothing() -> None:
    clock = ManualClock()
    lease = leased(clock)
    clock.at += timedelta(hours=1)
    assert lease.held
    clock.at -= timedelta(hours=2)
    assert lease.held


def test_a_lease_that_was_ended_is_never_trusted_again() -> None:
    clock = ManualClock()
    lease = leased(clock)
    lease.end()
    lease.prolong(clock.monotonic())
    assert not lease.held


@given(ttl=st.floats(0.25, 86_400), gone=st.floats(0, 1))
def test_trust_always_ends_first_and_leaves_time_for_renewals(ttl: float, gone: float) -> None:
    clock = ManualClock()
    lease = leased(clock, seconds(ttl))
    clock.advance(seconds(ttl * gone))
    if gone >= 0.9001:
        assert not lease.held
    if gone <= 0.79:
        assert lease.held
    assert margin(seconds(ttl)) >= seconds(ttl) / 10 - timedelta(microseconds=1)


def test_a_lease_too_short_to_be_renewed_is_refused() -> None:
    with pytest.raises(UsageError, match="PR107"):
        checked_ttl(seconds(0.1))


def test_the_kind_is_the_part_before_the_colon() -> None:
    assert leased(ManualClock()).kind == "shard"
