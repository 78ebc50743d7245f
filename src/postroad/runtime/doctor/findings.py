"""What a check is, and what it can find."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad a finding is. An error means that something is or will be lost, or does not work at all."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    NOT_CHECKED = "not checked"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `name` is stable; `lost` and `remedy` are empty where all is well."""

    name: str
    severity: Severity
    found: str
    lost: str = ""
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `json.dumps`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at: its stable name, what would be lost, and what to do. It makes its findings."""

    name: str
    looks_at: str
    lost: str
    remedy: str

    def ok(self, found: str) -> Finding:
        """All is well."""
        return Finding(self.name, Severity.OK, found)

    def note(self, found: str) -> Finding:
        """Nothing is wrong, but it is worth knowing."""
        return Finding(self.name, Severity.NOTE, found, self.lost, self.remedy)

    def warning(self, found: str) -> Finding:
        """It works now, and something may be lost or slow later."""
        return Finding(self.name, Severity.WARNING, found, self.lost, self.remedy)

    def error(self, found: str) -> Finding:
        """Something is or will be lost, or does not work."""
        return Finding(self.name, Severity.ERROR, found, self.lost, self.remedy)

    def not_checked(self, why: str) -> Finding:
        """Nobody looked; `why` says what it takes."""
        return Finding(self.name, Severity.NOT_CHECKED, why)

    def judged(self, severity: Severity, found: str) -> Finding:
        """As severe as `severity` says."""
        if severity in {Severity.OK, Severity.NOT_CHECKED}:
            return Finding(self.name, severity, found)
        return Finding(self.name, severity, found, self.lost, self.remedy)
