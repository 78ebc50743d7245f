"""``postroad schedule next`` and ``simulate``: neither needs a database, a broker or a setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from postroad.cli.commands import execute
from postroad.runtime.exits import Exit
from runtime.processes import postroad

CASES = Path(__file__).parents[1] / "data" / "policy-cases.json"
SPRING = ("--zone", "America/New_York", "--after", "2025-03-09T00:00:00Z")


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def command(*arguments: str) -> tuple[int, str, str]:
        code = execute(["schedule", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def test_next_prints_due_times_in_utc_and_marks_the_change_of_the_clock(run) -> None:
    code, out, _ = run("next", "--cron", "30 2 * * *", *SPRING, "--count", "2", "--json")
    assert code == Exit.OK
    found = json.loads(out)
    assert found["explained"] == "At 02:30 every day"
    assert [one["due"] for one in found["next"]] == ["2025-03-09T07:00:00Z", "2025-03-10T06:30:00Z"]
    assert found["next"][0]["local"] == "2025-03-09T03:00:00-04:00"
    assert "goes from 02:00 to 03:00" in found["next"][0]["change"]


def test_next_tells_people_the_text_in_words_with_its_warnings(run) -> None:
    code, out, _ = run("next", "--cron", "0 0 */2 * MON", *SPRING, "--count", "1")
    assert code == Exit.OK
    lines = out.splitlines()
    assert lines[0] == "At 00:00 on every second day of month if it's on Monday (zone America/New_York)"
    assert lines[1].startswith("warning: day of month '*/2' begins with a star")
    assert lines[2:4] == ["1 due time", "due, UTC              on the clock"]
    assert lines[4] == "2025-03-17T04:00:00Z  Mon 2025-03-17 00:00:00 -0400"


def test_next_of_an_interval(run) -> None:
    given = ("--every", "1h30m", "--phase", "5m", "--after", "2025-11-01T00:00:00Z", "--count", "2")
    code, out, _ = run("next", *given, "--json")
    assert code == Exit.OK
    assert [one["due"] for one in json.loads(out)["next"]] == ["2025-11-01T00:05:00Z", "2025-11-01T01:35:00Z"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--cron", "* 25 * * *"], "hour"),
        (["--cron", "* * * * 8"], "day of week"),
        (["--cron", "0 0 30 2 *"], "day of month"),
        (["--cron", "\udcff * * * *"], "is not text in UTF-8"),
        (["--cron", "* * * * *", "--zone", "CET"], "zone"),
        (["--cron", "* * * * *", "--after", "noon"], "--after"),
        (["--cron", "* * * * *", "--after", "2025-01-01"], "--after"),
        (["--cron", "* * * * *", "--after", "9999-12-31T00:00:00Z"], "--after"),
        (["--cron", "* * * * *", "--phase", "5s"], "--phase"),
        (["--cron", "* * * * *", "--every", "5s"], "one of"),
        (["--every", "5"], "--every"),
        (["--every", "0s"], "every"),
        (["--every", "5s", "--phase", "1m"], "phase"),
        (["--every", "9999999d"], "--every"),
        ([], "one of"),
        (["reports.daily"], "--app"),
        (["reports.daily", "--cron", "* * * * *"], "NAME"),
    ],
)
def test_next_refuses_in_one_line_that_names_the_field(run, given: list[str], named: str) -> None:
    code, out, err = run("next", *given)
    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith("postroad: ")
    assert err.count("\n") == 1
    assert named in err


APP = """
from types import SimpleNamespace
from postroad import job
from postroad.schedules.schedule import Schedule

@job("chores.sweep")
async def sweep(request: None, run): ...

