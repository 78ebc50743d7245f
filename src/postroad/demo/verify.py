"""The independent judge: what the two services' own tables say, against the file. It imports nothing of Postroad."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import asyncpg

_NUMBERS = ("flights", "departed", "cancelled", "dep_delay_minutes", "delayed_over_60")
_LOAD = """
CREATE TEMP TABLE line (flight_id text, carrier text, dep_time text, dep_delay text)
"""
_STAGED = "SELECT count(*) FROM flight"
_UNSTAGED = "SELECT count(*) FROM line WHERE NOT EXISTS (SELECT FROM flight f WHERE f.flight_id = line.flight_id)"
_LOST = "SELECT count(*) FROM line WHERE NOT EXISTS (SELECT FROM flight_seen s WHERE s.flight_id = line.flight_id)"
_DOUBLED = """
SELECT coalesce(sum(times - 1), 0) FROM (SELECT count(*) AS times FROM flight_seen GROUP BY flight_id) AS seen
"""
_PROJECTED = """
SELECT carrier, flights, departed, cancelled, dep_delay_minutes, delayed_over_60
  FROM carrier_punctuality ORDER BY carrier
"""
_EXPECTED = """
SELECT carrier, count(*) AS flights, count(*) FILTER (WHERE dep_time <> 'NA') AS departed,
       count(*) FILTER (WHERE dep_time = 'NA') AS cancelled,
       coalesce(sum(dep_delay::int) FILTER (WHERE dep_time <> 'NA'), 0) AS dep_delay_minutes,
       count(*) FILTER (WHERE dep_time <> 'NA' AND dep_delay::int > 60) AS delayed_over_60
  FROM (SELECT DISTINCT ON (flight_id) * FROM line) AS flights GROUP BY carrier ORDER BY carrier
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tables say. `lost` and `doubled` count flights; `agrees` is the projection against the file."""

    rows: int
    lost: int
    doubled: int
    per_carrier: dict[str, dict[str, int]]
    agrees: bool


async def judge(path: Path, *, skip: frozenset[int], producer: str, consumer: str) -> Verdict:
    """Count by SQL over both services' tables; `skip` are line numbers that are no flights, the rest are URLs."""
    lines = _lines(path, skip)
    rows, unstaged = await _ask(producer, lines, _STAGED, _UNSTAGED)
    lost, doubled = await _ask(consumer, lines, _LOST, _DOUBLED)
    projected, expected = await _ask_tables(consumer, lines)
    return Verdict(rows, lost + unstaged, doubled, projected, projected == expected)


def _lines(path: Path, skip: frozenset[int]) -> list[tuple[str, str, str, str]]:
    opener = gzip.open if path.read_bytes()[:2] == b"\x1f\x8b" else open
    found = []
    with opener(path, "rt", encoding="utf-8", errors="replace", newline="") as text:
        reader = csv.DictReader(text)
        for row in reader:
            if reader.line_num not in skip:
                day = f"{int(row['year']):04}-{int(row['month']):02}-{int(row['day']):02}"
                flight = f"{day}:{row['carrier'].strip()}:{int(row['flight'])}:{row['origin'].strip()}"
                found.append((flight, row["carrier"].strip(), row["dep_time"], row["dep_delay"]))
    return found


async def _ask(url: str, lines: list[tuple[str, str, str, str]], *questions: str) -> list[int]:
    connection = await _loaded(url, lines)
    try:
        return [int(await connection.fetchval(question)) for question in questions]
    finally:
        await connection.close()


async def _ask_tables(
    url: str, lines: list[tuple[str, str, str, str]]
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    connection = await _loaded(url, lines)
    try:
        answers = [await connection.fetch(question) for question in (_PROJECTED, _EXPECTED)]
    finally:
        await connection.close()
    projected, expected = ({row["carrier"]: {n: int(row[n]) for n in _NUMBERS} for row in rows} for rows in answers)
    return projected, expected


async def _loaded(url: str, lines: list[tuple[str, str, str, str]]) -> asyncpg.Connection[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    await connection.execute(_LOAD)
    await connection.copy_records_to_table("line", records=lines)
    return connection
