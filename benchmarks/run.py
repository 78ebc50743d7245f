"""Compares Postroad with a hand-written floor and its peers: pairs in turn on one machine, and their ratios.

Ratios are what is claimed; absolute rates are only printed. Writes benchmarks/results/latest.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from postroad.testing.servers import PostgresServer, RabbitNode

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.json"


@dataclass(frozen=True, slots=True)
class Result:
    """One comparison: ratios are subject over rival, pair by pair; rates are medians per second."""

    measurement: str
    subject: str
    rival: str
    ratio_min: float
    ratio_median: float
    ratio_max: float
    subject_rate: float
    rival_rate: float


@dataclass(frozen=True, slots=True)
class Contest:
    """What is compared: the rival's script, what to run before each timed stage, and the least ratio that is held.

    Where the rival is ourselves under other circumstances, the stages differ, and so may the counts; such contests
    are long, and go without warming and with at most three rounds.
    """

    measurement: str
    rival: str
    script: str
    before: tuple[str, ...]
    rival_before: tuple[str, ...]
    at_least: float | None
    stage: str | None = None
    rival_stage: str | None = None
    count: int | None = None
    rival_count: int | None = None
    subject: str = "ours.py"
    prepare: str = "ours.py"
    target: float | None = None
    """A rate to be reached, where no rival runs."""

    @property
    def long(self) -> bool:
        return self.count is not None


STAGED = ("setup", "fill", "dispatch")
CONTESTS = (
    Contest("dispatch", "floor", "floor.py", ("setup", "fill"), ("setup", "fill"), 1.0),
    Contest("dispatch", "faststream", "faststream_peer.py", ("setup", "fill"), (), None),
    Contest("consume", "floor", "floor.py", STAGED, STAGED, 1.5, count=20_000),
    Contest("consume-hot", "floor", "floor.py", STAGED, STAGED, None, count=20_000),
    Contest(
        "consume-two", "the target of 300/s", "", STAGED, (), 1.0, count=5_000, target=300,
    ),
    Contest("consume", "faststream", "faststream_peer.py", STAGED, ("setup", "fill"), None, count=20_000),
    Contest("staging", "a plain INSERT", "floor.py", ("setup",), ("setup",), None, count=5_000),
    *(
        Contest(
            f"staging-{door}", "a plain INSERT by the same door", "doors.py", ("setup",), ("setup",), None,
            stage=door, rival_stage=f"{door}-plain", count=5_000, subject="doors.py",
        )
        for door in ("psycopg", "psycopg-async", "sqlalchemy", "sqlalchemy-async", "django")
    ),
    Contest(
        "consume-sessions", "itself without on=, with SQL of its own", "ours.py", STAGED, STAGED, None,
        rival_stage="consume", count=10_000,
    ),
    Contest(
        "latency-median", "the target of 25 ms", "", ("setup",), (), None,
        stage="median", count=2_000, subject="latency.py", target=1 / 0.025,
    ),
    Contest(
        "latency-p99", "the target of 100 ms", "", ("setup",), (), None,
        stage="p99", count=2_000, subject="latency.py", target=1 / 0.1,
    ),
    *(
        Contest(
            f"latency-{kind}-postgres", f"the target of {most} ms, without a broker", "", ("setup",), (), None,
            stage=f"{kind}-postgres", count=2_000, subject="latency.py", target=1000 / most,
        )
        for kind, most in (("median", 40), ("p99", 100))
    ),
    Contest(
        "growth", "itself with 10,000 waiting rows, not 1,000,000", "ours.py",
        ("setup", "million"), ("setup", "backlog"), None, stage="dispatch", rival_stage="dispatch", count=10_000,
    ),
    Contest(
        "growth-held", "itself with 10,000 waiting rows and no transaction held open", "ours.py",
        ("setup", "backlog"), ("setup", "backlog"), None,
        stage="dispatch-held", rival_stage="dispatch", count=100_000, rival_count=10_000,
    ),
    *(
        Contest(
            "jobs", name, script, ("setup", "fill"), (), None,
            rival_stage=rival, count=20_000, rival_count=rivals, subject="jobs.py", prepare="jobs.py",
        )
        for name, script, rival, rivals in (
            ("a bare SKIP LOCKED loop", "jobs_floor.py", "jobs", 20_000),
            ("pgqueuer", "jobs_peers.py", "pgqueuer", 20_000),
            ("procrastinate", "jobs_peers.py", "procrastinate", 2_000),
        )
    ),
    Contest(
        "jobs-growth", "itself with 10,000 waiting rows, not 1,000,000", "jobs.py", ("setup", "million"),
        ("setup", "fill"), None, stage="jobs", rival_stage="jobs", count=10_000, subject="jobs.py", prepare="jobs.py",
    ),
    Contest(
        "jobs-held", "itself with 10,000 waiting rows and no transaction held open", "jobs.py", ("setup", "fill"),
        ("setup", "fill"), None, rival_stage="jobs", count=100_000, rival_count=10_000, subject="jobs.py",
        prepare="jobs.py",
    ),
    *(
        Contest(
            name, target, "", ("setup",), (), None,
            stage=stage, count=130, subject="schedules.py", prepare="schedules.py", target=1.0,
        )
        for name, target, stage in (
            ("schedules-planning", "the target of 1 core-second a minute", "planning"),
            ("schedules-start-p99", "the target of 1 s", "start-p99"),
        )
    ),
    *(
        Contest(
            name, target, "", ("setup", "fill"), (), None,
            stage=stage, count=10_000, subject="quarantine.py", prepare="quarantine.py", target=aim,
        )
        for name, target, stage, aim in (
            ("quarantine-release", "the target of 5,000/s", "release", 5_000),
            ("quarantine-paced", "the target of a tenth off 500/s", "paced", 10),
        )
    ),
    Contest(
        "memory", "itself after 500,000 events, not 50,000", "ours.py", ("setup", "backlog"), ("setup", "backlog"),
        None, count=50_000, rival_count=500_000,
    ),
)  # fmt: skip


class Bench:
    """Runs the stages as processes of their own, on servers of their own."""

    def __init__(self, postgres: PostgresServer, rabbit: RabbitNode) -> None:
        self._environment = {
            **os.environ,
            "BENCH_DATABASE_URL": postgres.url("bench"),
            "BENCH_BROKER_URL": rabbit.url(),
            "POSTROAD_DATABASE_URL": postgres.url("bench"),
            "POSTROAD_BROKER_URL": rabbit.url(),
            "POSTROAD_TOPOLOGY": "apply",
            "POSTROAD_LOG_LEVEL": "warning",
        }

    def rate(self, script: str, stage: str, count: int) -> float:
        done = subprocess.run(
            [sys.executable, str(HERE / script), stage, str(count)],
            env=self._environment, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(f"{script} {stage} failed:\n{done.stderr[-2000:]}")
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return float(json.loads(lines[-1])["rate"]) if lines else 0.0

    def pair(self, contest: Contest, count: int) -> tuple[float, float]:
        rivals = contest.rival_count or count
        for stage in contest.before:
            self.rate(contest.prepare, stage, count)
        ours = self.rate(contest.subject, contest.stage or contest.measurement, count)
        if contest.target is not None:
            return ours, contest.target
        for stage in contest.rival_before:
            self.rate(contest.script, stage, rivals)
        return ours, self.rate(contest.script, contest.rival_stage or contest.measurement, rivals)


def compare(bench: Bench, contest: Contest, *, rounds: int, count: int) -> Result:
    if contest.long:
        rounds, count = min(rounds, 3), contest.count or count
    else:
        bench.pair(contest, count // 4)  # Warms the servers' caches; not counted.
    label = f"{contest.measurement} against {contest.rival}"
    pairs = [bench.pair(contest, count) for _ in track(range(rounds), label, console=Console(stderr=True))]
    ratios = [ours / theirs for ours, theirs in pairs]
    return Result(
        contest.measurement, "postroad", contest.rival,
        round(min(ratios), 3), round(statistics.median(ratios), 3), round(max(ratios), 3),
        round(statistics.median(ours for ours, _ in pairs)), round(statistics.median(theirs for _, theirs in pairs)),
    )  # fmt: skip


def write(results: list[Result]) -> None:
    """Keep the newest result of each comparison: a run of one measurement leaves the others' as they were."""
    rows = {(row["measurement"], row["rival"]): row for row in _written()}
    rows |= {(result.measurement, result.rival): asdict(result) for result in results}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(list(rows.values()), indent=2) + "\n")


