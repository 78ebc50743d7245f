"""The exit codes of every command, and which error ends with which."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from postroad.errors import (
    AccessRefused,
    PostroadError,
    SchemaError,
    SettingsError,
    TopologyError,
    Unavailable,
    UsageError,
)


class Exit(IntEnum):
    """How a command or a process ended; supervisors and deploy scripts may rely on the numbers."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    SETTINGS = 3
    SCHEMA = 4
    REFUSED = 5
    UNAVAILABLE = 6
    TOPOLOGY = 7
    INTERNAL = 70
    FORCED = 75
    STOPPED = 130


MEANINGS: Final[dict[Exit, str]] = {
    Exit.OK: "done; for `run`: stopped in order, within the grace period",
    Exit.FINDINGS: "a check found something: `doctor`, `reconcile run`, `topology verify`, `catalog check`, `golden`; "
    "the answer was no: `adopt`, `quarantine`, `events redact`, `replay`",
    Exit.USAGE: "wrong arguments, a declaration that is not valid, or `module:app` cannot be imported",
    Exit.SETTINGS: "a setting is missing or not valid; every wrong one is named",
    Exit.SCHEMA: "the database schema is missing, too old or too new",
    Exit.REFUSED: "access refused: wrong password, or rights are missing",
    Exit.UNAVAILABLE: "the database or the broker cannot be reached in time",
    Exit.TOPOLOGY: "the broker's queues, exchanges or bindings differ from the declared ones",
    Exit.INTERNAL: "an error of Postroad or of the App's own start; POSTROAD_DEBUG=1 shows the traceback",
    Exit.FORCED: "the grace period ended and something still ran; what it held is taken over when its lease expires",
    Exit.STOPPED: "stopped by Ctrl-C or SIGTERM; `quarantine retry`, `reconcile run` and `repair`: the same command "
    "goes on with the rest",
}
"""Each code and its meaning; ``docs/cli.md`` shows the same, and a test compares the two."""

_BY_ERROR: Final[tuple[tuple[type[PostroadError], Exit], ...]] = (
    (SettingsError, Exit.SETTINGS),
    (SchemaError, Exit.SCHEMA),
    (TopologyError, Exit.TOPOLOGY),
    (UsageError, Exit.USAGE),
    (AccessRefused, Exit.REFUSED),
    (Unavailable, Exit.UNAVAILABLE),
)


def exit_of(error: BaseException) -> Exit:
    """The exit code that an error ends a command with."""
    if isinstance(error, PostroadError) and error.code == "PR201":
        return Exit.SETTINGS
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.INTERNAL)
