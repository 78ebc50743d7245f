"""The page of reliability names tests that exist, and each of its faults one with a sabotage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from soak.faults import Fault

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
ROWS = re.findall(r"^\| (.+?) \| .+? \| (`tests/.+`) \|$", PAGE, re.MULTILINE)


def test_there_are_rows_to_look_at():
    assert len(ROWS) > 40


@pytest.mark.parametrize(("fault", "tests"), ROWS)
def test_a_fault_of_the_page_is_shown_by_a_test_with_a_sabotage(fault, tests):
    files = [ROOT / name for name in re.findall(r"`(.+?)`", tests)]
    assert [file for file in files if not file.is_file()] == []
    assert any("@pytest.mark.sabotage" in file.read_text("utf-8") for file in files)


def test_every_test_that_the_page_names_exists():
    assert [name for name in re.findall(r"tests/[\w/]+\.py", PAGE) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_of_the_soak_is_explained(fault):
    assert f"`{fault}`" in PAGE
