"""The whole road on real servers: real flights, once in effect, also while processes and the broker are killed."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from postroad.clock import seconds
from postroad.demo import verify
from postroad.demo.chaos import PLAN, WITHOUT_BROKER, Fault, gates
from postroad.demo.command import run_demo
from postroad.demo.flights import SAMPLE
from postroad.demo.report import sound
from postroad.runtime.exits import Exit
from postroad.testing.process import descendants, slay, wait_until

DATA = Path(__file__).parents[1] / "data"
FLIGHTS = DATA / "flights-2013-01.csv.gz"
PLANS = {"embedded": WITHOUT_BROKER, "auto": PLAN}
BROKERS = pytest.mark.parametrize("broker", PLANS)
TRUTH = json.loads((DATA / "flights-2013-01.truth.json").read_text())
LATE = sum(counts["delayed_over_60"] for counts in TRUTH["per_carrier"].values())
DAYS = 10
PROCESSES = 4
FOLDER = "postroad-demo-"


def demo(*arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "postroad", "demo", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def told(report: dict) -> None:
    """Each late flight was told once, although one call of ten was acted on and not answered."""
    notices = report["notices"]
    assert notices["sent"] == notices["late"] == LATE
    assert notices["agree"]
    assert notices["unanswered"] == LATE // 10
    assert notices["looked_up"] >= notices["unanswered"]


@pytest.mark.timeout(400)
@BROKERS
def test_ten_days_of_flights_arrive_once_in_effect(broker):
    report = demo("--csv", str(FLIGHTS), "--broker", broker)
    assert report["per_carrier"] == TRUTH["per_carrier"]
    assert report["rows"] == report["published"] == report["confirmed"] == report["handled"] == TRUTH["rows"]
    assert (report["lost"], report["doubled"], report["quarantined"]) == (0, 0, 0)
    assert report["reports"] == {"days": DAYS, "written": DAYS, "agree": True}
    told(report)


@pytest.mark.timeout(400)
@BROKERS
def test_ten_days_of_flights_arrive_once_in_effect_while_everything_is_killed(broker):
    report = demo("--csv", str(FLIGHTS), "--chaos", "--broker", broker)
    assert report["per_carrier"] == TRUTH["per_carrier"]
    assert (report["rows"], report["lost"], report["doubled"]) == (TRUTH["rows"], 0, 0)
    assert report["reports"] == {"days": DAYS, "written": DAYS, "agree": True}
    told(report)
    assert report["duplicates"] > 0
    assert report["faults"].keys() >= set(PLANS[broker]) | {"kills", "redeliveries"}
    assert min(report["faults"].values()) > 0
    assert report["faults"]["kills"] == len(PLAN), "the plan without its restart, and the scheduler"


@pytest.mark.sabotage
@pytest.mark.timeout(400)
@BROKERS
def test_without_the_inbox_flights_are_doubled(broker, monkeypatch):
    importable(monkeypatch)
    outcome = run_demo(FLIGHTS, broker=broker, chaos=True, consumer_app="sabotaged:app")
    assert outcome.verdict.doubled > 0
    assert not sound(outcome)


def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo's processes import the sabotaged Apps."""
    given = filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(given))


def few(folder: Path) -> Path:
    """Three days of flights, fifteen of them late."""
    with gzip.open(FLIGHTS, "rt", encoding="utf-8") as text:
        head, *lines = text.read().splitlines()
    rows = [
        (line, row["day"], row["dep_delay"]) for line, row in zip(lines, csv.DictReader([head, *lines]), strict=True)
    ]
    days = ("1", "2", "3")
    late = [[line for line, at, by in rows if at == day and by != "NA" and int(by) > 60][:5] for day in days]
    rest = [[line for line, at, by in rows if at == day and (by == "NA" or int(by) <= 60)][:5] for day in days]
    path = folder / "few.csv"
    path.write_text("\n".join([head, *(line for day in (*late, *rest) for line in day)]) + "\n")
    return path


@pytest.mark.timeout(300)
def test_each_day_is_reported_and_each_late_flight_told_once(tmp_path):
    outcome = run_demo(few(tmp_path))
    assert sound(outcome)
    verdict = outcome.verdict
    assert (verdict.days, verdict.reports, verdict.late, verdict.notices) == (3, 3, 15, 15)
    assert (outcome.unanswered, outcome.looked_up) == (1, 1)


