"""The examples as their pages say, line by line, in fresh virtual environments, with the wheel: `make examples`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from docs.walk import end_server, typed
from examples.services import SERVICES, copied, lines
from packages.built import Built, run


def main(folder: Path) -> None:
    """Build once; for each example do what its page says: install, test, run, ask, stop."""
    wheel = Built.of(folder).wheel
    for name in SERVICES:
        fresh, service = folder / f"environment-{name}", copied(name, folder)
        run(sys.executable, "-m", "venv", str(fresh))
        sys.stdout.write(f"\n{name}\n")
        sys.stdout.flush()
        try:
            typed(lines(name, wheel=wheel), service, str(fresh / "bin"), output=sys.stdout, limit=900)
        finally:
            end_server(service)


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)  # Postroad is what was installed there.
    with tempfile.TemporaryDirectory(prefix="postroad-examples-", dir="/tmp") as made:
        Path(made).chmod(0o755)  # PostgreSQL's user may enter, too.
        main(Path(made))
