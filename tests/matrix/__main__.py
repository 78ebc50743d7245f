"""Runs the suites on every ground of the matrix, one after another.

Usage: python -m matrix [--only CELL]... [--list] [--json] [--jobs N]; ends with 1 where a cell is red, with 2 where the
ground is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from matrix.grounds import CELLS, Cell, ground, missing
from postroad.errors import PostroadError

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one cell; `again` are the tests that passed only alone, `failed` those that did not pass at all."""

    cell: str
    asks: str
    passed: int
    failed: list[str]
    again: list[str]
    seconds: float
    error: str = ""

    @property
    def green(self) -> bool:
        """Whether everything ran and passed."""
        return not self.failed and not self.error and self.passed > 0

    @property
    def line(self) -> str:
        """One line for people."""
        colour = "green" if self.green else "RED"
        told = [f"{self.passed} passed"]
        told += [f"{len(self.failed)} failed"] * bool(self.failed) + [f"{len(self.again)} only alone"] * bool(
            self.again
        )
        return f"{self.cell:18} {colour:5} {', '.join(told):34} {self.seconds:7.0f} s  {self.error or self.asks}"


def run(name: str, cell: Cell, *, jobs: int) -> Outcome:
    """Run one cell: what fails beside the others is run once more, alone, and has to pass then."""
    began = time.monotonic()
    passed, failed, again, error = 0, [], [], ""
    try:
        with ground(cell) as variables, TemporaryDirectory(prefix="postroad-matrix-") as folder:
            passed, failed = _pytest([*cell.tests], variables, Path(folder), jobs=jobs)
            if failed:
                _, still = _pytest(failed, variables, Path(folder), jobs=0)
                again, failed = [test for test in failed if test not in still], still
                passed += len(again)
    except PostroadError as problem:
        error = str(problem)
    took = round(time.monotonic() - began, 1)
    return Outcome(cell=name, asks=cell.asks, passed=passed, failed=failed, again=again, seconds=took, error=error)


def _pytest(tests: list[str], variables: dict[str, str], folder: Path, *, jobs: int) -> tuple[int, list[str]]:
    """How many passed, and the names of those that did not."""
    report = folder / f"{time.monotonic_ns()}.xml"
    spread = ["-n", str(jobs), "--dist=loadgroup"] if jobs else ["-n", "0"]
    command = [sys.executable, "-m", "pytest", "-q", *spread, f"--junit-xml={report}", "-o", "junit_family=xunit1"]
    done = subprocess.run([*command, *tests], cwd=ROOT, env={**os.environ, **variables}, check=False, stdout=sys.stderr)
    if not report.exists():
        return 0, [f"pytest ended with {done.returncode}"]
    cases = ET.parse(report).getroot().iter("testcase")
    passed, failed = 0, []
    for case in cases:
        if case.find("failure") is None and case.find("error") is None:
            passed += case.find("skipped") is None
        else:
            failed.append(_node(case))
    return passed, failed


def _node(case: ET.Element) -> str:
    """A test as pytest takes it: its file, its class where it has one, and its name."""
    file, module = case.get("file", ""), case.get("classname", "")
    inner = module.removeprefix(re.sub(r"\.py$", "", file).replace("/", ".")).strip(".")
    return "::".join(filter(None, [file, *inner.split("."), case.get("name", "")]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*CELLS], metavar="CELL", help="this cell; may be repeated")
    parser.add_argument("--list", action="store_true", help="say which cells there are")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--jobs", type=int, default=2, help="test processes at once")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:18} {cell.asks}" for name, cell in CELLS.items()))
        return 0
    lacking = missing()
    if lacking is not None:
        print(lacking, file=sys.stderr)
        return 2
    outcomes = []
    for name in options.only or CELLS:
        outcomes.append(run(name, CELLS[name], jobs=options.jobs))
        print(outcomes[-1].line, file=sys.stderr, flush=True)
    green = all(outcome.green for outcome in outcomes)
    print("\n".join(outcome.line for outcome in outcomes), file=sys.stderr if options.json else sys.stdout)
    for outcome in outcomes:
        for test in outcome.failed:
            print(f"{outcome.cell}: {test}", file=sys.stderr)
    if options.json:
        print(json.dumps({"green": green, "cells": [{**asdict(one), "green": one.green} for one in outcomes]}))
    return 0 if green else 1


if __name__ == "__main__":
    sys.exit(main())