@pytest.mark.sabotage
@pytest.mark.timeout(300)
def test_without_the_ledger_passengers_are_told_twice(tmp_path, monkeypatch):
    importable(monkeypatch)
    outcome = run_demo(few(tmp_path), consumer_app="sabotaged_ledger:app")
    assert outcome.unanswered > 0
    assert outcome.verdict.notices > outcome.verdict.late
    assert outcome.verdict.reports_agree
    assert not sound(outcome)


@pytest.mark.sabotage
@pytest.mark.timeout(300)
def test_where_occurrences_are_not_unique_reports_are_doubled(tmp_path, monkeypatch):
    importable(monkeypatch)
    outcome = run_demo(few(tmp_path), consumer_app="sabotaged_schedules:app")
    assert outcome.verdict.reports == 2 * outcome.verdict.days
    assert outcome.verdict.notices_agree
    assert not sound(outcome)


def told_to_stop(*broken: str) -> tuple[int, list[int], Path]:
    """SIGTERM in the middle of a run, in which a line of Python may have broken something: its exit code, those of
    its processes that are left after it, and its folder."""
    line = ";".join([*broken, "import sys; from postroad.cli import main; sys.argv[1:] = ['demo']; main()"])
    with subprocess.Popen([sys.executable, "-c", line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        try:
            assert wait_until(lambda: len(handling(run.pid)) == PROCESSES, within=seconds(120))
            below = descendants(run.pid)
            folder = next(path for pid in below for path in working_in(pid).parents if path.name.startswith(FOLDER))
            run.send_signal(signal.SIGTERM)
            code = run.wait(100)
        except BaseException:
            slay(run)
            raise
    wait_until(lambda: not any(map(lives, below)), within=seconds(10))
    return code, [pid for pid in below if lives(pid)], folder


def handling(pid: int) -> list[int]:
    return [each for each in descendants(pid) if b"postroad\0run\0" in command(each)]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # It has ended since.
        return b""


def working_in(pid: int) -> Path:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return Path()


def lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.timeout(300)
def test_told_to_stop_it_leaves_neither_processes_nor_its_folder():
    code, left, folder = told_to_stop()
    assert (code, left) == (Exit.STOPPED, [])
    assert not folder.exists()


@pytest.mark.sabotage
@pytest.mark.timeout(300)
def test_without_hearing_sigterm_it_leaves_both():
    deaf = "import contextlib, postroad.demo.command as demo; demo._terminable = contextlib.nullcontext"
    code, left, folder = told_to_stop(deaf)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert code == -signal.SIGTERM
    assert left
    assert folder.exists()
    shutil.rmtree(folder)


def test_malformed_lines_are_named_and_the_rest_goes_through(tmp_path):
    lines = SAMPLE.read_text().splitlines()
    path = tmp_path / "flights.csv"
    path.write_text("\n".join([*lines[:60], "2013,1,1,secret", lines[7]]) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "postroad", "demo", "--csv", str(path)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Line 61 was left out: it has more or fewer fields than the header." in done.stdout
    assert "lost 0, doubled 0" in done.stdout
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--csv", "/nothing/here.csv"], "cannot be read"),
        (["--broker", "amqp://127.0.0.1:1/", "--chaos"], "servers of its own"),
        (["--broker", "foo"], "--broker is embedded, auto, or a URL"),
        (["--broker", "postgres:"], "--broker is embedded, auto, or a URL"),
        (["--broker", "amqp://u:hush@h:nine/"], "--broker cannot be read"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(arguments, words):
    done = subprocess.run(
        [sys.executable, "-m", "postroad", "demo", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.count("[PR") == 1
    assert "hush" not in done.stderr


def test_the_plan_kills_each_kind_several_times_and_spreads_over_the_file():
    plan = gates(1000)
    assert [gate.at for gate in plan] == sorted(gate.at for gate in plan)
    assert 0 < plan[0].at < plan[-1].at < 1000
    assert min(PLAN.count(Fault.CONSUMER_KILLS), PLAN.count(Fault.DISPATCHER_KILLS)) >= 3
    assert {*PLAN, *WITHOUT_BROKER, Fault.SCHEDULER_KILLS} == set(Fault)


def test_the_judge_imports_nothing_of_postroad():
    tree = ast.parse(Path(verify.__file__).read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or alias.name for node in imported for alias in node.names}
    assert "asyncpg" in modules
    assert not [module for module in modules if module.startswith("postroad")]
