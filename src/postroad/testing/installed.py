"""Where RabbitMQ and Erlang lie on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

_PLACES: Final = (
    "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",  # Debian, Ubuntu, Fedora
    "/opt/homebrew/opt/rabbitmq/sbin",
    "/usr/local/opt/rabbitmq/sbin",
    "/opt/rabbitmq/sbin",  # the official container image
)
_ERLANG_PLACES: Final = (
    "/usr/lib/erlang",
    "/usr/lib64/erlang",
    "/opt/homebrew/opt/erlang/lib/erlang",
    "/opt/erlang/lib/erlang",
)


OTHER_RABBITMQ: Final = "POSTROAD_TEST_RABBITMQ_SBIN"
"""Names a folder with another RabbitMQ's `rabbitmq-server` and `rabbitmqctl`."""
OTHER_POSTGRES: Final = "POSTROAD_TEST_POSTGRES_BIN"
"""Names a folder with another PostgreSQL's binaries."""


def other(variable: str) -> Path | None:
    """The folder that a variable of the environment names instead of the one that would be found."""
    given = os.environ.get(variable, "")
    return Path(given) if given else None


def rabbitmq_remedy() -> str | None:
    """None where a node can be started, else the one line that says what to install."""
    if shutil.which("erl") is not None and package_sbin() is not None:
        return None
    if Path("/etc/debian_version").exists():
        return "RabbitMQ is not installed; as root: apt-get install --no-install-recommends rabbitmq-server"
    return "RabbitMQ is not installed; see https://www.rabbitmq.com/docs/download (macOS: brew install rabbitmq)"


def package_sbin() -> Path | None:
    """The folder of the package's own scripts: the wrappers in the system's path change the user."""
    given = other(OTHER_RABBITMQ)
    if given is not None:
        return given
    for place in _PLACES:
        for found in sorted(Path("/").glob(place.removeprefix("/")), reverse=True):
            if (found / "rabbitmq-server").exists():
                return found
    return None


def erlang_tool(name: str) -> str | None:
    """One of Erlang's programs, in the path or in the runtime's own folder (not all packages link them)."""
    found = shutil.which(name)
    if found is not None:
        return found
    erl = shutil.which("erl")
    roots = [*_ERLANG_PLACES] if erl is None else [str(Path(erl).resolve().parent.parent), *_ERLANG_PLACES]
    for root in roots:
        for tool in sorted(Path(root).glob(f"erts-*/bin/{name}"), reverse=True):
            return str(tool)
    return None
