"""The guard on handlers' connections: which SQL texts would begin, end or change the transaction around a handler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from postroad.errors import UsageError

_KEPT: Final = 2048
"""How many texts are remembered: handlers have few, and whoever builds his anew each time pays for the reading."""

_CONTROL: Final = frozenset({"BEGIN", "START", "COMMIT", "END", "ABORT", "ROLLBACK", "PREPARE", "SET"})
_SUSPICIOUS: Final = re.compile(rf"\b(?:{'|'.join(sorted(_CONTROL))}|SAVEPOINT)\b", re.IGNORECASE)
_DRIVERS: Final = ("__ASYNCPG_SAVEPOINT_", "_PG3_", "SA_SAVEPOINT_")
"""How the names of savepoints begin that drivers, and SQLAlchemy, set for a nested block: they end them themselves."""
_FIRST_WORDS: Final = 4

# What a statement is made of, as far as its end and its first words go. A comment or a text without an end takes the
# rest. Nested comments are walked through by hand.
_PIECE: Final = re.compile(
    r"""
      (?P<line>--[^\n]*)
    | (?P<block>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z))
    | (?P<text>'(?:[^']|'')*(?:'|\Z))
    | (?P<name>"(?:[^"]|"")*(?:"|\Z))
    | (?P<dollar>\$(?P<tag>[A-Za-z_\x80-\uffff][\w]*|)\$.*?(?:\$(?P=tag)\$|\Z))
    | (?P<end>;)
    | (?P<word>[A-Za-z_\x80-\uffff][\w$]*)
    | (?P<space>\s+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


def check(text: str, *, nest: str = "async with delivery.tx.transaction():") -> bool:
    """Refuse `text` where one of its statements is transaction control; whether one sets a savepoint, which is not.

    `nest` is how a handler writes a savepoint in its own form.

    Raises:
        UsageError: PR111.
    """
    control, savepoint = _read(text)
    if control is not None:
        message = (
            f"a handler ran {control} on the transaction of its delivery, which commits when the handler returns; "
            f"leave it out, or nest `{nest}`"
        )
        raise UsageError("PR111", message)
    return savepoint


def refused(text: str) -> str | None:
    """The transaction control that `text` holds, in upper case; None where it holds none.

    Each statement is judged by its first words, without comments: BEGIN, START, COMMIT, END, ABORT, ROLLBACK (but
    not ROLLBACK TO a savepoint), PREPARE TRANSACTION, SET TRANSACTION and SET SESSION CHARACTERISTICS, and the
    settings that stand for these (``transaction_isolation`` and its like).
    """
    return _read(text)[0]


def sets_savepoint(text: str) -> bool:
    """Whether `text` sets a savepoint of its author's own."""
    return _read(text)[1]


@lru_cache(maxsize=_KEPT)
def _read(text: str) -> tuple[str | None, bool]:
    """The transaction control that `text` holds, and whether it sets a savepoint of its author's own."""
    if not _SUSPICIOUS.search(text):
        return None, False
    savepoint = False
    for words in _statements(text):
        found = _control(words)
        if found is not None:
            return found, savepoint
        savepoint |= words[:1] == ["SAVEPOINT"] and not "".join(words[1:2]).startswith(_DRIVERS)
    return None, savepoint


def _control(words: list[str]) -> str | None:
    first, rest = (words[0], words[1:]) if words else ("", [])
    if first not in _CONTROL:
        return None
    if first == "ROLLBACK":
        after = rest[1:] if rest[:1] in (["WORK"], ["TRANSACTION"]) else rest
        return None if after[:1] == ["TO"] else first
    if first == "PREPARE":
        return "PREPARE TRANSACTION" if rest[:1] == ["TRANSACTION"] else None
    if first == "SET":
        return _setting(rest)
    return first


def _setting(words: list[str]) -> str | None:
    if words[:1] == ["LOCAL"] or (words[:1] == ["SESSION"] and words[1:2] != ["CHARACTERISTICS"]):
        words = words[1:]
    if words[:2] == ["SESSION", "CHARACTERISTICS"]:
        return "SET SESSION CHARACTERISTICS"
    name = words[0] if words else ""
    return f"SET {name}" if name == "TRANSACTION" or name.startswith("TRANSACTION_") else None


def _statements(text: str) -> Iterator[list[str]]:
    """The first words of each statement, in upper case; a quoted name counts as a word, anything else ends them."""
    words: list[str] = []
    open_, position = True, 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        assert piece is not None
        position, kind = piece.end(), piece.lastgroup
        if kind == "block":
            position = _after_comment(text, position)
        elif kind == "end":
            yield words
            words, open_ = [], True
        elif kind not in {"line", "space"} and open_:
            open_ = kind in {"word", "name"} and len(words) < _FIRST_WORDS
            if open_:
                words.append(piece.group().strip('"').upper())
    yield words


def _after_comment(text: str, position: int) -> int:
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(text, position)
        if edge is None:
            return len(text)
        depth += 1 if edge.group() == "/*" else -1
        position = edge.end()
    return position
