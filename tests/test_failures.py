"""What a failure means, told by literals: no driver is needed, none is imported."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from postroad.clock import seconds
from postroad.errors import (
    AccessRefused,
    ContractError,
    LeaseLost,
    SettingsError,
    Unavailable,
    UsageError,
)
from postroad.failures import (
    CODE_ERROR_ATTEMPTS,
    Drop,
    FailureClass,
    OutcomeUnknown,
    Quarantine,
    Retry,
    Rules,
    Verdict,
    classify,
)
from postroad.foreign import LONGEST_REASON

SECRET = "4111-1111-1111-1111"
NONE = Rules()


class GatewayDown(Exception):
    pass


class GatewaySlow(GatewayDown):
    pass


class TestFlight(Exception):
    __test__ = False


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The error as a handler raises it, with a traceback."""

    def handler() -> None:
        raise error from cause

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        handler()
    return caught.value


def verdict(error: BaseException, *, rules: Rules = NONE, attempt: int = 1) -> Verdict:
    return classify(error, rules=rules, attempt=attempt)


@pytest.mark.parametrize(
    ("error", "failure", "code"),
    [
        (Drop("a test flight"), FailureClass.DROP, "author"),
        (Quarantine("unknown carrier"), FailureClass.QUARANTINE, "author"),
        (Retry(), FailureClass.TRANSIENT, "author"),
        (OutcomeUnknown("the provider timed out"), FailureClass.OUTCOME_UNKNOWN, "author"),
        (ContractError("PR505", "field 'a' is missing"), FailureClass.QUARANTINE, "PR505"),
        (LeaseLost("PR401", "lost"), FailureClass.INTERRUPTED, "PR401"),
        (asyncio.CancelledError(), FailureClass.INTERRUPTED, "interrupted"),
        (KeyboardInterrupt(), FailureClass.INTERRUPTED, "interrupted"),
        (Unavailable("PR301", "away"), FailureClass.DEPENDENCY_DOWN, "PR301"),
        (AccessRefused("PR303", "refused"), FailureClass.DEPENDENCY_DOWN, "PR303"),
        (ValueError(SECRET), FailureClass.TRANSIENT, "other"),
        (RuntimeError(SECRET), FailureClass.TRANSIENT, "other"),
        (TimeoutError(), FailureClass.TRANSIENT, "other"),
        (ConnectionResetError(104, "reset"), FailureClass.TRANSIENT, "other"),
        (asyncpg.SerializationError("x"), FailureClass.TRANSIENT, "40001"),
        (asyncpg.DeadlockDetectedError("x"), FailureClass.TRANSIENT, "40P01"),
        (asyncpg.LockNotAvailableError("x"), FailureClass.TRANSIENT, "55P03"),
        (asyncpg.UniqueViolationError("x"), FailureClass.TRANSIENT, "23505"),
        (asyncpg.NumericValueOutOfRangeError("x"), FailureClass.TRANSIENT, "22003"),
    ],
)
def test_each_kind_of_failure_has_its_class(error: BaseException, failure: FailureClass, code: str) -> None:
    found = verdict(raised(error))
    assert (found.failure, found.code) == (failure, code)
    assert SECRET not in repr(found)


def test_a_right_that_is_missing_spends_the_budget_since_the_database_is_there() -> None:
    cause = asyncpg.InsufficientPrivilegeError("permission denied")
    found = verdict(raised(AccessRefused("PR303", "the role may not publish"), cause))
    assert (found.failure, found.code, found.connection_lost) == (FailureClass.TRANSIENT, "42501", False)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ConnectionDoesNotExistError("x"),
        asyncpg.AdminShutdownError("x"),
        asyncpg.CrashShutdownError("x"),
        asyncpg.IdleInTransactionSessionTimeoutError("x"),
        asyncpg.CannotConnectNowError("x"),
        asyncpg.TooManyConnectionsError("x"),
        asyncpg.InterfaceError("connection is closed"),
        ConnectionRefusedError(111, "refused"),
        OSError("Multiple exceptions: refused, refused"),
        TimeoutError(),
        Unavailable("PR301", "away"),
    ],
)
def test_a_lost_connection_is_marked_for_the_caller_to_judge_whose_it_was(error: Exception) -> None:
    assert verdict(raised(error)).connection_lost
    assert verdict(raised(RuntimeError("wrapped"), cause=error)).connection_lost


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.UniqueViolationError("x"),
        asyncpg.InterfaceError("cannot perform operation: another operation is in progress"),
        FileNotFoundError(2, "no such file", "flights.csv"),
        ValueError("connection is closed"),
    ],
)
def test_other_errors_are_not_taken_for_lost_connections(error: Exception) -> None:
    found = verdict(raised(error))
    assert not found.connection_lost
    assert found.failure is FailureClass.TRANSIENT


