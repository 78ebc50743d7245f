"""The whole road on real servers: real flights, once in effect, also while processes and the broker are killed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from postroad.demo import verify
from postroad.demo.chaos import PLAN, Fault, gates

DATA = Path(__file__).parents[1] / "data"
FLIGHTS = DATA / "flights-2013-01.csv.gz"
TRUTH = json.loads((DATA / "flights-2013-01.truth.json").read_text())


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


@pytest.mark.timeout(400)
def test_ten_days_of_flights_arrive_once_in_effect():
    report = demo("--csv", str(FLIGHTS))
    assert report["per_carrier"] == TRUTH["per_carrier"]
    assert report["rows"] == report["published"] == report["confirmed"] == report["handled"] == TRUTH["rows"]
    assert (report["lost"], report["doubled"], report["quarantined"]) == (0, 0, 0)


@pytest.mark.timeout(400)
def test_ten_days_of_flights_arrive_once_in_effect_while_everything_is_killed():
    report = demo("--csv", str(FLIGHTS), "--chaos")
    assert report["per_carrier"] == TRUTH["per_carrier"]
    assert (report["rows"], report["lost"], report["doubled"]) == (TRUTH["rows"], 0, 0)
    assert report["duplicates"] > 0
    assert report["faults"].keys() >= set(Fault) | {"kills", "redeliveries"}
    assert min(report["faults"].values()) > 0
    assert report["faults"]["kills"] == len(PLAN) - 1


def test_the_plan_kills_each_kind_several_times_and_spreads_over_the_file():
    plan = gates(1000)
    assert [gate.at for gate in plan] == sorted(gate.at for gate in plan)
    assert 0 < plan[0].at < plan[-1].at < 1000
    assert min(PLAN.count(Fault.CONSUMER_KILLS), PLAN.count(Fault.DISPATCHER_KILLS)) >= 3
    assert set(PLAN) == set(Fault)


def test_the_judge_imports_nothing_of_postroad():
    tree = ast.parse(Path(verify.__file__).read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imported for alias in node.names} | {getattr(node, "module", "") for node in imported}
    assert not [name for name in names if name and name.startswith("postroad")]
