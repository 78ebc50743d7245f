"""Of what types the options of a declaration are, for jobs and consumers alike."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from postroad.failures import Rules
from postroad.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Mapping


class Own:
    """Stands in types for what a handler gets without ``on=``: asyncpg's connection, or psycopg's on a thread."""


def mistyped(*, retry: object, rules: object, max_runtime: object, counts: Mapping[str, object]) -> list[str]:
    """What is wrong with the types of options, each in a line that says what to write."""
    problems = []
    if not isinstance(retry, Backoff):
        problems.append("retry is not a Backoff; write Backoff(attempts=5)")
    if not isinstance(rules, Rules):
        problems.append("rules is not a Rules; write Rules(quarantine=[SomeError])")
    if not isinstance(max_runtime, timedelta):
        problems.append("max_runtime is not a duration; write seconds(30)")
    problems += [
        f"{name} is not a whole number"
        for name, count in counts.items()
        if not isinstance(count, int) or isinstance(count, bool)
    ]
    return problems


def misplaced(on: object, *, threaded: bool) -> list[str]:
    """What is wrong with the transactions that a function would get; a plain ``def`` is `threaded`."""
    if on is None:
        return []
    if not callable(getattr(on, "transactions", None)):
        return [
            "`on` does not say whose transactions; write on=AsyncSessions(async_sessionmaker(engine)), for instance"
        ]
    if threaded is bool(getattr(on, "threaded", False)):
        return []
    return ["a `def` function needs transactions of threads, not those of `on`" if threaded
            else "an `async def` function cannot have transactions of threads, as `on` gives them"]  # fmt: skip
