"""Walks through the tutorial as a reader would: its files into a folder, its shell lines into one bash.

As a program it makes a virtual environment first, and installs Postroad there as the page says, from this tree.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
WRITTEN_PORT = "54330"


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def save_files(text: str, folder: Path) -> None:
    """Write each Python block under the name in its first line."""
    for block in blocks(text, "python"):
        (folder / re.match(r"# (\w+\.py)\n", block)[1]).write_text(block)


def lines(text: str, *, installed: bool) -> str:
    """The shell lines as they stand, but for the port, which has to be free here, and what pip installs from."""
    install, *steps = blocks(text, "sh")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    first = "" if installed else install.replace("postroad[", f"{ROOT}[")
    return first + "".join(steps).replace(WRITTEN_PORT, port)


@contextmanager
def a_folder() -> Iterator[Path]:
    """An empty one that PostgreSQL's user may enter, too; nothing that was started in it is left."""
    folder = Path(tempfile.mkdtemp(prefix="postroad-tutorial-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        end_server(folder)
        shutil.rmtree(folder, ignore_errors=True)


def end_server(folder: Path) -> None:
    """End the PostgreSQL of a `postroad dev` that was killed there."""
    with suppress(OSError, ValueError):  # Gone, as it should be.
        postmaster = (folder / ".postroad" / "data" / "postmaster.pid").read_text()
        os.kill(int(postmaster.splitlines()[0]), signal.SIGQUIT)


def walk(text: str, folder: Path, programs: str, *, installed: bool, output: IO[str] | int, limit: float) -> str | None:
    """Do what the page says; what was printed, where `output` is a pipe.

    Raises:
        subprocess.CalledProcessError: a line failed.
        subprocess.TimeoutExpired: the page did not come to its end within `limit` seconds.
    """
    save_files(text, folder)
    return typed(lines(text, installed=installed), folder, programs, output=output, limit=limit)


def typed(script: str, folder: Path, programs: str, *, output: IO[str] | int, limit: float) -> str | None:
    """Type `script` into one bash, with these `programs`, and end what it leaves; returns and raises as `walk`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    env["PATH"] = os.pathsep.join([programs, env["PATH"]])
    with subprocess.Popen(
        ["bash", "-e", "-c", script], cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL, stdout=output,
        stderr=subprocess.STDOUT, start_new_session=True,
    ) as bash:  # fmt: skip
        try:
            printed, _ = bash.communicate(timeout=limit)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(bash.pid, signal.SIGKILL)
    if bash.returncode:
        raise subprocess.CalledProcessError(bash.returncode, "bash", printed)
    return printed


def main() -> None:
    """Walk it in a fresh virtual environment."""
    with a_folder() as folder:
        environment = folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        sys.stdout.flush()
        walk(
            PAGE.read_text("utf-8"), folder, str(environment / "bin"), installed=False, output=sys.stdout, limit=1200
        )  # fmt: skip


if __name__ == "__main__":
    main()