@pytest.mark.parametrize("kind", [TypeError, KeyError, AttributeError, NameError, AssertionError])
def test_a_code_error_is_quarantined_after_three_attempts(kind: type[Exception]) -> None:
    error = raised(kind(SECRET))
    classes = [verdict(error, attempt=attempt).failure for attempt in range(1, 6)]
    assert classes == [FailureClass.TRANSIENT] * (CODE_ERROR_ATTEMPTS - 1) + [FailureClass.QUARANTINE] * 3
    assert SECRET not in repr(verdict(error, attempt=3))


def test_our_usage_errors_are_code_errors_that_keep_their_code() -> None:
    error = raised(UsageError("PR109", "event 'a' is not declared"))
    assert verdict(error).failure is FailureClass.TRANSIENT
    late = verdict(error, attempt=3)
    assert (late.failure, late.code) == (FailureClass.QUARANTINE, "PR109")
    assert verdict(raised(SettingsError("PR201", "x")), attempt=3).failure is FailureClass.QUARANTINE


def test_a_handlers_own_validation_error_is_an_ordinary_failure_without_its_input() -> None:
    class Model(BaseModel):
        amount: int

    with pytest.raises(ValueError, match="amount") as caught:
        Model.model_validate({"amount": SECRET})
    found = verdict(caught.value)
    assert found.failure is FailureClass.TRANSIENT
    assert SECRET not in repr(found)


# --- rules ---------------------------------------------------------------------------------------------------------


def test_rules_say_what_an_authors_exceptions_mean() -> None:
    rules = Rules(transient=[GatewayDown], quarantine=[ValueError], drop={TestFlight: "test flights carry no delay"})
    assert verdict(raised(GatewaySlow()), rules=rules).failure is FailureClass.TRANSIENT
    assert verdict(raised(UnicodeDecodeError("ascii", b"x", 0, 1, "y")), rules=rules).failure is FailureClass.QUARANTINE
    dropped = verdict(raised(TestFlight(SECRET)), rules=rules)
    assert (dropped.failure, dropped.code, dropped.reason) == (
        FailureClass.DROP,
        "rule",
        "test flights carry no delay",
    )


def test_the_most_specific_class_wins() -> None:
    rules = Rules(transient=[GatewaySlow], quarantine=[GatewayDown], drop={Exception: "whatever"})
    assert verdict(raised(GatewaySlow()), rules=rules).failure is FailureClass.TRANSIENT
    assert verdict(raised(GatewayDown()), rules=rules).failure is FailureClass.QUARANTINE
    assert verdict(raised(ValueError()), rules=rules).failure is FailureClass.DROP


def test_of_rules_for_one_class_drop_comes_first_then_quarantine() -> None:
    every = Rules(transient=[GatewayDown], quarantine=[GatewayDown], drop={GatewayDown: "gone"})
    assert verdict(raised(GatewayDown()), rules=every).failure is FailureClass.DROP
    two = Rules(transient=[GatewayDown], quarantine=[GatewayDown])
    assert verdict(raised(GatewayDown()), rules=two).failure is FailureClass.QUARANTINE


def test_a_broad_rule_does_not_overrule_what_an_author_raised_to_decide() -> None:
    rules = Rules(transient=[Exception])
    assert verdict(raised(Drop("x")), rules=rules).failure is FailureClass.DROP
    assert verdict(raised(Quarantine("x")), rules=rules).failure is FailureClass.QUARANTINE


