"""What every statement on an author's own connection has in common: how large it grows, and how a refusal is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from postroad.errors import AccessRefused, PostroadError, SchemaError

R = TypeVar("R")

MOST_ROWS: Final = 2_000
MOST_BYTES: Final = 8 * 1024 * 1024

# Appendix A of PostgreSQL's manual: undefined_table, invalid_schema_name, insufficient_privilege.
_MISSING: Final = frozenset({"42P01", "3F000"})
_REFUSED: Final = "42501"


def parts(rows: Sequence[R], size: Callable[[R], int]) -> Iterator[list[R]]:
    """The rows in their order, as runs of at most `MOST_ROWS` and `MOST_BYTES`, or one row that is larger."""
    part: list[R] = []
    total = 0
    for row in rows:
        total += size(row)
        if part and (len(part) == MOST_ROWS or total > MOST_BYTES):
            yield part
            part, total = [], size(row)
        part.append(row)
    if part:
        yield part


def told(schema: str, error: Exception, *, act: str) -> PostroadError | None:
    """What is to be done where no `act` (publish, enqueue) can work; None for any other error, whichever the driver."""
    state = getattr(error, "sqlstate", None)
    if state in _MISSING:
        message = f"schema {schema!r} is missing in the database of this connection; run `postroad migrate` there"
        return SchemaError("PR202", f"{message} (or set POSTROAD_SCHEMA)")
    if state == _REFUSED:
        message = f"the role of this connection may not {act} in schema {schema!r}; give it the grants"
        return AccessRefused("PR303", f"{message}: `postroad migrate --author-role ROLE` as the owner")
    return None
