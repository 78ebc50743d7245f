"""What the public names promise to a type checker: marked lines fail with their code, every other line passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPECTED = re.compile(r"# E: ([a-z-]+)")
FOUND = re.compile(r"^.*?:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("*_lines.py")), ids=lambda path: path.stem)
def test_marked_lines_do_not_type_check_and_others_do(path, tmp_path):
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = path.read_text("utf-8").splitlines()
    expected = {(number, code) for number, line in enumerate(lines, 1) for code in EXPECTED.findall(line)}
    assert {(int(number), code) for number, code in FOUND.findall(done.stdout)} == expected, done.stdout
    assert expected
