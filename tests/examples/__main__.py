"""The examples in fresh virtual environments, with the wheel that users get: `make examples`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from examples.services import SERVICES, copied
from packages.built import Built, Environment, run


def main(folder: Path) -> None:
    """Build once; for each example install what its requirements name, and run its tests by its own pytest."""
    wheel = Built.of(folder).wheel
    for name in SERVICES:
        service = copied(name, folder)
        fresh = Environment(folder / f"environment-{name}")
        fresh.install(str(wheel), "--requirement", str(service / "requirements.txt"))
        sys.stdout.write(f"{name}: {run(fresh.python, '-I', '-m', 'pytest', '-q', str(service), folder=service)}")


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)  # Postroad is what was installed there.
    with tempfile.TemporaryDirectory(prefix="postroad-examples-") as made:
        main(Path(made))
