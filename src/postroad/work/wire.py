"""What is kept of a message beside its body, in a form that PostgreSQL can hold."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

_DEPTH: Final = 16
_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
_DECIMAL = re.compile(r"(?!-0\.0$)-?[0-9]+\.[0-9]+")
_BROKERS: Final = re.compile("x-(?:death|delivery-count|acquired-count|(?:first|last)-death-.*)|postroad-.*", re.DOTALL)
"""Headers that tell of the way of a message, not of what it is: a copy that took another is still a copy."""
_MARKS: Final = frozenset({"$bytes", "$text", "$time", "$decimal", "$float", "$table"})


@dataclass(slots=True, kw_only=True)  # Not frozen: that would cost every row four times as much.
class Wire:
    """A message as it travelled: body and properties, byte for byte, so that it keeps its identity.

    Binary-mode events carry id, type and source in `headers`: a kept body alone would lose them.
    """

    body: bytes = field(repr=False)
    content_type: str
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    exchange: str | None = None
    routing_key: str | None = None
    event_type: str | None = None


def digest(wire: Wire) -> bytes:
    """SHA-256 of all by which a message without an identity of its own can be told from another.

    That is body, content type, exchange, routing key and headers, in which binary mode has an event's id; not the
    headers in which the broker counts, which differ in every redelivery of one message.
    """
    headers = {name: value for name, value in wire.headers.items() if not _BROKERS.fullmatch(str(name))}
    told = json.dumps([wire.content_type, wire.exchange, wire.routing_key, headers_to_json(headers, sort=True)])
    return hashlib.sha256(hashlib.sha256(wire.body).digest() + told.encode()).digest()


def kept(text: str | None) -> str | None:
    """`text` without what a PostgreSQL text cannot hold: NUL and lone surrogates become U+FFFD."""
    return None if text is None else _UNKEEPABLE.sub("\ufffd", text)


def headers_to_json(headers: Mapping[str, Any], *, sort: bool = False) -> str:
    """Headers as JSON that any database can hold; `headers_from_json` gives the same values back.

    What JSON or PostgreSQL has no form for (bytes, times, decimals, NUL in a text) is written as an object with one
    ``$`` key. Tables nested deeper than 16 are cut off: nothing that a person sends looks like that.
    """
    table = {kept(str(name)): _to_json(value, 1) for name, value in headers.items()}
    return json.dumps(table, allow_nan=False, sort_keys=sort)


def headers_from_json(stored: str | Mapping[str, Any]) -> dict[str, Any]:
    """The headers that `headers_to_json` wrote; drivers hand a JSON column over as text or parsed.

    Anybody may have written a row by SQL, so this never raises: what is no table of headers, or nests too deep to be
    read, is an empty one, and an object that only looks like one of ours stays as it is.
    """
    if stored == "{}":  # Most jobs: parsing it costs as much as the rest of the row.
        return {}
    try:
        parsed = json.loads(stored) if isinstance(stored, str) else stored
        return {name: _from_json(value) for name, value in parsed.items()} if isinstance(parsed, Mapping) else {}
    except (ValueError, RecursionError):  # A number of thousands of digits is a ValueError.
        return {}


def _to_json(value: Any, depth: int) -> Any:
    if depth > _DEPTH:
        return None
    if isinstance(value, Mapping):
        table = {kept(str(name)): _to_json(inner, depth + 1) for name, inner in value.items()}
        return {"$table": table} if not _MARKS.isdisjoint(table) else table
    if isinstance(value, list | tuple):
        return [_to_json(inner, depth + 1) for inner in value]
    return _plain(value)


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case str() if _UNKEEPABLE.search(value) is None:
            return value
        case float() if _is_decimal(value):
            return value
        case _:
            return _mark(value)


def _is_decimal(value: float) -> bool:
    """Whether PostgreSQL gives it back as it is: a jsonb knows no exponents (1e16 comes back whole) and no -0.0."""
    return _DECIMAL.fullmatch(repr(value)) is not None


def _mark(value: Any) -> Any:
    match value:
        case str():
            return {"$text": _base64(value.encode("utf-8", "surrogatepass"))}
        case float():
            return {"$float": str(value)}
        case bytes() | bytearray() | memoryview():
            return {"$bytes": _base64(bytes(value))}
        case datetime():
            return {"$time": value.isoformat()}
        case Decimal():
            return {"$decimal": str(value)}
        case _:
            return kept(str(value))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(mark, inner)] = value.items()
        if mark in _MARKS:
            try:
                return _marked(mark, inner)
            except (ValueError, TypeError, ArithmeticError, AttributeError):
                return value
    return {name: _from_json(inner) for name, inner in value.items()}


def _marked(mark: str, inner: Any) -> Any:
    match mark:
        case "$bytes":
            return base64.b64decode(inner)
        case "$text":
            return base64.b64decode(inner).decode("utf-8", "surrogatepass")
        case "$time":
            at = datetime.fromisoformat(inner)
            return at if at.tzinfo else at.replace(tzinfo=UTC)
        case "$decimal":
            return Decimal(inner)
        case "$float":
            return float(inner)
        case _:
            return {name: _from_json(value) for name, value in inner.items()}