daily = Schedule("chores.daily", job=sweep, cron="15 2 * * *", zone="Europe/Paris")
"""


def test_next_of_a_declared_schedule(run, monkeypatch) -> None:
    from types import SimpleNamespace

    names: dict[str, Any] = {}
    exec(APP, names)
    declared = SimpleNamespace(declarations=SimpleNamespace(schedules=(names["daily"],)))
    monkeypatch.setattr("postroad.cli.schedule.load", lambda _: declared)
    code, out, _ = run("next", "chores.daily", "--app", "m:app", "--after", "2026-01-01T00:00:00Z", "--json")
    assert code == Exit.OK
    assert (json.loads(out)["zone"], json.loads(out)["next"][0]["due"]) == ("Europe/Paris", "2026-01-01T01:15:00Z")
    code, _, err = run("next", "chores.nightly", "--app", "m:app")
    assert code == Exit.USAGE
    assert "it declares chores.daily" in err


def test_simulate_plays_every_timeline_that_it_can_and_says_why_it_cannot_play_the_others(run) -> None:
    code, out, _ = run("simulate", str(CASES), "--json")
    assert code == Exit.OK
    results = {one["id"]: one for one in json.loads(out)}
    assert len(results) == len(json.loads(CASES.read_text("utf-8"))["cases"])
    left = {name for name, one in results.items() if "not_played" in one}
    assert left == {"tp-start-end", "ap-crash-abandoned", "rb-two-owners", "k8-two-missed"}
    assert {name for name, one in results.items() if one.get("differs")} == {"qz-fire-once", "tp-buf-skip-idle"}
    assert results["qz-do-nothing"]["decisions"][0] == {
        "at": "2024-01-01T03:10:00Z", "act": "miss", "scheduled": "2024-01-01T01:00:00Z", "kind": "scheduled",
        "reason": "missed",
    }  # fmt: skip


def test_simulate_tells_people_each_decision(run, tmp_path) -> None:
    case = {
        "id": "two days down", "schedule": {"cron": "0 * * * *"}, "policy": {"missed": "latest", "max_catch_up": 2},
        "events": [
            {"at": "2026-03-01T00:00:00Z", "type": "scheduler_down"},
            {"at": "2026-03-03T00:10:00Z", "type": "scheduler_up"},
        ],
    }  # fmt: skip
    file = tmp_path / "case.json"
    file.write_text(json.dumps(case))
    code, out, _ = run("simulate", str(file))
    assert code == Exit.OK
    assert out.splitlines() == [
        "two days down",
        "  2026-03-03T00:10:00Z  miss   46 due from 2026-03-01T01:00:00Z to 2026-03-02T22:00:00Z max_catch_up",
        "  2026-03-03T00:10:00Z  miss   2026-03-02T23:00:00Z superseded",
        "  2026-03-03T00:10:00Z  start  2026-03-03T00:00:00Z",
        "  next: 2026-03-03T01:00:00Z",
        "",
        "1 of 1 timeline played",
    ]


CASE: dict[str, Any] = {
    "id": "c", "schedule": {"cron": "0 * * * *"}, "events": [{"at": "2026-03-01T00:00:00Z", "type": "created"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "line 1"),
        ("[]", "no cases"),
        ('{"cases": 5}', "no cases"),
        ("5", "no cases"),
        ("[5]", "the case is no JSON object"),
        ("\ud800", "no JSON"),
        ({**CASE, "schedule": 5}, "schedule"),
        ({**CASE, "schedule": {}}, "schedule.interval"),
        ({**CASE, "schedule": {"cron": "* 25 * * *"}}, "hour"),
        ({**CASE, "schedule": {"interval": {"every_s": "5"}}}, "every_s"),
        ({**CASE, "schedule": {"interval": {"every_s": 5, "anchor": "now"}}}, "anchor"),
        ({**CASE, "schedule": {"interval": {"every_s": 1e300}}}, "every_s"),
        ({**CASE, "policy": {"jitter_max_s": float("nan")}}, "jitter_max_s"),
        ({**CASE, "expect": {"runs": [{"started": 5}]}}, "expect.runs"),
        ({**CASE, "schedule": {"cron": "* * * * *", "tz": "CET"}}, "zone"),
        ({**CASE, "schedule": {"cron": "* * * * *", "end": "x"}}, "schedule.end"),
        ({**CASE, "policy": {"overlap": "replace"}}, "policy.overlap"),
        ({**CASE, "policy": {"missed": "list"}}, "policy.missed"),
        ({**CASE, "policy": {"misfire_threshold_s": 5}}, "misfire_threshold_s"),
        ({**CASE, "policy": {"limit": 0}}, "policy.limit"),
        ({**CASE, "events": []}, "events"),
        ({**CASE, "events": [{"at": "noon", "type": "created"}]}, "events[0].at"),
        ({**CASE, "events": [{"at": "2026-03-01T00:00:00Z", "type": "crash"}]}, "events[0].type"),
        ({**CASE, "events": [{"at": "2026-03-01T00:00:00Z", "type": "run_finished"}]}, "events[0].scheduled"),
        ({**CASE, "events": [{"at": "2026-03-01T00:00:00Z", "type": ["x"]}]}, "events[0].type"),
    ],
)
def test_simulate_refuses_a_file_in_one_line_that_says_where(run, tmp_path, content, named: str) -> None:
    file = tmp_path / "case.json"
    text = content if isinstance(content, str) else json.dumps(content)
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    code, out, err = run("simulate", str(file))
    assert (code, out) == (Exit.USAGE, "")
    assert err.count("\n") == 1
    assert named in err


def test_simulate_of_a_file_that_is_not_there_says_so(run, tmp_path) -> None:
    code, _, err = run("simulate", str(tmp_path / "nothing.json"))
    assert code == Exit.USAGE
    assert "cannot be read (FileNotFoundError)" in err


def test_a_timeline_without_an_end_in_sight_is_refused(run, tmp_path) -> None:
    file = tmp_path / "case.json"
    stop = {"at": "2036-03-01T00:00:00Z", "type": "stop"}
    file.write_text(json.dumps({**CASE, "schedule": {"cron": "* * * * *"}, "events": [*CASE["events"], stop]}))
    code, _, err = run("simulate", str(file))
    assert code == Exit.USAGE
    assert "more than" in err


def test_as_a_process_they_need_no_setting() -> None:
    done = postroad("schedule", "next", "--cron", "* 25 * * *")
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert "hour" in done.stderr
    assert postroad("schedule", "simulate", str(CASES), "--json").returncode == Exit.OK
