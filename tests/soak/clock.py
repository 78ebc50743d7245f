"""A process's own time of day, which can be stepped while its monotonic clocks go on: libfaketime, preloaded."""

from __future__ import annotations

from pathlib import Path

from postroad.errors import UsageError

HOUR = 3600


class Clock:
    """The time of day of whatever process is started with `environment`."""

    def __init__(self, file: Path) -> None:
        """It goes right; `file` says by how much it is off, and is read at every look at the clock."""
        found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        if not found:
            raise UsageError("PR107", "libfaketime is missing; on Debian: apt-get install libfaketime")
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(found[0]), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip
        self.step(0)

    def step(self, off: int) -> None:
        """From now on it is off by so many seconds."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{off:+d}\n")
        new.replace(self._file)
