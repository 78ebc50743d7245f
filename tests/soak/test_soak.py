"""The soak itself: its schedule repeats, its checker sees what breaks, and a short one keeps every promise."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from soak.__main__ import soak
from soak.checker import Found, judged
from soak.clock import HOUR, Clock
from soak.faults import Due, Fault, drawn

GOOD = Found(
    committed=[1, 2, 3],
    seen=[(2, 1), (1, 1), (3, 1)],
    weighed=[("a", 1), ("b", 1), ("a", 2)],
    weights=[("a", 1, 1), ("b", 1, 1), ("a", 2, 1)],
    wire=[("a", 1), ("b", 1), ("a", 1), ("a", 2)],
    kept=Counter(),
)


def test_a_seed_draws_the_same_faults_again_and_another_seed_others():
    assert drawn(7, lasts=600) == drawn(7, lasts=600)
    assert drawn(7, lasts=600) != drawn(8, lasts=600)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_minutes_hold_every_kind_of_fault(seed):
    plan = drawn(seed, lasts=600)
    assert {due.fault for due in plan} == set(Fault)
    assert all(before.at + before.lasts < after.at for before, after in pairwise(plan))


def test_the_checker_passes_what_is_as_promised():
    assert judged(GOOD).good
    assert judged(replace(GOOD, weights=[("b", 1, 1), ("a", 2, 1)])).good  # Older ones may be dropped.


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        ({"seen": [(1, 1), (3, 1)]}, "lost"),
        ({"wire": [("b", 1), ("a", 2)]}, "lost"),
        ({"seen": [(1, 1), (2, 1), (3, 1), (3, 1)]}, "doubled"),
        ({"weights": [("a", 1, 1), ("b", 1, 1), ("a", 2, 1), ("b", 1, 1)]}, "doubled"),
        ({"committed": [1, 2]}, "invented"),
        ({"weights": [("a", 2, 1), ("b", 1, 1), ("a", 1, 1)]}, "went_back"),
        ({"weights": [("a", 1, 1), ("b", 1, 1)]}, "not_the_latest"),
        ({"wire": [("a", 2), ("a", 1), ("b", 1)]}, "out_of_order"),
        ({"seen": [(1, 1), (2, 2), (3, 1)]}, "charged"),
        ({"kept": Counter(quarantine=1)}, "charged"),
    ],
)
def test_the_checker_sees_each_broken_promise(broken, promise):
    verdict = judged(replace(GOOD, **broken))
    assert getattr(verdict, promise) == 1
    assert not verdict.good


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_a_short_soak_keeps_every_promise(tmp_path, monkeypatch):
    plan = [
        Due(2.0, Fault.CONSUMER_KILL, 1.0, 0), Due(4.0, Fault.BROKER_LINE_CUT, 1.0, 0),
        Due(6.0, Fault.DISPATCHER_KILL, 1.0, 1), Due(8.0, Fault.DATABASE_KILL, 1.0, 0),
        Due(10.0, Fault.CLOCK_STEP, 2.0, 0), Due(13.0, Fault.CLOCK_STEP, 2.0, 1),
    ]  # fmt: skip
    monkeypatch.setattr("soak.__main__.drawn", lambda *_, **__: plan)
    report = soak(tmp_path, lasts=17, seed=0, rate=40, say=lambda _: None)
    assert report["good"], (report, [log.read_text(errors="replace")[-3000:] for log in tmp_path.glob("*.log")])
    assert report["faults"] == Counter(str(due.fault) for due in plan)
    assert int(str(report["events"])) > 100


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.sabotage
@pytest.mark.parametrize(("board", "promise"), [("soak.forgetful:board", "doubled"), ("soak.hasty:board", "lost")])
def test_a_short_soak_of_a_broken_board_finds_what_is_broken(tmp_path, monkeypatch, board, promise):
    """Handlers take their time, so that connections and processes end between commit and ack, and before the commit."""
    plan = [
        Due(2.0, Fault.SLOW_CONSUMER, 6.0, 0), Due(4.0, Fault.BROKER_LINE_CUT, 1.0, 0),
        Due(6.0, Fault.CONSUMER_KILL, 1.0, 0), Due(6.5, Fault.CONSUMER_KILL, 1.0, 1),
    ]  # fmt: skip
    monkeypatch.setattr("soak.__main__.drawn", lambda *_, **__: plan)
    report = soak(tmp_path, lasts=8, seed=0, rate=40, say=lambda _: None, board=board, rest=15)
    assert int(str(report[promise])) > 0, report
    assert not report["good"]


LOOK = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
"""


def test_a_stepped_clock_moves_the_time_of_day_alone(tmp_path):
    clock = Clock(tmp_path / "clock")
    process = subprocess.Popen(
        [sys.executable, "-c", LOOK], env={**os.environ, **clock.environment}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        looks = []
        for off in (0, HOUR, -HOUR, 0):
            clock.step(off)
            process.stdin.write("\n")
            process.stdin.flush()
            looks.append([float(word) for word in process.stdout.readline().split()])
        process.stdin.close()
    for (day, *steady), (next_day, *next_steady), step in zip(
        looks[:-1], looks[1:], (HOUR, -2 * HOUR, HOUR), strict=True
    ):
        assert abs(next_day - day - step) < 30
        assert all(0 <= after - before < 30 for before, after in zip(steady, next_steady, strict=True))
