"""The cases that public suites and issue threads of other schedulers gave (``tests/data``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"


def cases(name: str) -> dict[str, dict[str, Any]]:
    """The cases of a file by id."""
    found = json.loads((DATA / f"{name}.json").read_text("utf-8"))["cases"]
    return {case["id"]: case for case in found}