def test_no_rule_can_take_over_what_is_not_the_authors() -> None:
    rules = Rules(drop={BaseException: "all"})
    assert verdict(raised(LeaseLost("PR401", "x")), rules=rules).failure is FailureClass.INTERRUPTED
    assert verdict(raised(asyncio.CancelledError()), rules=rules).failure is FailureClass.INTERRUPTED
    assert verdict(raised(Unavailable("PR301", "x")), rules=rules).failure is FailureClass.DEPENDENCY_DOWN


def test_a_rule_speaks_before_the_code_error_does() -> None:
    rules = Rules(transient=[LookupError])
    assert verdict(raised(KeyError()), rules=rules, attempt=9).failure is FailureClass.TRANSIENT


@pytest.mark.parametrize("given_", [["ValueError"], [int], [ValueError()]])
def test_rules_take_exception_classes_only(given_: list[object]) -> None:
    with pytest.raises(UsageError, match="PR101"):
        Rules(transient=given_)  # type: ignore[arg-type]


# --- chains --------------------------------------------------------------------------------------------------------


def test_the_cause_of_an_error_is_looked_through() -> None:
    rules = Rules(quarantine=[GatewayDown])
    assert verdict(raised(RuntimeError(), cause=GatewayDown()), rules=rules).failure is FailureClass.QUARANTINE
    assert verdict(raised(RuntimeError(), cause=Unavailable("PR301", "x"))).failure is FailureClass.DEPENDENCY_DOWN
    assert verdict(raised(RuntimeError(), cause=asyncpg.SerializationError("x"))).code == "40001"


def test_sqlalchemys_wrapping_is_looked_through() -> None:
    class IntegrityError(Exception):
        orig = asyncpg.UniqueViolationError("x")

    assert verdict(raised(IntegrityError())).code == "23505"


def test_an_authors_translation_of_a_code_error_stands() -> None:
    found = verdict(raised(GatewayDown(), cause=KeyError()), attempt=9)
    assert found.failure is FailureClass.TRANSIENT


async def test_a_time_out_is_not_taken_for_an_interruption() -> None:
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)
    except TimeoutError as error:
        found = verdict(error)
    assert found.failure is FailureClass.TRANSIENT


def test_a_cycle_of_causes_ends() -> None:
    one, two = ValueError(), ValueError()
    one.__cause__, two.__cause__ = two, one
    assert verdict(one).failure is FailureClass.TRANSIENT


@pytest.mark.parametrize(
    ("members", "failure"),
    [
        ([Drop("x"), ValueError()], FailureClass.TRANSIENT),
        ([Drop("x"), ValueError(), Quarantine("y")], FailureClass.QUARANTINE),
        ([Quarantine("y"), Unavailable("PR301", "x")], FailureClass.DEPENDENCY_DOWN),
        ([Unavailable("PR301", "x"), LeaseLost("PR401", "x")], FailureClass.INTERRUPTED),
        ([LeaseLost("PR401", "x"), OutcomeUnknown("z")], FailureClass.OUTCOME_UNKNOWN),
        ([ExceptionGroup("inner", [Quarantine("y")]), Drop("x")], FailureClass.QUARANTINE),
    ],
)
def test_of_a_group_the_worst_member_decides(members: list[Exception], failure: FailureClass) -> None:
    assert verdict(raised(ExceptionGroup("several", members))).failure is failure


def test_a_group_with_a_cancellation_is_an_interruption() -> None:
    group = BaseExceptionGroup("several", [ValueError(), asyncio.CancelledError()])
    assert verdict(group).failure is FailureClass.INTERRUPTED


# --- what is kept --------------------------------------------------------------------------------------------------


def test_a_retry_says_when_and_never_before_now() -> None:
    assert verdict(raised(Retry(seconds(30), "the gateway asked for it"))).retry_after == seconds(30)
    assert verdict(raised(Retry(seconds(30), "the gateway asked for it"))).reason == "the gateway asked for it"
    assert verdict(raised(Retry(timedelta(days=-1)))).retry_after == timedelta(0)
    assert verdict(raised(Retry())).retry_after is None


