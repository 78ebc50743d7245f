"""The table of `make sabotage`: each mechanism that a test switches off, and whether its promise then breaks.

Loaded by ``pytest -p sabotage_report -m sabotage``. A sabotage passes when the scenario goes red without its mechanism.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_OUTCOMES = {"passed": "red as it should be", "failed": "NOT red: the test cannot fail", "skipped": "not run"}


def mechanism(name: str) -> str:
    """A test's name as a sentence, without the words that all of them have."""
    bare, _, case = name.partition("[")
    words = re.sub(r"^test_(sabotage_)?", "", bare).replace("_", " ")
    return f"{words} [{case}" if case else words


class Table:
    """Collects one line for each sabotage."""

    def __init__(self) -> None:
        self.lines: dict[str, tuple[str, str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of the call, or of what failed before and after it."""
        if report.when != "call" and report.outcome == "passed":
            return
        path, _, name = report.nodeid.partition("::")
        outcome = _OUTCOMES[report.outcome] if report.when == "call" else f"{report.when} {report.outcome}"
        self.lines[report.nodeid] = (mechanism(name.rpartition("::")[2] or name), short(path), outcome)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, by room."""
        lines = sorted(self.lines.values(), key=lambda line: (line[1], line[0]))
        if not lines:
            return
        terminalreporter.section("sabotage")
        width = max(len(path) for _, path, _ in lines)
        for what, path, outcome in lines:
            terminalreporter.write_line(f"{path:<{width}}  {outcome:<19}  {what}")
        red = sum(outcome == _OUTCOMES["passed"] for _, _, outcome in lines)
        terminalreporter.write_line(f"{red} of {len(lines)} mechanisms turn their test red when they are switched off")


def short(path: str) -> str:
    """A test file without what all of them share."""
    return str(PurePath(path).with_suffix("")).removeprefix("tests/").replace("/test_", "/")


def pytest_configure(config: pytest.Config) -> None:
    """Report from the process that prints; workers send their outcomes there."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(), "sabotage-table")
