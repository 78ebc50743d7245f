"""Cron text and intervals as other schedulers' public suites have them; disputed ones by the Debian-style rule."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from postroad.errors import UsageError
from postroad.schedules.cron import Cron
from postroad.schedules.timing import Every, Timing, dues
from schedules.cases import cases

CASES = cases("schedule-cases")
PAGE = Path(__file__).parents[2] / "docs" / "schedules-cases.md"

# What the product does not claim is refused, with a hint; why, is said on the page that lists the same.
NOT_CLAIMED = {
    "cs-it_handles_lw": "LW",
    "cs-it_handles_dom_star": "a step as large as the field",
    "cr-day-04": "six fields",
    "cr-day-08": "six fields",
    "cr-day-12": "six fields",
    "cr-day-13": "six fields",
    "cr-day-14": "six fields",
    "cr-day-17": "six fields",
    "cr-day-18": "six fields",
    "sp-fri2": "six fields",
    "sp-1w15lw": "six fields",
}
WITHOUT_SECONDS = {"cr-day-04", "cr-day-12"}
"""Of those with six fields, what is claimed once the seconds are left out."""


def timing_of(case: dict[str, Any]) -> Timing:
    if "cron" in case:
        return Cron(case["cron"])
    interval = case["interval"]
    return Every(timedelta(seconds=interval["every_s"]), timedelta(seconds=interval["phase_s"]))


def expected(case: dict[str, Any]) -> Any:
    if case.get("dispute") == "dst":
        return case["expect_by_policy"]["vixie"]
    return case.get("expect_by_day_rule", {}).get("vixie", case["expect"])


def assert_due(timing: Timing, case: dict[str, Any]) -> None:
    wanted = [datetime.fromisoformat(at) for at in expected(case)]
    after, zone = datetime.fromisoformat(case["after"]), ZoneInfo(case["tz"])
    assert list(islice(dues(timing, zone, after=after), len(wanted))) == wanted
    assert timing.count(after, wanted[-1], zone) == len(wanted)


DUE = [name for name, case in CASES.items() if expected(case) != "error" and name not in NOT_CLAIMED]
REFUSED = [name for name, case in CASES.items() if expected(case) == "error" or name in NOT_CLAIMED]


@pytest.mark.parametrize("name", DUE)
def test_a_case_is_due_when_its_source_says(name: str) -> None:
    assert_due(timing_of(CASES[name]), CASES[name])


@pytest.mark.parametrize("name", REFUSED)
def test_a_case_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        timing_of(CASES[name])
    assert refused.value.code == "PR107"
    assert "\n" not in str(refused.value)
    assert "; " in refused.value.message, "it says what to do"


@pytest.mark.parametrize("name", sorted(WITHOUT_SECONDS))
def test_a_case_of_six_fields_is_due_as_its_source_says_once_the_seconds_are_left_out(name: str) -> None:
    seconds, _, text = CASES[name]["cron"].partition(" ")
    assert seconds == "0"
    assert_due(Cron(text), CASES[name])


def test_every_case_is_claimed_or_listed_with_its_reason_on_the_page() -> None:
    page = PAGE.read_text("utf-8")
    assert set(NOT_CLAIMED) <= set(CASES)
    assert [name for name in NOT_CLAIMED if f"`{name}`" not in page] == []
    assert f"{len(DUE)} are due as their sources say" in page
