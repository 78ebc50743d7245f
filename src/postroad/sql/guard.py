"""Transaction control in raw text: what a handler may not send on a connection whose transaction is not its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_ALWAYS: Final = frozenset({"BEGIN", "START", "COMMIT", "END", "ABORT"})
_FILLING: Final = frozenset({"WORK", "TRANSACTION"})
_LONGEST_KEPT: Final = 10_000  # Longer texts are looked at anew each time: the cache holds no bulk data.
_WORDS: Final = 4

# Strings, quoted names and dollar quotes are passed over whole; what is left are words and semicolons. A text that
# ends inside one of them is PostgreSQL's to refuse.
_TOKEN: Final = re.compile(
    r"""
      (?P<line>--[^\r\n]*)
    | (?P<block>/\*)
    | [eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)
    | '(?:[^']|'')*(?:'|\Z)
    | "(?:[^"]|"")*(?:"|\Z)
    | (?P<tag>\$(?:[A-Za-z_\x80-\U0010ffff][\w]*)?\$)
    | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*)
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
_EDGE: Final = re.compile(r"/\*|\*/")


def refused(text: str) -> str | None:
    """The transaction control in `text`, as it may be shown; None where every statement of it may run.

    Refused is what begins with BEGIN, START, COMMIT, END, ABORT, ROLLBACK (not TO a savepoint), PREPARE TRANSACTION or
    SET TRANSACTION; comments before it do not hide it. Savepoints may be set, released and rolled back to.
    """
    return _refused(text) if len(text) > _LONGEST_KEPT else _remembered(text)


def _refused(text: str) -> str | None:
    return next(filter(None, map(_judged, _statements(text))), None)


_remembered: Final = lru_cache(maxsize=2048)(_refused)


def _judged(words: list[str]) -> str | None:
    first, *rest = words
    if first in _ALWAYS:
        return first
    if first == "ROLLBACK":
        after = next(iter(word for word in rest if word not in _FILLING), "")
        return None if after == "TO" else first
    if first == "PREPARE" and rest[:1] == ["TRANSACTION"]:
        return "PREPARE TRANSACTION"
    scoped = rest[1:] if rest[:1] in (["SESSION"], ["LOCAL"]) else rest
    return "SET TRANSACTION" if first == "SET" and scoped[:1] == ["TRANSACTION"] else None


def _statements(text: str) -> Iterator[list[str]]:
    """The first words of each statement, in capitals; a body between BEGIN ATOMIC and END belongs to its CREATE."""
    words: list[str] = []
    depth, before = 0, ""
    for piece in _tokens(text):
        if piece == ";":
            if not depth and words:
                yield words
                words = []
            continue
        if len(words) < _WORDS:
            words.append(piece)
        if words[0] == "CREATE":
            depth += _nesting(piece, before, depth)
        before = piece
    if words:
        yield words


def _nesting(piece: str, before: str, depth: int) -> int:
    if piece == "ATOMIC" and before == "BEGIN":
        return 1
    if depth and piece in {"CASE", "END"}:
        return 1 if piece == "CASE" else -1
    return 0


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while found := _TOKEN.search(text, position):
        position = found.end()
        match found.lastgroup:
            case "word":
                yield found["word"].upper()
            case "end":
                yield ";"
            case "block":
                position = _past_comment(text, position)
            case "tag":
                closing = text.find(found["tag"], position)
                position = len(text) if closing < 0 else closing + len(found["tag"])
            case _:
                pass


def _past_comment(text: str, position: int) -> int:
    """Where the block comment ends whose opening ends at `position`; they nest."""
    depth = 1
    for edge in _EDGE.finditer(text, position):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return len(text)
