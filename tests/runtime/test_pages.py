"""Codes and their pages agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from postroad.cli.commands import build
from postroad.errors import (
    CODES,
    AccessRefused,
    PostroadError,
    SchemaError,
    SettingsError,
    TopologyError,
    Unavailable,
    UsageError,
)
from postroad.runtime.exits import MEANINGS, Exit, exit_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def rows(page: str) -> list[list[str]]:
    """The cells of every table row of a page."""
    lines = (DOCS / page).read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def test_every_error_code_stands_on_its_page_with_its_meaning_and_a_remedy() -> None:
    shown = {cells[0].strip("`"): cells for cells in rows("errors.md") if cells[0].startswith("`PR")}
    assert {code: cells[1] for code, cells in shown.items()} == CODES
    assert all(cells[3] for cells in shown.values())


def test_every_code_that_is_raised_is_known() -> None:
    source = ROOT / "src" / "postroad"
    raised = {code for path in source.rglob("*.py") for code in re.findall(r'"(PR\d{3})"', path.read_text("utf-8"))}
    assert raised == CODES.keys()


def test_every_exit_code_stands_on_its_page() -> None:
    shown = {int(cells[0]): cells[1] for cells in rows("cli.md") if cells[0].isdigit()}
    assert shown == {int(code): meaning for code, meaning in MEANINGS.items()}
    assert MEANINGS.keys() == set(Exit)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("PR201", "x"), 3), (UsageError("PR201", "x"), 3), (SchemaError("PR202", "x"), 4),
        (AccessRefused("PR303", "x"), 5), (Unavailable("PR301", "x"), 6), (TopologyError("PR205", "x"), 7),
        (UsageError("PR107", "x"), 2), (ValueError("x"), 70), (PostroadError("PR401", "x"), 70),
    ],
)  # fmt: skip
def test_each_class_of_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_of(error) == code


def test_every_command_stands_on_its_page() -> None:
    page = (DOCS / "cli.md").read_text("utf-8")
    app = build()
    names = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    for name in names:
        assert f"postroad {name}" in page or f"`{name}` is an alias" in page
