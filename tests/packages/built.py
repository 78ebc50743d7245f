"""Postroad as users get it: a sdist, the wheel made from that, and an environment with its core alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Self

from packaging.requirements import Requirement

from runtime.processes import environment

ROOT = Path(__file__).parents[2]
_SECONDS = 600  # A test's own limit is shorter; whoever has no limit may install at leisure.


@dataclass(frozen=True)
class Built:
    """What was built, once: the sdist from the tree, and the wheel from the unpacked sdist and from nothing else."""

    unpacked: Path
    wheel: Path

    @classmethod
    def of(cls, folder: Path, *, source: Path = ROOT) -> Self:
        sdist = _build("sdist", source=source, to=folder / "sdist")
        run("tar", "-xzf", str(sdist), "-C", str(folder))
        unpacked = folder / sdist.name.removesuffix(".tar.gz")
        return cls(unpacked, _build("wheel", source=unpacked, to=folder / "wheel"))


class Environment:
    """A fresh virtual environment; pip is that of the tests, with its own index and cache."""

    def __init__(self, folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", str(folder))
        self.python = str(folder / "bin" / "python")

    def install(self, *what: str) -> None:
        run(sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-compile", *what)

    def install_core(self, wheel: Path) -> None:
        """The wheel by pip, and what its metadata asks for out of the environment of the tests: without a network."""
        self.install("--no-deps", "--no-index", str(wheel))
        code = "import json, sysconfig; from importlib.metadata import requires"
        site, wanted = self.answer(f"{code}; print(json.dumps([sysconfig.get_path('purelib'), requires('postroad')]))")
        for name in _needed(wanted):
            for file in distribution(name).files or ():
                if ".." not in file.parts:
                    to = Path(site) / file
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(str(file.locate()), to)

    def answer(self, code: str) -> Any:
        """What `code` prints as JSON, run apart from this checkout."""
        return json.loads(run(self.python, "-I", "-W", "error", "-c", code))


def _needed(wanted: list[str]) -> set[str]:
    """The packages that requirements without an extra lead to."""
    found: set[str] = set()
    while wanted:
        requirement = Requirement(wanted.pop())
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in found:
            found.add(requirement.name)
            wanted += distribution(requirement.name).requires or []
    return found


def run(*command: str, folder: Path | None = None) -> str:
    """What a command prints that has to succeed."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def _build(kind: str, *, source: Path, to: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(to), folder=source)
    [made] = to.iterdir()
    return made