def _written() -> list[dict[str, Any]]:
    known = {(contest.measurement, contest.rival) for contest in CONTESTS}
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    return [row for row in rows if (row["measurement"], row["rival"]) in known]


def show(results: list[Result]) -> None:
    table = Table(title="Postroad against its rivals: ratios of rates, pair by pair")
    for name in ("measurement", "rival", "min", "median", "max", "postroad/s", "rival/s"):
        table.add_column(name, justify="left" if name in {"measurement", "rival"} else "right")
    for row in results:
        ratios = (f"{ratio:.2f}" for ratio in (row.ratio_min, row.ratio_median, row.ratio_max))
        table.add_row(row.measurement, row.rival, *ratios, f"{row.subject_rate:,.0f}", f"{row.rival_rate:,.0f}")
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--only", help="one measurement")
    options = parser.parse_args()
    chosen = [contest for contest in CONTESTS if options.only in {None, contest.measurement}]
    with PostgresServer() as postgres, RabbitNode() as rabbit:
        postgres.create_database("bench")
        bench = Bench(postgres, rabbit)
        results = [compare(bench, contest, rounds=options.rounds, count=options.count) for contest in chosen]
    write(results)
    show(results)
    short = [
        f"{contest.measurement} against {contest.rival}: {result.ratio_median} is below {contest.at_least}"
        for contest, result in zip(chosen, results, strict=True)
        if contest.at_least is not None and result.ratio_median < contest.at_least
    ]
    for line in short:
        print(line, file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
