"""Flights as the producer service reads them: rows of nycflights13, from plain or gzip CSV."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import IO, Final

COLUMNS: Final = ("year", "month", "day", "dep_time", "dep_delay", "carrier", "flight", "origin", "dest", "minute",
                  "time_hour")  # fmt: skip
SAMPLE: Final = Path(__file__).with_name("flights-sample.csv")
"""The flights that left New York on 1 January 2013 (nycflights13, CC0)."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One scheduled flight, as it turned out. `delay` is in minutes; None where cancelled. `day` is New York's."""

    flight_id: str
    carrier: str
    origin: str
    destination: str
    delay: int | None
    occurred: datetime
    day: date


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that is no flight, and why; the text of the line is not repeated."""

    line: int
    reason: str


class UnreadableFile(Exception):
    """The file as a whole cannot be read as flights: one line that says why."""


def read(path: Path) -> Iterator[Flight | Malformed]:
    """Every line of `path` in order: a `Flight`, or a `Malformed` one; the rest goes on.

    Raises:
        UnreadableFile: it does not exist, is no gzip although it says so, or lacks columns.
    """
    try:
        with _text(path) as lines:
            reader = csv.DictReader(lines, strict=True)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UnreadableFile(f"{path} lacks the column(s) {', '.join(missing)}; it takes nycflights13's")
            yield from _rows(reader)
    except (OSError, EOFError, UnicodeError) as error:
        raise UnreadableFile(f"{path} cannot be read ({error.__class__.__name__}); it takes CSV or gzip CSV") from error


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    with path.open("rb") as start:
        zipped = start.read(2) == b"\x1f\x8b"
    opener = gzip.open if zipped else open
    with opener(path, "rt", encoding="utf-8", errors="replace", newline="") as lines:
        yield lines


def _rows(reader: csv.DictReader[str]) -> Iterator[Flight | Malformed]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield Malformed(reader.line_num, "the line is not CSV")
            continue
        try:
            yield _flight(row)
        except (ValueError, KeyError) as error:
            yield Malformed(reader.line_num, str(error))


def _flight(row: dict[str, str]) -> Flight:
    if None in row or None in row.values():
        raise ValueError("it has more or fewer fields than the header")
    day = date(_number(row, "year"), _number(row, "month"), _number(row, "day"))
    carrier, origin, destination = _code(row, "carrier"), _code(row, "origin"), _code(row, "dest")
    scheduled = _hour(row) + timedelta(minutes=_number(row, "minute"))
    delay = None if row["dep_time"] == "NA" else _number(row, "dep_delay")
    return Flight(
        flight_id=f"{day.isoformat()}:{carrier}:{_number(row, 'flight')}:{origin}",
        carrier=carrier,
        origin=origin,
        destination=destination,
        delay=delay,
        occurred=scheduled + timedelta(minutes=delay or 0),
        day=day,
    )


def _number(row: dict[str, str], column: str) -> int:
    try:
        number = int(row[column])
    except ValueError:
        raise ValueError(f"{column} is not a whole number") from None
    if abs(number) > 1_000_000:  # noqa: PLR2004 - no column of a flight comes near it
        raise ValueError(f"{column} is out of range")
    return number


def _code(row: dict[str, str], column: str) -> str:
    code = row[column].strip()
    if not (code.isascii() and code.isalnum() and len(code) <= 4):  # noqa: PLR2004 - IATA codes have two or three
        raise ValueError(f"{column} is not a code of letters and digits")
    return code


def _hour(row: dict[str, str]) -> datetime:
    try:
        hour = datetime.fromisoformat(row["time_hour"])
    except ValueError:
        raise ValueError("time_hour is not a time") from None
    return hour.astimezone(UTC) if hour.tzinfo else hour.replace(tzinfo=UTC)
