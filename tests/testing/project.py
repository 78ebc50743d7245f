"""A user's project in a folder of its own, whose tests run by pytest in a process."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import postroad
from runtime.processes import environment

SOURCE = Path(postroad.__file__).parents[1]
TESTS = Path(__file__).parents[1]
_PLUGINS = ("postroad", "asyncio", "anyio", "xdist")
"""By the names of their entry points; the others that are installed here would only take time."""
_INI = """
[pytest]
filterwarnings = error
asyncio_mode = strict
asyncio_default_fixture_loop_scope = function
"""


@dataclass
class Project:
    """Postroad is installed there as far as pytest looks: by the entry point that pyproject.toml declares."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Self:
        (folder / "pytest.ini").write_text(_INI)
        project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text("utf-8"))["project"]
        installed = folder / "installed" / "postroad_here-0.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: postroad-here\nVersion: 0\n")
        lines = [f"{name} = {place}" for name, place in project["entry-points"]["pytest11"].items()]
        (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
        return cls(folder)

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text)

    def pytest(self, *arguments: str, expect: int = 0) -> str:
        """What pytest prints, run to that exit status."""
        paths = [self.folder, SOURCE, TESTS, self.folder / "installed"]
        plugins = [part for name in (*_PLUGINS, "no:cacheprovider") for part in ("-p", name)]
        command = [sys.executable, "-m", "pytest", *plugins, "--rootdir", str(self.folder)]
        done = subprocess.run(
            [*command, *arguments, str(self.folder)], cwd=self.folder, capture_output=True, text=True, timeout=110,
            check=False,
            env=environment(PYTHONPATH=os.pathsep.join(map(str, paths)), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        )  # fmt: skip
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout
