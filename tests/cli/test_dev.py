"""``postroad dev``: the stack of a developer comes up, stays, keeps its data and port, and ends with Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroad.cli.dev import running_in
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
        port = json.loads(first.stdout.readline())["owner"].partition("@127.0.0.1:")[2].partition("/")[0]
        with started(folder) as second:
            _, errors = second.communicate(timeout=60)
            assert second.returncode == 2
        assert len(errors.splitlines()) == 1
        assert re.search(rf"already runs in .*stack: pid [0-9]+, port {port};", errors)
        assert end(first) == 0


def test_a_port_that_is_taken_is_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(folder, "--port", f"{port}") as one:
            _, errors = one.communicate(timeout=60)
    assert one.returncode == 2
    assert len(errors.splitlines()) == 1
    assert f"port {port} is in use" in errors


def test_what_a_killed_one_left_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for left in ("", "4711\n/data\n0\n1\n"):
        (tmp_path / "data" / "postmaster.pid").write_text(left)
        assert running_in(tmp_path) is None
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        (tmp_path / "data" / "postmaster.pid").write_text(f"4711\n/data\n0\n{port}\n")
        assert running_in(tmp_path) == (4711, port)


def test_tables_that_the_owner_makes_can_be_used_by_both_roles(folder: Path) -> None:
    with started(folder, "--json") as running:
        assert running.stdout is not None
        said = json.loads(running.stdout.readline())
        assert (Path(said["programs"]) / "psql").is_file()
        Postgres(said["owner"]).execute("CREATE TABLE orders (id serial PRIMARY KEY, note text)", database="app")
        for url in (said["settings"]["POSTROAD_DATABASE_URL"], said["author"]):
            made = "INSERT INTO orders (note) VALUES ('x') RETURNING note"
            assert Postgres(url).execute(made, database="app") == [("x",)]
        assert end(running) == 0
