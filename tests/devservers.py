"""The servers that a run of the tests shares, and those that stay up between runs.

eval "$(python tests/devservers.py start)"     start both, or find them running, and point later runs at them
python tests/devservers.py stop                end them
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from postroad.testing.process import in_memory
from postroad.testing.servers import PostgresServer, RabbitNode

VARIABLES = {"postgres": "POSTROAD_TEST_POSTGRES_URL", "rabbit": "POSTROAD_TEST_RABBIT"}
DURABLE = Path(tempfile.gettempdir()) / f"postroad-devservers-{os.getuid()}"
START_WITHIN = 120.0
ROOM = 4 * 1024**3  # What the databases of a run may need at once, those of a million rows among them.


def shared(kind: str, folder: Path, *, watch: int) -> str:
    """What reaches the one server of this kind that `folder` stands for; the first to ask starts it.

    The server ends with the process `watch` (0: never by itself), or by `end`.
    """
    folder.mkdir(exist_ok=True, mode=0o700)
    with _locked(folder / f"{kind}.lock"):
        found = _running(folder / f"{kind}.json")
        if found is not None:
            return found
        log = folder / f"{kind}.log"
        with log.open("ab") as output:
            host = subprocess.Popen(
                [sys.executable, __file__, "serve", kind, str(folder), str(watch)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_WITHIN
        while (found := _running(folder / f"{kind}.json")) is None:
            if host.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text(errors="replace").strip().splitlines()
                raise RuntimeError(f"no {kind} server: {lines[-1] if lines else 'it did not start in time'}")
            time.sleep(0.02)  # a poll: another process tells nothing
        host.returncode = 0  # It outlives us on purpose; Popen need not complain.
        return found


def end(folder: Path) -> None:
    """End the servers of `folder`; none running is no error."""
    for state in folder.glob("*.json"):
        host = json.loads(state.read_text())["host"]
        if not _alive(host):
            state.unlink(missing_ok=True)
            continue
        os.kill(host, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while state.exists() and time.monotonic() < deadline:
            time.sleep(0.02)  # a poll: another process tells nothing


def serve(kind: str, folder: Path, watch: int) -> None:
    """Run one server until SIGTERM, or the end of the watched process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state = folder / f"{kind}.json"
    with PostgresServer(place=in_memory(ROOM)) if kind == "postgres" else RabbitNode() as server:
        reach = server.url() if isinstance(server, PostgresServer) else server.address.to_json()
        ready = state.with_suffix(".new")
        ready.write_text(json.dumps({"host": os.getpid(), "reach": reach}))
        ready.rename(state)
        try:
            _await_end(watch)
        finally:
            server.close()
            state.unlink(missing_ok=True)
    if watch != 0:  # Nobody is left to sweep up.
        shutil.rmtree(folder, ignore_errors=True)


def _await_end(watch: int) -> None:
    if watch == 0:
        while True:
            signal.pause()
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(ProcessLookupError):
            select.select([os.pidfd_open(watch)], [], [])
        return
    while _alive(watch):
        time.sleep(0.5)  # a poll: another process tells nothing


def _running(state: Path) -> str | None:
    try:
        content = json.loads(state.read_text())
    except FileNotFoundError:
        return None
    if not _alive(content["host"]):
        state.unlink(missing_ok=True)
        return None
    reach: str = content["reach"]
    return reach


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("start", "stop"):
        commands.add_parser(name).add_argument("--folder", type=Path, default=DURABLE)
    server = commands.add_parser("serve")
    server.add_argument("kind", choices=list(VARIABLES))
    server.add_argument("folder", type=Path)
    server.add_argument("watch", type=int)
    given = parser.parse_args()
    if given.command == "serve":
        serve(given.kind, given.folder, given.watch)
    elif given.command == "stop":
        end(given.folder)
    else:
        for kind, variable in VARIABLES.items():
            print(f"export {variable}={shlex.quote(shared(kind, given.folder, watch=0))}")  # noqa: T201 - for the shell


if __name__ == "__main__":
    main()
