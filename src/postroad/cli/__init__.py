"""The command line: `main` finds the command, and turns every error into one line and an exit code."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDS = ("typer", "rich", "asyncpg", "cronsim", "pika", "prometheus_client")


def main() -> None:
    """Run the command of ``sys.argv`` and end the process with its exit code (see ``docs/cli.md``)."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"postroad: {', '.join(missing)} not installed; pip install 'postroad[run]' [PR108]\n")
        raise SystemExit(2)
    from postroad.cli.commands import execute

    raise SystemExit(execute(sys.argv[1:]))
