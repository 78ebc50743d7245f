"""The services under examples/, and copies of them to run."""

from __future__ import annotations

import shutil
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVICES = sorted(path.parent.name for path in EXAMPLES.glob("*/requirements.txt"))


def copied(name: str, to: Path) -> Path:
    """Its folder, as it stands in the repository."""
    return Path(shutil.copytree(EXAMPLES / name, to / name, ignore=shutil.ignore_patterns("*cache*")))
