"""All schedulers, or the database, away for half an hour and for two days: each policy decides, nothing vanishes."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from postroad.schedules import decide, sheet
from postroad.schedules.policy import Missed, Overlap, Reason
from schedules.planbench import (
    START,
    at,
    begin_at,
    finish,
    missed_but_for,
    occurrences,
    office,
    schedule,
    settled,
    tick,
)

HALF_HOUR, TWO_DAYS = timedelta(minutes=30), timedelta(days=2)


async def after(
    here: Any, sql: Any, away: timedelta, **options: Any
) -> tuple[Counter[tuple[str, str | None]], list[Any]]:
    """What becomes of the occurrences of that time: how many in each state, and which have started."""
    held = await office(here, schedule(**options))
    await begin_at(sql)
    await tick(here, held, START + away + timedelta(seconds=30))
    rows = await occurrences(sql)
    return Counter((row["state"], row["reason"]) for row in rows), [r["due"] for r in rows if r["state"] == "started"]


async def summarised(sql: Any) -> list[tuple[int, str, str, str]]:
    """What the audit says of missed occurrences that have no row."""
    rows = await sql.fetch("SELECT items, reason, after::text AS after FROM audit WHERE act = 'schedule.miss'")
    found = [(row["items"], row["reason"], json.loads(row["after"])) for row in rows]
    return [(items, reason, told["first"], told["last"]) for items, reason, told in found]


async def test_half_an_hour_the_latest_run_is_made_up_for(here, sql) -> None:
    count, started = await after(here, sql, HALF_HOUR, missed=Missed.LATEST)
    assert count == {("missed", "superseded"): 29, ("started", None): 1}
    assert started == [at("02 00:30")]


async def test_half_an_hour_nothing_is_made_up_for(here, sql) -> None:
    count, started = await after(here, sql, HALF_HOUR, missed=Missed.SKIP)
    assert count == {("missed", "missed"): 29, ("started", None): 1}
    assert started == [at("02 00:30")], "that one is in time"


async def test_half_an_hour_everything_is_made_up_for_one_after_the_other(here, sql) -> None:
    count, started = await after(here, sql, HALF_HOUR, missed=Missed.ALL)
    assert count == {("queued", None): 28, ("started", None): 1, ("skipped", "overlap"): 1}
    assert started == [at("02 00:01")]


async def test_half_an_hour_everything_is_made_up_for_at_once(here, sql) -> None:
    count, _ = await after(here, sql, HALF_HOUR, missed=Missed.ALL, overlap=Overlap.ALLOW)
    assert count == {("started", None): 30}


async def test_two_days_of_hours_the_latest_run_is_made_up_for(here, sql) -> None:
    count, started = await after(here, sql, TWO_DAYS, missed=Missed.LATEST, cron="30 * * * *")
    assert count == {("missed", "too_old"): 24, ("missed", "superseded"): 23, ("started", None): 1}
    assert started == [at("03 23:30")]


async def test_two_days_of_hours_nothing_is_made_up_for(here, sql) -> None:
    count, started = await after(here, sql, TWO_DAYS, missed=Missed.SKIP, cron="30 * * * *")
    assert count == {("missed", "too_old"): 24, ("missed", "missed"): 24}
    assert started == []


async def test_two_days_of_hours_a_day_is_made_up_for(here, sql) -> None:
    count, _ = await after(here, sql, TWO_DAYS, missed=Missed.ALL, cron="30 * * * *")
    assert count == {("missed", "too_old"): 24, ("queued", None): 23, ("started", None): 1}


@pytest.mark.parametrize("missed", Missed)
async def test_two_days_of_minutes_are_bounded_and_all_accounted_for(here, sql, missed) -> None:
    count, _ = await after(here, sql, TWO_DAYS, missed=missed)
    assert count.total() == 100
    [(items, reason, first, last)] = await summarised(sql)
    assert (items, reason) == (2880 - 100, "max_catch_up")
    assert (first, last) == ("2026-03-02T00:01:00+00:00", "2026-03-03T22:20:00+00:00")


@pytest.mark.sabotage
@pytest.mark.parametrize("missed", [Missed.LATEST, Missed.SKIP])
async def test_without_the_missed_run_policy_what_is_late_would_run_all_the_same(
    here, sql, monkeypatch, missed
) -> None:  # fmt: skip
    monkeypatch.setattr(decide, "_missed", lambda *_: None)
    _, started = await after(here, sql, TWO_DAYS, missed=missed, cron="30 * * * *", overlap=Overlap.ALLOW)
    assert len(started) == 48


@pytest.mark.sabotage
async def test_without_the_window_what_is_too_old_would_run(here, sql, monkeypatch) -> None:
    monkeypatch.setattr(decide, "_missed", missed_but_for(Reason.TOO_OLD))
    _, started = await after(here, sql, TWO_DAYS, missed=Missed.ALL, cron="30 * * * *", overlap=Overlap.ALLOW)
    assert len(started) == 48


@pytest.mark.sabotage
async def test_without_the_summary_minutes_would_vanish(here, sql, monkeypatch) -> None:
    monkeypatch.setattr(sheet.Sheet, "_summarise", lambda *_: None)
    count, _ = await after(here, sql, TWO_DAYS)
    assert count.total() + sum(items for items, *_ in await summarised(sql)) < 2880


async def test_what_is_made_up_for_runs_in_order_and_the_regular_times_go_on(here, sql) -> None:
    held = await office(here, schedule(missed=Missed.ALL, cron="*/10 * * * *"))
    await begin_at(sql)
    for minute in range(33, 37):
        await tick(here, held, at(f"02 00:{minute}"))
        if not await finish(sql):
            break
        await settled(here, held)
    rows = await occurrences(sql)
    assert [(row["due"], row["state"]) for row in rows] == [
        (at("02 00:10"), "succeeded"), (at("02 00:20"), "succeeded"), (at("02 00:30"), "succeeded"),
    ]  # fmt: skip
    assert sorted(row["started_at"] for row in rows) == [at("02 00:33"), at("02 00:34"), at("02 00:35")]
    await tick(here, held, at("02 00:40"))
    assert (await occurrences(sql))[-1]["state"] == "started"
