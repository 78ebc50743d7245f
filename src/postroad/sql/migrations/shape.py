"""What the steps make: tables with their columns, indexes and functions, read from their own texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from postroad.sql.migrations import LEDGER, steps
from postroad.sql.statement import render

_TABLE: Final = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?\{schema\}\.(\w+)\s*(PARTITION OF|\()")
_COLUMNS: Final = re.compile(r"ALTER TABLE \{schema\}\.(\w+)\s+((?:ADD|DROP) COLUMN [^;]*);")
_INDEX: Final = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+)\s+ON \{schema\}\.(\w+)")
_GONE: Final = re.compile(r"DROP (INDEX|TABLE|FUNCTION) \{schema\}\.(\w+)")
_FUNCTION: Final = re.compile(r"CREATE (?:OR REPLACE )?FUNCTION \{schema\}\.(\w+)\(.*?\$body\$(.*?)\$body\$", re.DOTALL)
_COMMENT: Final = re.compile(r"--[^\n]*")
_NO_COLUMN: Final = frozenset({"PRIMARY", "UNIQUE", "CHECK", "CONSTRAINT", "FOREIGN", "EXCLUDE"})
_TYPES: Final = {"timestamptz": "timestamp with time zone", "float8": "double precision", "double": "double precision"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Types by column of each table, tables by index, and the bodies of functions by name."""

    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    indexes: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)


@cache
def shape(schema: str) -> Shape:
    """What all steps together make in `schema`; partitions of a day are made later, and are not in it."""
    made = Shape()
    _tables(made, LEDGER)
    for step in steps():
        _functions(made, step.text, schema)
        text = _COMMENT.sub("", _FUNCTION.sub("", step.text))
        _tables(made, text)
        _changes(made, text)
        made.indexes.update(_INDEX.findall(text))
        for kind, name in _GONE.findall(text):
            _forget(made, kind, name)
    return made


def _forget(made: Shape, kind: str, name: str) -> None:
    if kind == "TABLE":
        made.tables.pop(name, None)
    else:
        (made.indexes if kind == "INDEX" else made.functions).pop(name, None)


def _functions(made: Shape, text: str, schema: str) -> None:
    for name, body in _FUNCTION.findall(text):
        made.functions[name] = render(body.replace("{schema_text}", f"'{schema}'"), schema)


def _tables(made: Shape, text: str) -> None:
    for found in _TABLE.finditer(text):
        table = found[1]
        if found[2] != "(":  # A partition: its columns are its parent's.
            _implied(made, table, text[found.end() : text.index(";", found.end())])
            continue
        made.tables[table] = {}
        for part in _parts(_inside(text, found.end() - 1)):
            name, *rest = part.split()
            if name not in _NO_COLUMN:
                made.tables[table][name] = _TYPES.get(rest[0], rest[0])
            _implied(made, table, part, column=name)


def _implied(made: Shape, table: str, part: str, *, column: str | None = None) -> None:
    """The indexes of constraints, which have no name of their own."""
    if "PRIMARY KEY" in part:
        made.indexes[f"{table}_pkey"] = table
    elif "UNIQUE" in part:
        listed = re.search(r"UNIQUE \(([^)]*)\)", part)
        columns = re.findall(r"\w+", listed[1]) if listed else [column or ""]
        made.indexes["_".join([table, *columns, "key"])] = table


def _changes(made: Shape, text: str) -> None:
    for table, changes in _COLUMNS.findall(text):
        for part in _parts(changes):
            verb, _, name, *rest = part.split()
            if verb == "ADD":
                made.tables[table][name] = _TYPES.get(rest[0], rest[0])
            else:
                made.tables[table].pop(name, None)


def _inside(text: str, start: int) -> str:
    """What stands between the parenthesis at `start` and the one that closes it."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return text[start + 1 : place]
    return text[start + 1 :]


def _parts(text: str) -> Iterator[str]:
    """The parts of a list, split at its own commas."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            yield text[begin:place].strip()
            begin = place + 1
    if text[begin:].strip():
        yield text[begin:].strip()
