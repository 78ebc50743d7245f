"""What may be read of an error that is not ours: by its attributes and names, without importing its driver."""

from __future__ import annotations

import re
from typing import Any, Final

from postroad.places import place

LONGEST_REASON: Final = 500
"""Longer reasons are cut."""

_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")
_IDENTIFIER: Final = re.compile(r"[\w.$-]{1,63}")


def sqlstate(link: BaseException) -> str | None:
    """The SQLSTATE that asyncpg and psycopg (``sqlstate``) or psycopg2 (``pgcode``) put on their errors."""
    for name in ("sqlstate", "pgcode"):
        value = attribute(link, name)
        if isinstance(value, str) and _SQLSTATE.fullmatch(value):
            return value
    return None


def is_lost(link: BaseException) -> bool:
    """Whether an error without an SQLSTATE looks like a connection that was lost or could not be made."""
    if isinstance(link, OSError):
        return link.filename is None  # with a file's name it is about a file
    if attribute(link, "connection_invalidated") is True:  # SQLAlchemy
        return True
    driver = type(link).__module__.partition(".")[0]
    kind = type(link).__name__
    if driver == "asyncpg" and kind == "InterfaceError":
        return any(said in _message(link) for said in ("is closed", "is closing", "released back to the pool"))
    return driver in {"psycopg", "psycopg2"} and kind in {"OperationalError", "InterfaceError"}


def described(error: BaseException, state: str | None = None, *, outer: BaseException | None = None) -> str:
    """Type, SQLSTATE, the names of what in the schema it is about, and the place; never the message."""
    names = [
        f"{label} {value}"
        for label in ("constraint", "table", "column")
        if isinstance(value := _of_schema(error, f"{label}_name"), str) and _IDENTIFIER.fullmatch(value)
    ]
    about = f" ({', '.join(names)})" if names else ""
    return clean(" ".join(filter(None, [type_name(error), state])) + about + f" in {place(error, outer=outer)}")


def _of_schema(error: BaseException, name: str) -> object:
    direct = attribute(error, name)
    return direct if direct is not None else attribute(attribute(error, "diag"), name)


def attribute(thing: object, name: str) -> Any:
    """An attribute, or None where there is none that can be read."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a foreign property may raise anything; it then tells nothing
        return None


def _message(error: BaseException) -> str:
    """A foreign message, to look for words in and never to keep."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        return ""


def type_name(error: BaseException) -> str:
    """The error's class with its module, cut."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return clean(name)[:200]


def clean(text: object) -> str:
    """One line of printable characters, cut: it goes to logs, terminals and tables."""
    printable = "".join(letter if letter.isprintable() else " " for letter in str(text)[: 4 * LONGEST_REASON])
    return " ".join(printable.split())[:LONGEST_REASON]
