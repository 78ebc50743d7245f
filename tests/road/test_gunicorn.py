"""Four workers of gunicorn beside a process that runs: they publish, and do nothing else of Postroad's."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from road.roads import Road, until
from runtime.processes import Running, environment

pytestmark = pytest.mark.heavy
WORKERS, REQUESTS = 4, 120


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def ask(port: int, number: int) -> str:
    """The process that answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{number}", timeout=20) as answer:
        said: str = answer.read().decode()
        return said


@contextmanager
def gunicorn(road: Road, *options: str) -> Iterator[int]:
    """The port that it listens on."""
    port = free_port()
    given = {**road.settings, "WSGI_DATABASE_URL": road.postgres.url(road.name, "pr_author")}
    process = subprocess.Popen(
        [
            sys.executable, "-m", "gunicorn", "--workers", str(WORKERS), "--bind", f"127.0.0.1:{port}",
            "--worker-tmp-dir", "/dev/shm", "--no-control-socket", *options, "road.apps.wsgi:app",
        ],
        env=environment(**given), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(lambda: listens(port))
        yield port
    finally:
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "Exception" not in said, said


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("options", [(), ("--preload",)], ids=["each imports", "preload"])
def test_four_workers_of_gunicorn_publish_beside_a_process_that_runs(road: Road, options: tuple[str, ...]) -> None:
    running = Running("road.apps.whole:app", "--only", "dispatch,consume,work", **road.settings)
    road.processes.enter_context(running).ready()
    with gunicorn(road, *options) as port, ThreadPoolExecutor(8) as clients:
        workers = set(clients.map(lambda number: ask(port, number), range(REQUESTS)))
        road.await_seen(range(REQUESTS))
        sql = "SELECT DISTINCT holder FROM postroad.lease WHERE holder IS NOT NULL AND expires_at > now()"
        assert len(road.rows(sql)) == 1  # The process that runs, and no worker.
    assert len(workers) > 1
    assert road.seen() == Counter(range(REQUESTS))
    road.assert_nothing_charged()
