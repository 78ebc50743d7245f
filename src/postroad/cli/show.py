"""Prints results: a table for people, or one JSON document for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import typer

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def document(content: object) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json.dumps(content, default=str) + "\n")


def moment(at: datetime) -> str:
    """A time as the listings show it, in UTC, to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S}"


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


def listing(title: str, columns: Sequence[str], rows: Iterable[tuple[Sequence[Any], str]]) -> None:
    """Print aligned lines, of which none is broken: the longest value comes last, a sentence on a line of its own."""
    noted = [(tuple("" if value is None else safe(value) for value in values), note) for values, note in rows]
    line(title)
    if not noted:
        return
    widths = [max(map(len, each)) for each in zip(columns, *(cells for cells, _ in noted), strict=True)]
    for cells, note in ((tuple(columns), ""), *noted):
        line("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
        if note:
            line(f"    {safe(note)}")


def safe(value: object) -> str:
    """A value as text, with what is not printable escaped: keys and notes come from anywhere."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def payload(body: bytes | None) -> dict[str, str]:
    """A body as text, where it was asked for and is kept; as base64 where it is no text."""
    import base64

    if body is None:
        return {}
    try:
        return {"payload": body.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(body).decode()}


def fields(values: dict[str, Any]) -> None:
    """Print what is known of one thing, a line each, and its `history` last."""
    for name, value in values.items():
        if value is not None and name != "history":
            line(f"{name}: {safe(value)}")
    for entry in values.get("history", ()):
        told = " ".join(f"{key}={value}" for key, value in entry.items() if value is not None)
        line(f"history: {safe(told)}")


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields for a document: times in ISO 8601, and no bytes."""
    return {
        name: value.isoformat() if hasattr(value, "isoformat") else value
        for name, value in fields.items()
        if name != "body"
    }
