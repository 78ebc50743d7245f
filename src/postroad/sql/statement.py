"""Named queries kept in ``.sql`` files, and the Statements that pipelines yield."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from postroad.errors import UsageError

_HEAD = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,54}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement to run on a connection: text with ``$1`` parameters, and their values.

    A `command` returns no rows and goes without preparation (SAVEPOINT, SET LOCAL); it takes no parameters. One that is
    `answered` is waited for where a connection would otherwise send on (psycopg's pipeline mode).
    """

    text: str
    args: tuple[Any, ...] = ()
    command: bool = False
    answered: bool = False


@dataclass(slots=True)  # Not frozen: that would cost every delivery four times as much.
class Call:
    """Author's code to run between statements; the hand awaits what it returns where it is awaitable."""

    function: Callable[[], Any]


Step = Statement | Call
Pipeline = Generator[Step, Any, T]
"""Statements and calls in order: it is sent the rows (or the call's value), and thrown the step's error."""


class Queries:
    """The named queries of one ``.sql`` file: ``-- name: NAME``, a sentence, the query; ``{schema}`` is filled in."""

    def __init__(self, text: str, *, source: str) -> None:
        """Read the queries of `text`; `source` names the file in errors."""
        parts = _HEAD.split(text)
        self._source = source
        self._texts = {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}
        self._rendered: dict[tuple[str, str], str] = {}

    def __iter__(self) -> Iterator[str]:
        """The names of the queries, in the order of the file."""
        return iter(self._texts)

    def text(self, name: str, schema: str) -> str:
        """The query `name` for `schema`."""
        try:
            return self._rendered[name, schema]
        except KeyError:
            rendered = render(self._texts[name], schema)
            self._rendered[name, schema] = rendered
            return rendered

    def statement(self, name: str, schema: str, *args: Any) -> Statement:
        """The query `name` for `schema`, with its parameters."""
        return Statement(self.text(name, schema), args)


def render(text: str, schema: str) -> str:
    """Fill in the schema's name, quoted.

    Raises:
        UsageError: the name is not lower-case letters, digits and underscores (at most 55).
    """
    if not _SCHEMA.fullmatch(schema):
        message = f"schema name {schema!r} is not lower-case letters, digits and underscores; set POSTROAD_SCHEMA"
        raise UsageError("PR107", message)
    return text.replace("{schema}", f'"{schema}"')


@cache
def queries(package: str, filename: str) -> Queries:
    """The named queries of `filename`, which lies in `package`'s folder."""
    return Queries(files(package).joinpath(filename).read_text("utf-8"), source=f"{package}/{filename}")
