"""What the public names promise to a type checker: marked lines fail, each with its code, and every other line passes.

A driver is absent as it is for a user who never installed it: the checkers look into an environment of their own, in
which everything is linked but that driver, and Postroad is a package like the others.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPECTED = re.compile(r"# E: ([a-z-]+)")
FOUND = re.compile(r"^(.*?):(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)
LINES = {
    "door_lines.py": {"asyncpg"},
    "psycopg_door_lines.py": {"psycopg"},
    "sqlalchemy_door_lines.py": {"sqlalchemy"},
    "consumer_lines.py": {"asyncpg", "psycopg"},
    "effects_lines.py": {"asyncpg", "psycopg"},
    "testing_lines.py": {"asyncpg", "psycopg"},
    "executor_lines.py": set(),
    "schedule_lines.py": set(),
}
"""The files, and the drivers that their lines ask for."""
DRIVERS = ["asyncpg", "psycopg", "sqlalchemy"]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["none", *DRIVERS], ids="without {}".format)
def absent(request):
    return request.param


@pytest.fixture
def folder(absent, tmp_path):
    """A folder with the files that need none of what is absent."""
    for name, drivers in LINES.items():
        if absent not in drivers:
            shutil.copy(Path(__file__).parent / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def python(absent, tmp_path_factory):
    """The interpreter of an environment in which the driver is absent."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and not entry.name.startswith((absent, "_", "postroad")):
            (site / entry.name).symlink_to(entry)
    (site / "postroad").symlink_to(ROOT / "src" / "postroad")
    return str(home / "bin" / "python")


def expected(folder):
    return {
        (path.name, number, code)
        for path in folder.glob("*_lines.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for code in EXPECTED.findall(line)
    }


def test_every_file_of_lines_is_listed():
    assert {path.name for path in Path(__file__).parent.glob("*_lines.py")} == set(LINES)


def test_mypy_refuses_the_marked_lines_and_no_other(folder, python, tmp_path):
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
    files = map(str, sorted(folder.glob("*_lines.py")))
    command = [sys.executable, "-m", "mypy", *options, "--python-executable", python, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = {(Path(path).name, int(number), code) for path, number, code in FOUND.findall(done.stdout)}
    assert found == expected(folder), done.stdout + done.stderr
    assert found


def test_pyright_refuses_the_marked_lines_and_no_other(folder, python):
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "pyright", "--project", str(folder), "--pythonpath", python, "--outputjson"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    errors = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    found = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in errors}
    assert found == {(name, number) for name, number, _ in expected(folder)}, errors
    assert found
