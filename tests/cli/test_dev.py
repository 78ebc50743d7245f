"""``postroad dev``: the stack of a developer comes up, stays, keeps its data and port, and ends with Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroad.testing.servers import Postgres
from runtime.processes import environment

pytestmark = pytest.mark.heavy


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the server's user can reach it, and short: it holds a socket."""
    with tempfile.TemporaryDirectory(prefix="postroad-dev-", dir="/tmp", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield Path(made) / "stack"


@contextmanager
def started(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """It is gone afterwards, whatever happens."""
    command = [sys.executable, "-m", "postroad", "dev", "--folder", str(folder), *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), text=True, **pipes) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()


def end(running: subprocess.Popen[str]) -> int:
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    return running.returncode


def test_it_prints_settings_that_work_and_keeps_data_and_port(folder: Path) -> None:
    told = []
    for turn in range(2):
        with started(folder, "--json") as running:
            assert running.stdout is not None
            said = json.loads(running.stdout.readline())
            assert said["settings"]["POSTROAD_BROKER_URL"] == "postgres:"
            server = Postgres(said["owner"])
            if turn == 0:
                server.execute("CREATE TABLE kept (id int)", database="app")
            assert server.execute("SELECT count(*) FROM kept, postroad.work", database="app") == [("0",)]
            told.append(said)
            assert end(running) == 0
    assert told[0] == told[1]


def test_a_person_is_told_what_to_export(folder: Path) -> None:
    with started(folder) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(3)]
        assert [line.partition("=")[0] for line in lines] == [
            "export POSTROAD_DATABASE_URL", "export POSTROAD_BROKER_URL", "export POSTROAD_TOPOLOGY",
        ]  # fmt: skip
        assert end(running) == 0


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with started(tmp_path / "file" / "below") as running:
        _, errors = running.communicate(timeout=60)
        assert running.returncode == 2
    assert len(errors.splitlines()) == 1
    assert "--folder" in errors


def test_a_folder_in_which_one_runs_already_is_one_line(folder: Path) -> None:
    with started(folder, "--json") as first:
        assert first.stdout is not None
        first.stdout.readline()
        with started(folder) as third:
            _, errors = third.communicate(timeout=60)
            assert third.returncode == 6
        assert "PostgreSQL did not start" in errors
        assert len(errors.splitlines()) == 1
        assert end(first) == 0
