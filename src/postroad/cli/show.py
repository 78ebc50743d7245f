"""Prints results: a table for people, or one JSON document for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeAlias

import typer

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def document(content: object) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json.dumps(content, default=str) + "\n")


def line(text: str) -> None:
    """Print one line."""
    sys.stdout.write(text + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as wide as the terminal; values are never taken for markup, or for a terminal's orders."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text("" if value is None else safe(value)) for value in row))
    Console().print(made)


def count(number: int, thing: str) -> str:
    """A number of things, in the plural but for one."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def safe(value: object) -> str:
    """A value as text, with what is not printable escaped: keys and notes come from anywhere."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields for a document: times in ISO 8601, and no bytes."""
    return {
        name: value.isoformat() if hasattr(value, "isoformat") else value
        for name, value in fields.items()
        if name != "body"
    }
