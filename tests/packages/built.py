"""Postroad as users get it: a sdist, the wheel made from that, and an environment with its core alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from runtime.processes import environment

ROOT = Path(__file__).parents[2]


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

    def answer(self, code: str) -> Any:
        """What `code` prints as JSON, run apart from this checkout."""
        return json.loads(run(self.python, "-I", "-W", "error", "-c", code))


def run(*command: str, folder: Path | None = None) -> str:
    """What a command prints that has to succeed."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def _build(kind: str, *, source: Path, to: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(to), folder=source)
    [made] = to.iterdir()
    return made
