"""``postroad dev``: the stack of a developer comes up, stays, keeps its data and port, and ends with Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from postroad.testing.servers import Postgres
from runtime.processes import environment

pytestmark = pytest.mark.heavy


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "postroad", "dev", "--folder", str(folder), *options]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(running: subprocess.Popen[str]) -> int:
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    return running.returncode


def test_it_prints_settings_that_work_and_keeps_data_and_port(tmp_path: Path) -> None:
    folder = (
        Path("/tmp") / f"postroad-dev-{tmp_path.name}"
    )  # The server's user has to reach it, and a socket's path is short.
    urls = []
    for turn in range(2):
        running = start(folder, "--json")
        assert running.stdout is not None
        told = json.loads(running.stdout.readline())
        assert told["settings"]["POSTROAD_BROKER_URL"] == "postgres:"
        server = Postgres(told["owner"])
        if turn == 0:
            server.execute("CREATE TABLE kept (id int)", database="app")
        assert server.execute("SELECT count(*) FROM kept, postroad.work", database="app") == [("0",)]
        urls.append(told)
        assert end(running) == 0
    assert urls[0] == urls[1]


def test_a_person_is_told_what_to_export(tmp_path: Path) -> None:
    running = start(Path("/tmp") / f"postroad-dev-{tmp_path.name}")
    assert running.stdout is not None
    lines = [running.stdout.readline() for _ in range(3)]
    assert [line.partition("=")[0] for line in lines] == [
        "export POSTROAD_DATABASE_URL", "export POSTROAD_BROKER_URL", "export POSTROAD_TOPOLOGY",
    ]  # fmt: skip
    assert end(running) == 0


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    running = start(tmp_path / "file" / "below")
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 2
    assert len(errors.splitlines()) == 1
    assert "--folder" in errors
