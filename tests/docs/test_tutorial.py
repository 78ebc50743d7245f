"""The tutorial, walked from its first line to its last, comes to what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.walk import PAGE, a_folder, walk

PROGRAMS = str(Path(sys.executable).parent)


def watched(printed: str) -> list[dict[str, int]]:
    """What `watch.py` printed, line by line."""
    lines = [line for line in printed.splitlines() if re.match(r"ordered \d+, tickets", line)]
    return [{name: int(value) for name, value in re.findall(r"(\w+) (\d+)", line)} for line in lines]


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_the_tutorial_leads_to_twelve_cakes_whatever_is_killed() -> None:
    with a_folder() as folder:
        printed = walk(
            PAGE.read_text("utf-8"), folder, PROGRAMS, installed=True, output=subprocess.PIPE, limit=280
        )  # fmt: skip
    assert printed is not None
    seen = watched(printed)
    assert seen[-1] == {"ordered": 12, "tickets": 12, "layers": 35, "baked": 12, "doubled": 0}
    assert not any(look["doubled"] for look in seen)
    assert "work_recovered " in printed
    assert {"ordered": 8, "tickets": 6, "layers": 18, "baked": 6, "doubled": 0} in seen
    assert "postroad dev ended with exit code 6" in printed
    assert "no recipe for cake 11" in printed
    assert "shutdown_receipt " in printed
