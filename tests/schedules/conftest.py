"""The scheduler's tests stand on the same furniture as those of the work room."""

from __future__ import annotations

from work.conftest import here, sql, there

__all__ = ["here", "sql", "there"]
