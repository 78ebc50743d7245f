"""The demo's consumer service with occurrences that are not unique: those of each backfill are new."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from postroad.demo.punctuality import app
from postroad.schedules import settle

real = settle.dues
numbers = count(1)


def beside(*arguments: Any, **options: Any) -> Iterator[datetime]:
    """The same due times, as nobody else has them."""
    number = next(numbers)
    return (due + timedelta(microseconds=number) for due in real(*arguments, **options))


settle.dues = beside  # type: ignore[assignment]

__all__ = ["app"]
