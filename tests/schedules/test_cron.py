"""Cron text: what is read, what is refused with which field named, and what is said about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from postroad.errors import UsageError
from postroad.schedules.cron import Cron
from postroad.schedules.timing import dues

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
ZONE = ZoneInfo("UTC")


def first(text: str, count: int = 1, zone: str = "UTC", after: datetime = NEW_YEAR) -> list[str]:
    found = islice(dues(Cron(text), ZoneInfo(zone), after=after), count)
    return [f"{at:%Y-%m-%d %H:%M}" for at in found]


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("60 * * * *", "minute", "0 to 59"),
        ("* 24 * * *", "hour", "0 to 23"),
        ("* * 0 * *", "day of month", "1 to 31"),
        ("* * * 13 *", "month", "1 to 12"),
        ("* * * * 8", "day of week", "0 to 7"),
        ("* 22-2 * * *", "hour", "write it as two: 22-23,0-2"),
        ("* * * DEC-FEB *", "month", "write it as two: 12-12,1-2"),
        ("* * * * FRI-SUN", "day of week", "write 5-7"),
        ("*/60 * * * *", "minute", "a step is 1 to 59"),
        ("* */24 * * *", "hour", "a step is 1 to 23"),
        ("* * */31 * *", "day of month", "a step is 1 to 30"),
        ("* * * */12 *", "month", "a step is 1 to 11"),
        ("*/0 * * * *", "minute", "step of zero"),
        ("* * 30 2 *", "day of month", "does not occur"),
        ("* * 31 4,6,9,11 *", "day of month", "does not occur"),
        ("* * */28 * MON#2", "day of month", "does not occur"),
        ("\u0661 * * * *", "minute", "ASCII"),
        ("* \uff11 * * *", "hour", "ASCII"),
        ("1_0 * * * *", "minute", "cannot be read"),
        ("1,,2 * * * *", "minute", "comma"),
        ("* * LW * *", "day of month", "W"),
        ("* * 15W * *", "day of month", "W"),
        ("* * L-3 * *", "day of month", "L alone"),
        ("* * ? * *", "day of month", "write *"),
        ("* * * * L", "day of week", "5L"),
        ("* * * * 5#6", "day of week", "1 to 5"),
        ("* * * * MONDAY", "day of week", "three letters"),
        ("* * * JANUARY *", "month", "three letters"),
        ("H * * * *", "minute", "jitter="),
        ("* * 1#2 * *", "day of month", "day of week"),
        ("\t*\n* * * * *", "minute", "ASCII"),
        ("* * * * * *", "6 fields", "seconds"),
        ("* * * *", "4 fields", "minute, hour"),
        ("@reboot", "nickname", "@hourly"),
        ("@every 5m", "nickname", "every="),
    ],
)
def test_a_refusal_names_the_field_and_says_what_to_write(text: str, field: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        Cron(text)
    assert refused.value.code == "PR107"
    assert field in refused.value.message
    assert hint in refused.value.message
    assert "\n" not in refused.value.message


def test_a_refusal_of_a_very_long_text_stays_short() -> None:
    with pytest.raises(UsageError) as refused:
        Cron("9" * 100_000 + " * * * *")
    assert len(refused.value.message) < 400


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="no text but int"):
        Cron(5)


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("0 0 * * 0", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 * * sun", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 * * 5-7", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00", "2026-01-09 00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00", "2026-02-28 00:00"]),
        ("0 0 15,L * *", ["2026-01-15 00:00", "2026-01-31 00:00"]),
        ("0 0 * * 5L", ["2026-01-30 00:00", "2026-02-27 00:00"]),
        ("0 0 * * FRIL", ["2026-01-30 00:00", "2026-02-27 00:00"]),
        ("0 0 * * FRI#2", ["2026-01-09 00:00", "2026-02-13 00:00"]),
        ("0 0 * * 7#1", ["2026-01-04 00:00", "2026-02-01 00:00"]),
        ("0 9-17/4 * * *", ["2026-01-01 09:00", "2026-01-01 13:00", "2026-01-01 17:00"]),
        ("50/5 0 * * *", ["2026-01-01 00:50", "2026-01-01 00:55", "2026-01-02 00:50"]),
        ("5-5/2 0 * * *", ["2026-01-01 00:05", "2026-01-02 00:05"]),
        ("  0   0 1 jan *\t", ["2027-01-01 00:00"]),
        ("@yearly", ["2027-01-01 00:00"]),
        ("@Monthly", ["2026-02-01 00:00"]),
        ("@midnight", ["2026-01-02 00:00"]),
        ("@hourly", ["2026-01-01 01:00"]),
        ("0 0 30 2 MON", ["2026-02-02 00:00"]),
    ],
)
def test_what_is_read_is_due_at(text: str, due: list[str]) -> None:
    assert first(text, len(due)) == due


def test_dates_that_come_seldom_are_found_and_those_beyond_fifty_years_never_come() -> None:
    assert first("0 0 29 2 *", after=datetime(2096, 3, 1, tzinfo=UTC)) == ["2104-02-29 00:00"]
    assert first("0 0 29 2 */7", 2) == ["2032-02-29 00:00", "2060-02-29 00:00"]
    assert Cron("0 0 29 2 */7").next(datetime(9990, 1, 1, tzinfo=UTC), ZONE) is None


def test_both_day_fields_mean_either_unless_one_begins_with_a_star() -> None:
    assert first("0 0 13 * FRI", 3) == ["2026-01-02 00:00", "2026-01-09 00:00", "2026-01-13 00:00"]
    assert first("0 0 */2 * FRI", 2) == ["2026-01-09 00:00", "2026-01-23 00:00"]


def test_a_reader_is_warned_where_two_day_fields_mean_something_else_elsewhere() -> None:
    (both,) = Cron("0 0 */2 * FRI").warnings()
    (either,) = Cron("0 0 13 * FRI").warnings()
    assert "'*/2' begins with a star" in both
    assert "BOTH" in both
    assert "EITHER" in either
    assert Cron("0 0 */2 * *").warnings() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("15 2 * * *", "At 02:15 every day"),
        ("*/5 * * * *", "Every fifth minute of every hour"),
        ("0 9 * * MON-FRI", "At 09:00 on Monday through Friday"),
        ("0 0 L * *", "At 00:00 on the last day of every month"),
        ("0 0 * * FRI#2", "At 00:00 on the second Friday of the month"),
        ("0 0 * * 5L", "At 00:00 on the last Friday of the month"),
        ("@weekly", "At 00:00 on Sunday"),
    ],
)
def test_the_text_is_said_in_plain_words(text: str, words: str) -> None:
    assert Cron(text).explain() == words


def test_two_of_the_same_text_are_equal_and_hashable() -> None:
    assert {Cron("15 2 * * *"), Cron("15 2 * * *")} == {Cron("15 2 * * *")}


def test_any_aware_time_may_be_asked_about() -> None:
    asked = datetime(2026, 3, 8, 1, 0, tzinfo=ZoneInfo("America/New_York"))
    assert Cron("15 2 * * *").next(asked, ZoneInfo("America/New_York")) == datetime(2026, 3, 8, 7, 0, tzinfo=UTC)
    assert Cron("* * * * *").next(NEW_YEAR + timedelta(microseconds=1), ZONE) == NEW_YEAR + timedelta(minutes=1)
