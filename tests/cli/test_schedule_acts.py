"""The commands for the schedules in a database: what they print, change, record and refuse."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from cli.test_commands import document
from cli.test_work import postroad
from postroad.schedules.registry import Release, register
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from schedules.planbench import APP, SCHEMA, schedule

NAME = "reports.daily"


@pytest.fixture
def given(runtime_url: str, database: str) -> dict[str, str]:
    """The settings of a database with two schedules, one of which has been due at one o'clock."""

    async def fill() -> None:
        connection = await asyncpg.connect(database)
        declared = [schedule(cron="0 * * * *", zone="Europe/Paris"), schedule("reports.other")]
        await drive(register(SCHEMA, Release.of(APP, declared, tz_version="2025b")), AsyncpgHand(connection))
        await connection.execute(
            "INSERT INTO postroad.occurrence (schedule, due, kind, key, state, reason, start_at, revision)"
            " SELECT id, '2026-03-02 01:00Z', 'scheduled', 'k', 'missed', 'too_old', '2026-03-02 01:00Z', 1"
            " FROM postroad.schedule WHERE name = $1",
            NAME,
        )
        await connection.close()

    asyncio.run(fill())
    return {"POSTROAD_DATABASE_URL": runtime_url, "LOGNAME": "ada"}


def told(given: dict[str, str], *words: str, code: int = 0) -> Any:
    return document(postroad("schedule", *words, "--json", **given), code)


def text(given: dict[str, str], *words: str) -> str:
    done = postroad("schedule", *words, **given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(given: dict[str, str], *words: str) -> str:
    done = postroad("schedule", *words, **given)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_list_shows_how_each_stands(given) -> None:
    first, second = told(given, "list")
    assert (first["name"], first["state"], first["last_state"]) == (NAME, "active", "missed")
    assert first["next_due"] > first["cursor"]
    assert second["app"] == APP
    assert told(given, "list", "--app-name", "billing") == []
    assert NAME in text(given, "list")


def test_show_names_the_source_of_each_property(given) -> None:
    found = told(given, "show", NAME)
    assert found["timing"] == {"value": {"cron": "0 * * * *"}, "source": "declared"}
    assert found["zone"] == {"value": "Europe/Paris", "source": "declared"}
    assert (found["overlap"]["source"], found["max_runtime"]["source"]) == ("default", "job")
    assert (found["paused_by"]["source"], found["cursor"]["source"]) == ("operator", "scheduler")
    assert found["declared_by"]["value"] == "release 1 of reports"
    assert "declared" in text(given, "show", NAME)


def test_history_shows_each_occurrence_with_its_reason(given) -> None:
    found = told(given, "history", NAME)
    assert [(one["due"][:16], one["state"], one["reason"]) for one in found["occurrences"]] == [
        ("2026-03-02T01:00", "missed", "too_old")
    ]
    assert told(given, "history", NAME, "--state", "failed")["occurrences"] == []
    assert "too_old" in text(given, "history", NAME)


def test_pause_and_resume_say_what_they_changed_and_who_did(given) -> None:
    done = told(given, "pause", NAME, "--reason", "audit week")
    assert (done["changed"], done["paused_by"], done["reason"]) == (True, "ada", "audit week")
    assert "was paused already (by ada since" in text(given, "pause", NAME, "--by", "eve")
    assert told(given, "list")[0]["state"] == "paused"
    assert told(given, "resume", NAME)["changed"]
    assert "was not paused" in text(given, "resume", NAME)


def test_trigger_asks_once_for_each_request(given) -> None:
    first = told(given, "trigger", NAME, "--request", "one", "--overlap", "allow")
    assert (first["new"], told(given, "trigger", NAME, "--request", "one")["new"]) == (True, False)
    assert "asked for, due" in text(given, "trigger", NAME)
    manual = [one for one in told(given, "history", NAME)["occurrences"] if one["kind"] == "manual"]
    assert sorted(one["state"] for one in manual) == ["pending", "pending"]


RANGE = ("--from", "2026-03-02T00:00:00Z", "--to", "2026-03-02T03:00:00+01:00")


def test_backfill_shows_its_due_times_and_writes_only_without_dry_run(given, postgres, database) -> None:
    dry = told(given, "backfill", NAME, *RANGE, "--dry-run")
    assert (dry["id"], dry["runs"], [one["ran"] for one in dry["dues"]]) == (None, 2, [False, True, False])
    assert "has an occurrence already" in text(given, "backfill", NAME, *RANGE, "--dry-run")
    done = told(given, "backfill", NAME, *RANGE, "--reason", "the archive was away")
    assert (done["id"], done["runs"]) == (1, 2)
    [backfill] = told(given, "history", NAME)["backfills"]
    assert (backfill["by"], backfill["reason"], backfill["ended_at"]) == ("ada", "the archive was away", None)
    rows = postgres.execute(
        "SELECT by, act, subject FROM postroad.audit ORDER BY id", database=database.rpartition("/")[2]
    )
    assert rows[-1] == ("ada", "schedule.backfill", NAME)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("pause", "reports.dayly"), "there is no schedule 'reports.dayly'; did you mean 'reports.daily'? [PR107]"),
        (("show", "x"), "there is no schedule 'x'; see `postroad schedule list` [PR107]"),
        (("backfill", NAME, "--from", "2026-03-02", "--to", "2026-03-03"), "--from '2026-03-02' is no instant"),
        (("backfill", NAME, "--from", "2026-03-03T00:00Z", "--to", "2026-03-02T00:00Z"), "is before --from"),
        (("pause", NAME, "--reason", "a\nb"), "the reason is one line of at most 500 characters"),
        (("trigger", NAME, "--overlap", "often"), "'often' is not one of"),
    ],
)
def test_bad_input_is_one_line(given, words, says) -> None:
    line = refused(given, *words)
    assert says in line
    assert line.count("\n") == 1


def test_the_overlap_words_are_those_of_the_policy() -> None:
    from postroad.cli.schedule_acts import Beside, State
    from postroad.schedules.operate import STATES
    from postroad.schedules.policy import Overlap

    assert [str(one) for one in Beside] == [str(one) for one in Overlap]
    assert tuple(map(str, State)) == STATES
    assert json.dumps(STATES)
