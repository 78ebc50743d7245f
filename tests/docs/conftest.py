"""The how-to pages are run against the furniture of the consume room."""

from __future__ import annotations

from consume.conftest import here, kind, queue, sql

__all__ = ["here", "kind", "queue", "sql"]
