"""The properties of what the broker delivers, read so that nothing a stranger sends ends the connection.

pika's reader raises on what any publisher may send (a timestamp in milliseconds, a float that is no number, tables
nested a thousand deep), which ends the connection; the broker then delivers the same message again, for ever.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from pika import data, frame, spec
from typing_extensions import override

_DEEPEST: Final = 32
MOST_FIELDS: Final = 2048
"""So many values are read of one message's headers, nested ones counted: a frame has room for 130,000, which took 1.5 s
of the thread that answers heartbeats. What lies behind stays the bytes that it is."""

_Left = list[int]  # One number: how many values may still be read, shared by all tables of a message.
_MORE_FLAGS: Final = 1
_HEADER: Final = struct.Struct(">BHLHHQ")  # Type, channel and size of the frame; class, weight and size of the body.
_PREFIX: Final = 7
_SIZE: Final = struct.Struct(">I")
_SECONDS: Final = struct.Struct(">Q")
_DECIMAL: Final = struct.Struct(">Bi")
# RabbitMQ's kinds: https://www.rabbitmq.com/amqp-0-9-1-errata, section 3.
_PLAIN: Final = {
    kind: struct.Struct(form)
    for kind, form in {
        b"b": ">b", b"B": ">B", b"U": ">h", b"u": ">H", b"s": ">h", b"I": ">i", b"i": ">I", b"L": ">q", b"l": ">q",
        b"f": ">f", b"d": ">d", b"t": ">?",
    }.items()
}  # fmt: skip


class _UndecodableError(Exception):
    """A field whose length nobody knows: all that follows it is lost with it."""


def read_header(buffer: bytes) -> tuple[int, frame.Header] | None:
    """The content header at the start of `buffer`, and its length; None where there is none, or not all of it.

    Headers have the values that their kind says, floats included. What cannot be read comes as the bytes that it is:
    a single value, or all headers from the first on that is not understood, or one too many, under its name. Nothing is
    raised, whatever the properties hold.
    """
    if buffer[:1] != b"\x02" or len(buffer) < _HEADER.size:
        return None
    _, channel, size, kind, _, body_size = _HEADER.unpack_from(buffer)
    end = _PREFIX + size
    if len(buffer) <= end or buffer[end] != spec.FRAME_END or kind != spec.BasicProperties.INDEX:
        return None
    return end + 1, frame.Header(channel, body_size, _properties(buffer[_HEADER.size : end]))


def _properties(encoded: bytes) -> spec.BasicProperties:
    """The properties; where not even their lengths are right, none but the bytes that they are, as a header."""
    try:
        return _read(encoded)
    except (struct.error, IndexError, ValueError):
        return spec.BasicProperties(headers={"": encoded})


def _read(encoded: bytes) -> spec.BasicProperties:
    """Read all but the headers as pika does: texts and numbers raise nothing, whatever they are."""
    (flags,) = struct.unpack_from(">H", encoded)
    if flags & _MORE_FLAGS:
        raise ValueError(flags)
    properties = spec.BasicProperties()
    if not flags & spec.BasicProperties.FLAG_HEADERS:
        properties.decode(encoded)
        return properties
    start = 2
    for flag in (spec.BasicProperties.FLAG_CONTENT_TYPE, spec.BasicProperties.FLAG_CONTENT_ENCODING):
        if flags & flag:
            start += 1 + encoded[start]
    end = start + 4 + _SIZE.unpack_from(encoded, start)[0]
    flags &= ~spec.BasicProperties.FLAG_HEADERS
    properties.decode(struct.pack(">H", flags) + encoded[2:start] + encoded[end:])
    properties.headers = read_table(encoded[start + 4 : end])
    return properties


def read_table(encoded: bytes) -> dict[Any, Any]:
    """A message's headers, as far as they can be read (see `read_header`)."""
    return _table(encoded, 1, [MOST_FIELDS])


class Headers(Mapping[Any, Any]):
    """A message's headers, read when they are first asked for: most events say all in their body."""

    __slots__ = ("_encoded", "_table")

    def __init__(self, encoded: bytes) -> None:
        """As `read_table` reads them."""
        self._encoded = encoded
        self._table: dict[Any, Any] | None = None

    @property
    def _read(self) -> dict[Any, Any]:
        if self._table is None:
            self._table = read_table(self._encoded)
        return self._table

    @override
    def __getitem__(self, name: Any) -> Any:
        return self._read[name]

    @override
    def get(self, name: Any, default: Any = None) -> Any:
        """As of any mapping; a text that does not stand in the bytes at all is no name there, and nothing is read."""
        if self._table is None and isinstance(name, str) and name.encode() not in self._encoded:
            return default
        return self._read.get(name, default)

    @override
    def __iter__(self) -> Iterator[Any]:
        return iter(self._read)

    @override
    def __len__(self) -> int:
        return len(self._read)

    @override
    def __repr__(self) -> str:
        return repr(self._read)


def _table(encoded: bytes, depth: int, left: _Left) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    at = 0
    while at < len(encoded):
        start = at
        name: Any = b""
        try:
            name, at = data.decode_short_string(encoded, at)
            table[name], at = _value(encoded, at, depth, left)
        except (_UndecodableError, struct.error, IndexError):
            table[name] = encoded[start:]
            break
    return table


def _list(encoded: bytes, depth: int, left: _Left) -> list[Any]:
    values: list[Any] = []
    at = 0
    while at < len(encoded):
        try:
            value, after = _value(encoded, at, depth, left)
        except (_UndecodableError, struct.error, IndexError):
            values.append(encoded[at:])
            break
        values.append(value)
        at = after
    return values


def _value(encoded: bytes, at: int, depth: int, left: _Left) -> tuple[Any, int]:
    left[0] -= 1
    if left[0] < 0:
        raise _UndecodableError
    kind = encoded[at : at + 1]
    at += 1
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain.unpack_from(encoded, at)[0], at + plain.size
    if kind == b"V":
        return None, at
    if kind == b"T":
        return _moment(_SECONDS.unpack_from(encoded, at)[0]), at + _SECONDS.size
    if kind == b"D":
        scale, number = _DECIMAL.unpack_from(encoded, at)
        return Decimal(number).scaleb(-scale), at + _DECIMAL.size
    read = _SIZED.get(kind)
    if read is None:
        raise _UndecodableError
    (size,) = _SIZE.unpack_from(encoded, at)
    at += _SIZE.size
    if at + size > len(encoded):
        raise _UndecodableError
    return read(encoded[at : at + size], depth, left), at + size


def _moment(count: int) -> datetime | int:
    """A time in seconds; many send milliseconds, which are no time that Python knows: then the number itself."""
    try:
        return datetime.fromtimestamp(count, UTC)
    except (ValueError, OverflowError, OSError):
        return count


def _text(encoded: bytes, _: int, __: _Left) -> str | bytes:
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return encoded


def _nested(read: Callable[[bytes, int, _Left], Any]) -> Callable[[bytes, int, _Left], Any]:
    return lambda encoded, depth, left: encoded if depth >= _DEEPEST else read(encoded, depth + 1, left)


_SIZED: Final[dict[bytes, Callable[[bytes, int, _Left], Any]]] = {
    b"S": _text,
    b"x": lambda encoded, _, __: encoded,
    b"F": _nested(_table),
    b"A": _nested(_list),
}
