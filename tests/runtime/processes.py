"""Starts Apps and commands as processes, and reads what they log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Self

APPS = Path(__file__).parent / "apps"


def environment(**settings: str) -> dict[str, str]:
    """The environment of a process: none of our own settings but these; modules are found where they are found here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROAD_", "ORDERS_"))}
    path = os.pathsep.join(filter(None, [str(APPS), settings.get("PYTHONPATH"), kept.get("PYTHONPATH")]))
    return {**kept, **settings, "PYTHONPATH": path}


def import_app(name: str) -> ModuleType:
    """One of the apps' modules, imported once in this process as it is in theirs."""
    sys.path.insert(0, str(APPS))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(APPS))


def postroad(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "postroad", *arguments], env=environment(**settings), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


class Running:
    """A process of an App whose log (JSON lines on standard error) can be waited on."""

    def __init__(self, *arguments: str, **settings: str) -> None:
        given = {"POSTROAD_LOG": "json", "POSTROAD_HEALTH_PORT": "0", "POSTROAD_TOPOLOGY": "apply", **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "postroad", "run", *arguments], env=environment(**given), stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.lines: list[dict[str, Any]] = []
        self.plain: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                try:
                    self.lines.append(json.loads(line))
                except ValueError:
                    self.plain.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, name: str, *, within: float = 30, **fields: Any) -> dict[str, Any]:
        """The first record of the signal `name` with these fields."""
        deadline = time.monotonic() + within
        with self._news:
            while True:
                for line in self.lines:
                    if line.get("signal") == name and all(line.get(key) == value for key, value in fields.items()):
                        return line
                left = deadline - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    raise AssertionError(f"no {name} {fields}: {self.lines} {self.plain}")
                self._news.wait(min(left, 0.2))

    def ready(self) -> int:
        """Wait until the process is ready; its health port."""
        port = int(self.wait_for("health_serving")["port"])
        deadline = time.monotonic() + 30
        while fetch(port, "/health/ready")[0] != 200:
            assert time.monotonic() < deadline, (self.lines, self.plain, fetch(port, "/health/ready"))
            time.sleep(0.05)  # a poll: another process tells nothing
        return port

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Send a signal and wait for the end; the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(60)
        taken = time.monotonic() - began
        self._reader.join(5)
        return taken


def fetch(port: int, path: str, *, method: str = "GET") -> tuple[int, str]:
    """The status and body of one of the health pages."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method), timeout=5
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
