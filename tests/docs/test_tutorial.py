"""The tutorial, walked from its first line to its last, comes to what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.walk import PAGE, a_folder, walk
from postroad.clock import seconds
from postroad.testing.process import wait_until

PROGRAMS = str(Path(sys.executable).parent)


def watched(printed: str) -> list[dict[str, int]]:
    """What `watch.py` printed, line by line."""
    lines = [line for line in printed.splitlines() if re.match(r"ordered \d+, tickets", line)]
    return [{name: int(value) for name, value in re.findall(r"(\w+) (\d+)", line)} for line in lines]


def alive(process: int) -> bool:
    """Whether it runs; one that is dead and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_the_tutorial_leads_to_fourteen_cakes_whatever_is_killed() -> None:
    with a_folder() as folder:
        printed = walk(
            PAGE.read_text("utf-8"), folder, PROGRAMS, installed=True, output=subprocess.PIPE, limit=560
        )  # fmt: skip
    assert printed is not None
    seen = watched(printed)
    assert seen[-1] == {"ordered": 14, "tickets": 14, "layers": 41, "baked": 14, "doubled": 0}
    assert not any(look["doubled"] for look in seen)
    assert "work_recovered " in printed
    assert {"ordered": 10, "tickets": 8, "layers": 24, "baked": 8, "doubled": 0} in seen
    assert "postroad dev ended with exit code 6" in printed
    assert "there is no recipe" in printed
    assert "shutdown_receipt " in printed


INSTALL = "```sh\npip install 'postroad[run,embedded]'\n```\n"


def test_a_line_that_fails_is_told() -> None:
    page = f"{INSTALL}```sh\necho before\nfalse\necho after\n```\n"
    with a_folder() as folder, pytest.raises(subprocess.CalledProcessError) as failed:
        walk(page, folder, PROGRAMS, installed=True, output=subprocess.PIPE, limit=60)
    assert failed.value.output == "before\n"


def test_a_page_that_never_ends_is_ended_with_what_it_started() -> None:
    with a_folder() as folder:
        with pytest.raises(subprocess.TimeoutExpired):
            walk(
                f"{INSTALL}```sh\nsleep 600 & echo $! > child\nwait\n```\n", folder, PROGRAMS, installed=True,
                output=subprocess.PIPE, limit=1,
            )  # fmt: skip
        child = int((folder / "child").read_text())
        assert wait_until(lambda: not alive(child), within=seconds(10), every=seconds(0.05))
