"""The command ``postroad dev``: an embedded PostgreSQL with a migrated schema, kept running for a developer."""

from __future__ import annotations

import asyncio
import json as documents
import shlex
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from postroad.errors import Unavailable, UsageError
from postroad.runtime.settings import POSTGRES
from postroad.sql.migrations import Roles, migrate
from postroad.testing.postgres import wheel_bin_dir
from postroad.testing.process import listens
from postroad.testing.servers import PostgresServer

FOLDER: Final = Path(".postroad")
DATABASE: Final = "app"
RUNTIME, AUTHOR = "app_runtime", "app_author"
DAYS_AHEAD: Final = 7
_PORT: Final = "port"
_PID_LINE, _PORT_LINE = 0, 3  # In postmaster.pid (src/include/utils/pidfile.h), counted from nought.
# What the owner makes in `public`, now or before, is the Apps' to use: a developer's database has no secrets.
_OPEN: Final = f"""
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {RUNTIME}, {AUTHOR};
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {RUNTIME}, {AUTHOR};
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {RUNTIME}, {AUTHOR};
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO {RUNTIME}, {AUTHOR};
"""


@dataclass(frozen=True, slots=True)
class Stack:
    """What stands, as a developer's processes reach it."""

    settings: dict[str, str]
    owner_url: str
    author_url: str
    folder: Path
    programs: Path
    """Where ``psql`` lies."""

    def as_json(self) -> str:
        """The same as one JSON document on one line."""
        urls = {"owner": self.owner_url, "author": self.author_url}
        return documents.dumps({"settings": self.settings, **urls, "programs": str(self.programs)}) + "\n"

    def lines(self) -> list[str]:
        """What to type in another terminal."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.settings.items()]
        return [
            *exports,
            f"# to publish with nothing but INSERT:  {self.author_url}",
            f"# as the owner, for tables of your own: {self.owner_url}",
            f"# psql lies in {self.programs}",
            f"# the data lie in {self.folder}; Ctrl-C stops it",
        ]


def dev(
    *,
    folder: Annotated[Path, typer.Option(help="Where the data are kept from one run to the next.")] = FOLDER,
    port: Annotated[
        int, typer.Option(help="The port of PostgreSQL; 0 takes the last one, or a free one.", min=0, max=65535)
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Keep a PostgreSQL of your own running, migrated and ready, and print the settings to export. Ctrl-C stops it.

    It needs pip alone (`postroad[run,embedded]`): the PostgreSQL transport carries events, with no broker. The server
    listens on this machine only and trusts everyone on it: never for production.
    """
    word = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: word.set())
    with server(folder, port) as running:
        stack = prepared(running, folder)
        sys.stdout.write(stack.as_json() if json else "".join(f"{line}\n" for line in stack.lines()))
        sys.stdout.flush()
        while not word.wait(1):
            if not running.alive:
                raise Unavailable("PR301", f"PostgreSQL ended by itself; see {folder / 'postgres.log'}")


def server(folder: Path, port: int) -> PostgresServer:
    """The server of `folder`, which is made if it is not there.

    Raises:
        UsageError: another one runs there, the port is in use, or the folder cannot be used.
    """
    place = folder.resolve()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("PR107", f"--folder {str(folder)!r} cannot be used: {error.strerror}") from error
    running = running_in(place)
    if running is not None:
        pid, taken = running
        raise UsageError("PR107", f"PostgreSQL already runs in {folder}: pid {pid}, port {taken}; stop it first")
    if port and listens(port):
        raise UsageError("PR107", f"--port: port {port} is in use; name another, or none")
    return PostgresServer(place, port=port or _former(place))


def running_in(place: Path) -> tuple[int, int] | None:
    """The process id and the port of the server that runs in `place`; None where none does, whatever one left."""
    try:
        lines = (place / "data" / "postmaster.pid").read_text().splitlines()
        pid, port = int(lines[_PID_LINE]), int(lines[_PORT_LINE])
    except (OSError, ValueError, IndexError):
        return None
    return (pid, port) if listens(port) else None


def _former(place: Path) -> int | None:
    """The port of the last run, so that settings that were exported stay right; None where it is taken, or unknown."""
    try:
        port = int((place / _PORT).read_text())
    except (OSError, ValueError):
        return None
    return None if listens(port) else port


def prepared(running: PostgresServer, folder: Path) -> Stack:
    """Roles, database and schema, made or brought up to this release."""
    running.add_role(RUNTIME)
    running.add_role(AUTHOR)
    if not running.execute(f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'"):  # noqa: S608 - a constant
        running.create_database(DATABASE)
    owner, runtime = running.url(DATABASE), running.url(DATABASE, RUNTIME)
    roles = Roles(runtime=RUNTIME, author=AUTHOR)
    asyncio.run(migrate(owner, schema="postroad", roles=roles, days_ahead=DAYS_AHEAD))
    running.execute(_OPEN, database=DATABASE)
    settings = {
        "POSTROAD_DATABASE_URL": runtime, "POSTROAD_BROKER_URL": POSTGRES, "POSTROAD_TOPOLOGY": "apply",
    }  # fmt: skip
    (folder / _PORT).write_text(f"{running.port}\n")
    return Stack(settings, owner, running.url(DATABASE, AUTHOR), folder.resolve(), wheel_bin_dir())
