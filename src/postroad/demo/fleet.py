"""The processes of the two services: started, watched, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from postroad.clock import seconds
from postroad.demo import gauges
from postroad.errors import Unavailable
from postroad.runtime.exits import Exit
from postroad.testing.process import end, free_port, wait_until

PACKAGE_ROOT: Final = Path(__file__).parents[2]
START_LIMIT: Final = seconds(60)


class Role(StrEnum):
    """What a process of the demo does."""

    CONSUMER = "consumer"
    DISPATCHER = "dispatcher"


@dataclass(frozen=True, slots=True)
class Program:
    """How a role is run: the App's module, the parts of it that run, and its environment."""

    app: str
    parts: str
    environment: Mapping[str, str]


@dataclass(slots=True)
class Member:
    """One running process."""

    role: Role
    process: subprocess.Popen[bytes]
    health: int


class Fleet:
    """Keeps so many processes of each role running; whatever dies is started again."""

    def __init__(self, folder: Path, programs: Mapping[Role, Program]) -> None:
        """Keep the processes' logs and gauges in `folder`."""
        self._folder = folder
        self._programs = programs
        self._gauges = folder / "gauges"
        self._gauges.mkdir(parents=True)
        self._members: list[Member] = []
        self.deaths: Counter[Role] = Counter()
        """How many processes of a role the operating system reported as ended by SIGKILL."""

    def start(self, role: Role, *, crash: str | None = None) -> Member:
        """Start one process; with `crash` it is armed to kill itself at that point."""
        program = self._programs[role]
        health = free_port()
        environment = {
            **inherited(),
            **program.environment,
            "POSTROAD_HEALTH_PORT": str(health),
            gauges.FOLDER: str(self._gauges),
            **({gauges.CRASH: crash} if crash else {}),
        }
        with (self._folder / f"{role}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "postroad", "run", program.app, "--only", program.parts],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        member = Member(role, process, health)
        self._members.append(member)
        return member

    def await_ready(self) -> None:
        """Return once every process says that it is ready.

        Raises:
            Unavailable: one ended, or was not ready in time; the message ends with its last words.
        """
        for member in self._members:
            done = wait_until(lambda m=member: m.process.poll() is not None or _ready(m.health), within=START_LIMIT)  # type: ignore[misc]
            if not done or member.process.poll() is not None:
                raise Unavailable("PR301", f"the demo's {member.role} did not start: {self.last_words(member.role)}")

    def last_words(self, role: Role) -> str:
        """The last line that a role's processes logged."""
        lines = (self._folder / f"{role}.log").read_text("utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def revive(self) -> list[Member]:
        """Start a new process for each that was killed since the last call; those that were.

        One that met a server's restart while it started itself is started again, as any supervisor would.

        Raises:
            Unavailable: one ended in another way; the message ends with its last words.
        """
        dead = [member for member in self._members if member.process.poll() is not None]
        for member in dead:
            self._members.remove(member)
            if member.process.returncode not in {-signal.SIGKILL, Exit.UNAVAILABLE}:
                raise Unavailable("PR301", f"the demo's {member.role} ended by itself: {self.last_words(member.role)}")
            self.deaths[member.role] += member.process.returncode == -signal.SIGKILL
            self.start(member.role)
        return dead

    def members(self, role: Role) -> list[Member]:
        """The running processes of a role, the oldest first."""
        return [member for member in self._members if member.role is role]

    def gauges(self) -> dict[int, gauges.Gauges]:
        """What every process, dead or alive, has counted."""
        return gauges.read(self._gauges)

    def held(self) -> int:
        """How many deliveries and publishes the living processes hold."""
        counted = self.gauges()
        living = [counted[m.process.pid] for m in self._members if m.process.pid in counted]
        return sum(one.unacked + one.unconfirmed for one in living)

    def kill_while_holding(self, member: Member) -> bool:
        """SIGKILL `member` if it holds unacked or unconfirmed work just now; whether it did."""
        if not self._holds(member):
            return False
        os.kill(member.process.pid, signal.SIGSTOP)
        holds = self._holds(member)
        os.kill(member.process.pid, signal.SIGKILL if holds else signal.SIGCONT)
        if holds:
            member.process.wait()
        return holds

    def kill_scheduler(self) -> bool:
        """SIGKILL the process that has planned occurrences, if one has; whether one had."""
        counted = self.gauges()
        for member in self._members:
            if counted.get(member.process.pid, gauges.Gauges()).planned:
                member.process.kill()
                member.process.wait()
                return True
        return False

    def _holds(self, member: Member) -> bool:
        counted = self.gauges().get(member.process.pid, gauges.Gauges())
        return counted.unacked + counted.unconfirmed > 0

    def replace(self, member: Member, *, crash: str) -> Member:
        """Stop `member` in good order and start an armed one in its place, as a rolling deploy would."""
        self._members.remove(member)
        end(member.process, signal.SIGTERM, within=seconds(30))
        return self.start(member.role, crash=crash)

    def stop(self, *, within: timedelta = seconds(30)) -> None:
        """Stop every process in good order; SIGKILL for what is still there after `within`."""
        for member in self._members:
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGTERM)
        for member in self._members:
            try:  # A second SIGTERM would hurry it to its last step.
                member.process.wait(within.total_seconds())
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
        self._members.clear()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=1) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004 - HTTP's OK
    except (OSError, urllib.error.URLError):
        return False


def inherited() -> dict[str, str]:
    """The environment of a process of the demo: ours, without Postroad's settings, able to import this package."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    path = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path}
