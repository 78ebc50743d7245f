"""Where RabbitMQ and Erlang lie on this machine."""

from __future__ import annotations

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


def rabbitmq_remedy() -> str | None:
    """None where a node can be started, else the one line that says what to install."""
    if shutil.which("erl") is not None and package_sbin() is not None:
        return None
    if Path("/etc/debian_version").exists():
        return "RabbitMQ is not installed; as root: apt-get install --no-install-recommends rabbitmq-server"
    return "RabbitMQ is not installed; see https://www.rabbitmq.com/docs/download (macOS: brew install rabbitmq)"


def package_sbin() -> Path | None:
    """The folder of the package's own scripts: the wrappers in the system's path change the user."""
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
