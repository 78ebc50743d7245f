"""The page of schedules shows what its commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from postroad.cli.commands import execute

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text("utf-8")
SHOWN = re.findall(r"^```console\n\$ postroad (.*?)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_a_command_of_the_page_prints_what_the_page_shows(command, output, tmp_path, monkeypatch, capsys) -> None:
    (case,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "case.json").write_text(case)
    monkeypatch.chdir(tmp_path)
    execute(shlex.split(command))
    said = capsys.readouterr()
    assert said.out + said.err == output
