"""A server's process and its private folder, which never outlive the process that asked for them."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from postroad.clock import seconds
from postroad.errors import Unavailable

# Below Linux's ephemeral range (32768 and up), so that a server that is down cannot lose its port to somebody's
# outgoing connection.
_PORTS = range(20_000, 32_000)
_SHORT = "/tmp"  # noqa: S108 - made by mkdtemp; TMPDIR may be too long for a socket
_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it

# The shell waits on a pipe whose other end we hold. A line dismisses it; the end of the pipe means that we are gone,
# however that came about. The folder a process works in tells ours from a stranger that was given the same id since;
# of one that runs below another root, the name ends with it.
_KEEPER = """
read -r line && exit 0
folder=$1 remove=$2; shift 2
for file in "$@"; do
  id=$(head -n 1 "$file" 2>/dev/null) || continue
  case $(readlink "/proc/$id/cwd" 2>/dev/null || echo "$folder") in *"$folder"*) kill -KILL "$id" ;; esac
done 2>/dev/null
[ "$remove" = no ] || { sleep 1; rm -rf -- "$folder"; }
"""


def free_port() -> int:
    """A loopback TCP port that nothing listens on now, below the ports that the system hands out by itself."""
    while True:
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until(
    condition: Callable[[], bool], *, within: timedelta = seconds(30), every: timedelta = seconds(0.02)
) -> bool:
    """Look at `condition` until it holds; False once `within` has passed without it."""
    deadline = time.monotonic() + within.total_seconds()
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every.total_seconds())  # the poll itself: a process seen from outside
    return True


def listens(port: int) -> bool:
    """Whether something accepts connections on this loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def descendants(pid: int) -> list[int]:
    """The ids of all processes below `pid`, as the operating system has them now."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _parents() -> Iterator[tuple[int, int]]:
    if not sys.platform.startswith("linux"):
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        for line in listing.stdout.splitlines():
            pid, parent = line.split()
            yield int(pid), int(parent)
        return
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue  # It ended while we looked.
        yield int(entry.name), int(stat.rpartition(")")[2].split()[1])


def in_memory(room: int) -> Path | None:
    """Where a folder lies in memory, if `room` bytes are free there: a database is copied in a tenth of the time."""
    found = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= room
    return _MEMORY if found else None


class Folder:
    """A private folder for one server, kept by a watcher that ends the server and removes the folder once we are gone.

    With `path` the folder is the caller's: it is made where it is missing and never removed. Otherwise it lies in the
    system's place for temporary files, or in `place`, is short enough for a Unix socket, and is removed by `close`.
    """

    def __init__(
        self, path: Path | None = None, *, prefix: str, pid_files: Sequence[str] = (), place: Path | None = None
    ) -> None:
        self._ours = path is None
        if path is None:
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=place or _SHORT))
        self.path = path.resolve()
        self.path.mkdir(parents=True, exist_ok=True)
        files = [str(self.path / name) for name in pid_files]
        remove = "yes" if self._ours else "no"
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "postroad-keeper", str(self.path), remove, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def close(self) -> None:
        """Dismiss the watcher and remove the folder, unless it is the caller's. Repeating is harmless."""
        if self._keeper.poll() is None:
            self._keeper.communicate(b"done\n")
        if self._ours:
            shutil.rmtree(self.path, ignore_errors=True)

    def launch(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        output: str,
        account: tuple[int, int] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a server in this folder, its output appended to the file `output`; as another (uid, gid) if given."""
        with (self.path / output).open("ab") as log:
            return subprocess.Popen(
                [str(part) for part in command],
                cwd=self.path,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=None if account is None else account[0],
                group=None if account is None else account[1],
                extra_groups=None if account is None else [],
            )

    def tail(self, output: str, lines: int = 3) -> str:
        """The last lines of an output file, joined, for an error's one line."""
        try:
            text = (self.path / output).read_text(errors="replace")
        except OSError:
            return "no output"
        return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip()) or "no output"


def end(process: subprocess.Popen[bytes], number: signal.Signals, *, within: timedelta = seconds(60)) -> None:
    """Send a signal and wait for the end; SIGKILL once `within` has passed. One that is gone already is no error."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(within.total_seconds())
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def slay(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and everything below it, and wait until none of them runs."""
    below = descendants(process.pid) if process.poll() is None else []
    process.kill()
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    if not wait_until(lambda: not any(_runs(pid) for pid in below), within=seconds(10)):
        raise Unavailable("PR301", f"processes below {process.pid} survived SIGKILL")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # A zombie whose reaper is slow has let go of everything but its id.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not sys.platform.startswith("linux")


class Started(ABC):
    """A server that stands within its ``with`` block."""

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    @abstractmethod
    def close(self) -> None:
        """End it for good; harmless where it did not start."""

    def __enter__(self) -> Self:
        """Start; a failed start leaves nothing behind."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