def test_a_database_errors_reason_names_state_and_schema_things_only() -> None:
    error = asyncpg.UniqueViolationError(f"duplicate key: {SECRET}")
    error.constraint_name, error.table_name, error.detail = "flight_pkey", "flight", f"Key (card)=({SECRET})"
    found = verdict(raised(error))
    assert found.reason.startswith(
        "asyncpg.exceptions.UniqueViolationError 23505 (constraint flight_pkey, table flight)"
        " in raised.<locals>.handler (test_failures.py:"
    )
    assert SECRET not in repr(found)


def test_psycopgs_diagnosis_is_read_too() -> None:
    class Diagnosis:
        constraint_name = "flight_pkey"
        table_name = SECRET + " is no name"

    class UniqueViolation(Exception):
        sqlstate = "23505"
        diag = Diagnosis()

    assert "(constraint flight_pkey)" in verdict(raised(UniqueViolation())).reason


def test_an_error_that_defends_itself_is_classified_all_the_same() -> None:
    class Hostile(Exception):
        @property
        def sqlstate(self) -> str:
            raise RuntimeError(SECRET)

        @property
        def orig(self) -> object:
            return 7

        def __str__(self) -> str:
            raise RuntimeError(SECRET)

    found = verdict(raised(Hostile()))
    assert found.failure is FailureClass.TRANSIENT
    assert SECRET not in repr(found)


def fails_here(text: str) -> BaseException:
    return raised(ValueError(text))


def fails_there(text: str) -> BaseException:
    def fails() -> None:
        raise ValueError(text)

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is any
        fails()
    return caught.value


def test_one_kind_of_failure_from_one_place_has_one_fingerprint() -> None:
    assert verdict(fails_there("a")).fingerprint == verdict(fails_there("b")).fingerprint
    assert verdict(fails_here("a")).fingerprint != verdict(fails_there("a")).fingerprint
    assert verdict(raised(ValueError())).fingerprint != verdict(raised(RuntimeError())).fingerprint


@given(st.text(), st.sampled_from([Drop, Quarantine, OutcomeUnknown]))
def test_an_authors_reason_passes_through_as_one_bounded_printable_line(text: str, kind: type[Exception]) -> None:
    found = verdict(raised(kind(text)))
    assert found.reason.isprintable()
    assert len(found.reason) <= LONGEST_REASON
    if text.isprintable() and text == " ".join(text.split()) and len(text) <= LONGEST_REASON:
        assert found.reason == text


ERRORS = st.sampled_from([
    ValueError, KeyError, GatewayDown, GatewaySlow, TimeoutError, OSError, asyncpg.SerializationError, Exception,
    asyncio.CancelledError, TestFlight, asyncpg.InterfaceError,
])  # fmt: skip
CLASSES = st.sampled_from([ValueError, LookupError, Exception, GatewayDown, GatewaySlow, OSError, TestFlight])


@st.composite
def failures(draw: st.DrawFn) -> BaseException:
    links = [draw(ERRORS)(draw(st.just(SECRET))) for _ in range(draw(st.integers(1, 4)))]
    for link, cause in pairwise(links):
        link.__cause__ = cause
    if draw(st.booleans()):
        return BaseExceptionGroup("group", links)
    return links[0]


@given(
    failures(),
    st.builds(
        Rules,
        transient=st.lists(CLASSES),
        quarantine=st.lists(CLASSES),
        drop=st.dictionaries(CLASSES, st.just("dropped")),
    ),
    st.integers(1, 20),
)
def test_every_failure_gets_one_class_and_no_message_gets_out(error: BaseException, rules: Rules, attempt: int) -> None:
    found = verdict(error, rules=rules, attempt=attempt)
    assert found == verdict(error, rules=rules, attempt=attempt)
    assert found.failure not in {FailureClass.SUCCESS, FailureClass.DUPLICATE}
    assert SECRET not in repr(found)
    assert len(found.fingerprint) == 16


def test_no_driver_is_imported() -> None:
    code = (
        "import sys, postroad.failures; print(sorted({'asyncpg', 'pika', 'psycopg', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
