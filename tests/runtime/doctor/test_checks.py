"""The catalogue of checks and its page agree, and every check is made somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from postroad.runtime import doctor
from postroad.runtime.doctor import CHECKS, Severity, checks

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "doctor.md").read_text("utf-8")


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_check_stands_on_its_page_with_its_cost_and_remedy() -> None:
    shown = [cells for cells in rows() if cells[0].startswith("`")]
    assert shown == [[f"`{check.name}`", check.looks_at, check.lost, check.remedy] for check in CHECKS]


def test_every_severity_stands_on_the_page_with_its_exit_code() -> None:
    codes = {cells[0]: cells[2] for cells in rows() if len(cells) == 3 and cells[0] != "severity"}
    assert codes == {str(one): "1" if one is Severity.ERROR else "0" for one in Severity}


def test_names_are_unique_and_every_check_is_made() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    folder = Path(doctor.__file__).parent
    code = "\n".join(path.read_text("utf-8") for path in folder.glob("*.py") if path.name != "checks.py")
    names = {check.name: name for name, check in vars(checks).items() if isinstance(check, checks.Check)}
    unused = [check.name for check in CHECKS if not re.search(rf"\b{names[check.name]}\b", code)]
    assert unused == []
    assert len(names) == len(CHECKS)
