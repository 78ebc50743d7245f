"""The log sink: every signal as one structured record of the standard library's logging."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from typing_extensions import override

from postroad.signals.catalog import Level, Signal

LOGGER: Final = "postroad"

_LEVELS: Final = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
}
_PLAIN: Final = re.compile(r"[\w.:/@+-]+")
_LONGEST_LIST: Final = 16
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_shapes: dict[type[Signal], tuple[str, tuple[str, ...]]] = {}


class LogSink:
    """Writes signals to the logger ``postroad``, each at its own level: ``lease_gone kind=shard name=shard:03 ...``.

    Logging decides what is shown: a level that is switched off costs one look-up. The record also carries the name
    and the fields apart (``record.signal``, ``record.fields``), for formatters such as `JsonFormatter`. Signals hold
    no payloads, so neither does the log. Long lists are told by their length.
    """

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger | None = None) -> None:
        """Write to `logger`; None is the logger ``postroad``."""
        self._logger = logger if logger is not None else logging.getLogger(LOGGER)

    def __call__(self, signal: Signal) -> None:
        """Write one record."""
        level = _LEVELS[signal.level]
        if not self._logger.isEnabledFor(level):
            return
        name, names = _shape(type(signal))
        values = {each: _value(getattr(signal, each)) for each in names}
        text = " ".join([name, *(f"{key}={_text(value)}" for key, value in values.items())])
        self._logger.log(level, "%s", text, extra={"signal": name, "fields": values})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, then a signal's name and fields, or any record's message.

    Fields of a signal never hide the three first. A foreign record's traceback goes into ``exception``.
    """

    @override
    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        signal, values = getattr(record, "signal", None), getattr(record, "fields", None)
        said = (
            {"signal": signal, **values}
            if isinstance(signal, str) and isinstance(values, dict)
            else {"message": record.getMessage()}
        )
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        head = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        return json.dumps({**head, **{key: value for key, value in said.items() if key not in head}}, default=str)


def _shape(kind: type[Signal]) -> tuple[str, tuple[str, ...]]:
    """The name of a record in the log, and the names of its fields."""
    shape = _shapes.get(kind)
    if shape is None:
        name = _WORD.sub("_", kind.__name__).lower()
        shape = _shapes[kind] = (name, tuple(each.name for each in fields(kind)))
    return shape


def _value(value: Any) -> Any:
    """A field as JSON knows it."""
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, tuple):
        return f"{len(value)} values" if len(value) > _LONGEST_LIST else [_value(each) for each in value]
    return value


def _text(value: Any) -> str:
    """A field on the line: plain words as they are, anything else quoted with what would break the line escaped."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value)
    return json.dumps(value, separators=(",", ":"), default=str)
