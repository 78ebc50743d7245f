"""What becomes of an attempt at a job, by what its function raised: pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.clock import hours, seconds
from postroad.errors import LeaseHeld, LeaseLost, PostroadError, Unavailable
from postroad.failures import Cancel, Drop, FailureClass, OutcomeUnknown, Quarantine, Retry, Rules, Snooze
from postroad.retry import Backoff
from postroad.work import ClaimedRow, Wire
from postroad.work.ending import Became, exhausted, failed
from postroad.work.job import job, job_of


@job("j", retry=Backoff(first=seconds(1), most=seconds(8), attempts=4, max_age=hours(1)))
async def work(request: dict[str, int], run: object) -> None:
    """Any job."""


def row(attempt=0, age=timedelta(0)):
    return ClaimedRow(
        id=1, token=2, queue="j", kind="job", key=None, wire=Wire(body=b"{}", content_type="application/json"),
        attempt=attempt, age=age, created_at=datetime(2026, 1, 1, tzinfo=UTC), run_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def ending(error, *, attempt=0, age=timedelta(0), **given):
    return failed(error, job=job_of(work), row=row(attempt, age), chance=0.5, **given)


@pytest.mark.parametrize(
    ("error", "became", "charged"),
    [
        (ValueError(), Became.DELAYED, 1),
        (TimeoutError(), Became.DELAYED, 1),
        (Retry(), Became.DELAYED, 1),
        (PostroadError("PR506", "too long"), Became.DELAYED, 1),
        (Snooze(seconds(1)), Became.DELAYED, 0),
        (LeaseLost("PR401", "lost"), Became.DELAYED, 0),
        (Unavailable("PR301", "away"), Became.DELAYED, 0),
        (LeaseHeld("PR402", "held"), Became.DELAYED, 0),
        (Quarantine("look"), Became.QUARANTINED, 1),
        (OutcomeUnknown("sent?"), Became.QUARANTINED, 1),
        (Drop("old"), Became.DROPPED, 0),
        (Cancel("unwanted"), Became.CANCELLED, 0),
        (ExceptionGroup("", [ValueError(), Quarantine("look")]), Became.QUARANTINED, 1),
    ],
)
def test_an_error_has_one_ending(error, became, charged):
    found = ending(error)
    assert (found.became, found.attempt) == (became, charged)


def test_an_operators_cancellation_ends_whatever_it_raised():
    assert ending(ValueError(), stopped="not needed").became is Became.CANCELLED
    assert ending(ValueError(), stopped="not needed").reason == "not needed"


def test_a_lost_connection_is_charged_unless_it_was_ours():
    assert ending(ConnectionResetError(), ours=True).attempt == 0
    assert ending(ConnectionResetError()).attempt == 1
    assert ending(ValueError(), ours=True).attempt == 1


@given(st.integers(0, 20), st.floats(0, 7200), st.sampled_from([ValueError, Retry, TimeoutError]))
def test_the_budget_bounds_every_way_of_trying_again(attempt, age, kind):
    found = ending(kind(), attempt=attempt, age=seconds(age))
    spent = attempt + 1 >= 4 or age >= 3600
    assert (found.became is Became.QUARANTINED) is spent
    if not spent:
        assert timedelta(0) <= found.run_in <= seconds(8)
        assert found.attempt == attempt + 1


@given(st.timedeltas())
def test_a_snooze_of_any_length_has_a_date_that_a_database_holds(after):
    found = ending(Snooze(after))
    assert timedelta(0) <= found.run_in <= timedelta(days=3650)
    assert found.attempt == 0


def test_a_held_name_is_waited_for_uncharged_until_the_jobs_greatest_age():
    found = ending(LeaseHeld("PR402", "the lease 'x' is held"), attempt=3, age=seconds(3599))
    assert (found.became, found.attempt) == (Became.DELAYED, 3)
    assert seconds(4) <= found.run_in <= seconds(8)
    assert found.verdict is not None
    assert (found.verdict.code, found.verdict.failure) == ("PR402", FailureClass.INTERRUPTED)
    last = ending(LeaseHeld("PR402", "the lease 'x' is held"), attempt=3, age=hours(1))
    assert (last.became, last.attempt) == (Became.QUARANTINED, 3)
    assert "the lease 'x' is held" in last.reason


def test_an_authors_rule_for_held_names_comes_first():
    @job("ruled", rules=Rules(drop={LeaseHeld: "another does it"}))
    async def ruled(request: dict[str, int], run: object) -> None:
        """Drops."""

    found = failed(LeaseHeld("PR402", "held"), job=job_of(ruled), row=row(), chance=0)
    assert (found.became, found.reason) == (Became.DROPPED, "another does it")


def test_rules_are_asked_and_our_own_words_come_first():
    @job("ruled", rules=Rules(drop={ValueError: "never mind"}))
    async def ruled(request: dict[str, int], run: object) -> None:
        """Drops."""

    found = failed(ValueError(), job=job_of(ruled), row=row(), chance=0)
    assert (found.became, found.reason) == (Became.DROPPED, "never mind")


def test_a_row_whose_last_attempt_was_never_answered_is_quarantined():
    found = exhausted(row(attempt=4))
    assert (found.became, found.attempt) == (Became.QUARANTINED, 4)
    assert found.verdict is not None
    assert (found.verdict.code, found.verdict.failure) == ("PR507", FailureClass.QUARANTINE)
