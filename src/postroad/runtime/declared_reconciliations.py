"""The reconciliations that an App is given, checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from postroad.reconcile.reconciliation import OWN, Reconciliation


def compared(given: object) -> tuple[tuple[Reconciliation, ...], list[str], list[str]]:
    """Those that are some; names that are there twice; and what else is wrong."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        return (), [], [f"reconciliations is {type(given).__name__}, not a list of reconciliations"]
    listed = list(given)
    strangers = dict.fromkeys(type(item).__name__ for item in listed if not isinstance(item, Reconciliation))
    wrong = [f"reconciliations holds {name}, not a Reconciliation" for name in strangers]
    found = tuple(item for item in listed if isinstance(item, Reconciliation))
    counts = Counter(item.name for item in found)
    twice = [f"reconciliation {name!r} is declared twice; rename one" for name, count in counts.items() if count > 1]
    wrong += [
        f"reconciliation {item.name!r}: names that begin with {OWN!r} are Postroad's own; choose another"
        for item in found
        if item.name.startswith(OWN)
    ]
    return found, twice, wrong
