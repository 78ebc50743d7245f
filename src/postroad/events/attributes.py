"""The attributes of a CloudEvent, checked one by one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from postroad.errors import ContractError

MAX_TEXT: Final = 255  # Bytes: an AMQP short string, which most of them also travel as.
MAX_SOURCE: Final = 1024
MAX_SEQUENCE: Final = 2**63 - 1
_MAX_INTEGER: Final = 2**31 - 1
_MAX_DIGITS: Final = 32
_TIMES: Final = frozenset({"time", "recordedtime"})
_LEAST_MILLISECONDS: Final = 100_000_000_000  # In March 1973; as seconds it would be in the year 5138.
_MOST_MILLISECONDS: Final = 253_402_300_800_000  # The year 10000, which Python does not know.

# What a CloudEvents String may not hold (CloudEvents 1.0, "Type System").
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})",
)


def text_problem(value: str, *, most: int = MAX_TEXT) -> str | None:
    """Why `value` cannot be an attribute: empty, longer than `most` bytes, or with characters that are refused."""
    if value.isascii() and value.isprintable() and 0 < len(value) <= most:
        return None  # Nearly every one: settled without a search.
    if not value:
        return "is empty"
    if _FORBIDDEN.search(value):
        return "holds control characters"
    if len(value.encode()) > most:
        return f"is longer than {most} bytes"
    return None


def text(attributes: Mapping[str, Any], name: str, *, most: int = MAX_TEXT) -> str | None:
    """An optional attribute that is text; absent and null are the same.

    Raises:
        ContractError: PR501, it is something else, or too long.
    """
    value = attributes.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ContractError("PR501", f"attribute {name} is not text")
    if value.isascii() and value.isprintable() and 0 < len(value) <= most:
        return value  # Nearly every one: settled without a search.
    problem = text_problem(value, most=most)
    if problem:
        raise ContractError("PR501", f"attribute {name} {problem}")
    return value


def required_text(attributes: Mapping[str, Any], name: str, *, most: int = MAX_TEXT) -> str:
    """A text that must be there.

    Raises:
        ContractError: PR501, it is missing, something else, or too long.
    """
    value = text(attributes, name, most=most)
    if value is None:
        raise ContractError("PR501", f"attribute {name} is missing")
    return value


def moment(attributes: Mapping[str, Any], name: str) -> datetime | None:
    """An optional time with its offset (RFC 3339), as aware UTC.

    Raises:
        ContractError: PR501, it is not a time, or has no offset.
    """
    value = attributes.get(name)
    try:
        if isinstance(value, str) and _RFC3339.fullmatch(value):
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    if text(attributes, name) is None:
        return None
    raise ContractError("PR501", f"attribute {name} is not a time with its offset")


def integer(attributes: Mapping[str, Any], name: str, *, least: int, most: int = _MAX_INTEGER) -> int | None:
    """An optional whole number, also as text of digits.

    Raises:
        ContractError: PR501, it is not one, or out of range.
    """
    value = attributes.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ContractError("PR501", f"attribute {name} is not a whole number from {least} to {most}")
    return value


def from_headers(headers: Mapping[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
    """The attributes of binary mode: headers under one of `prefixes`, their values as text.

    Raises:
        ContractError: PR501, a value is neither text, bytes in UTF-8, whole number nor time; or one attribute comes
            twice with different values.
    """
    found: dict[str, Any] = {}
    for header, value in headers.items():
        name = next((header[len(prefix) :] for prefix in prefixes if _starts(header, prefix)), None)
        if name is None or value is None:
            continue
        spoken = _spoken(name, _moment_of(value) if name in _TIMES else value)
        if found.setdefault(name, spoken) != spoken:
            raise ContractError("PR501", f"attribute {_safe(name)} comes twice, with different values")
    return found


def _starts(header: object, prefix: str) -> bool:
    return isinstance(header, str) and header.startswith(prefix)


def _moment_of(value: object) -> object:
    """An AMQP 1.0 timestamp that came as a number: milliseconds. A smaller number is none, seconds among them."""
    if not isinstance(value, int) or isinstance(value, bool) or not _LEAST_MILLISECONDS <= value < _MOST_MILLISECONDS:
        return value
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)


def _spoken(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_SEQUENCE:
        return str(value)
    if isinstance(value, datetime):
        aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value  # AMQP timestamps are UTC, drivers drop it
        return aware.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    raise ContractError("PR501", f"header of attribute {_safe(name)} has the wrong type")


def _safe(name: str) -> str:
    return name if name.isascii() and name.isalnum() and len(name) <= _MAX_DIGITS else "?"
