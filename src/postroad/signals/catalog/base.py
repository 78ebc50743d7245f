"""What every record of the catalog is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Level(StrEnum):
    """How much a person should mind."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that happened. Fields are safe to print: never a payload, a key or a password."""

    level: ClassVar[Level] = Level.DEBUG
