"""The independent judge: what the two services' own tables say, against the file. It imports nothing of Postroad."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TypeAlias

import asyncpg

_NUMBERS = ("flights", "departed", "cancelled", "dep_delay_minutes", "delayed_over_60")
_LOAD = """
CREATE TEMP TABLE line (flight_id text, carrier text, day date, dep_time text, dep_delay text)
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
_REPORTED = """
SELECT day, flights, departed, cancelled, dep_delay_minutes, delayed_over_60
  FROM daily_report WHERE day IN (SELECT day FROM line) ORDER BY day
"""
_COUNTS = """
SELECT {per}, count(*) AS flights, count(*) FILTER (WHERE dep_time <> 'NA') AS departed,
       count(*) FILTER (WHERE dep_time = 'NA') AS cancelled,
       coalesce(sum(dep_delay::int) FILTER (WHERE dep_time <> 'NA'), 0) AS dep_delay_minutes,
       count(*) FILTER (WHERE dep_time <> 'NA' AND dep_delay::int > 60) AS delayed_over_60
  FROM (SELECT DISTINCT ON (flight_id) * FROM line) AS flights GROUP BY {per} ORDER BY {per}
"""
_EXPECTED, _DUE = _COUNTS.format(per="carrier"), _COUNTS.format(per="day")
_LATE = """
SELECT flight_id FROM (SELECT DISTINCT ON (flight_id) * FROM line) AS flights
 WHERE dep_time <> 'NA' AND dep_delay::int > 60
"""
_NOTED = "SELECT flight_id FROM passenger_notice"

Line: TypeAlias = tuple[str, str, date, str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tables say. `lost` and `doubled` count flights; `agrees` is the projection against the file.

    `reports` and `notices` count what there is, of `days` and `late` flights in the file. `reports_agree`: each day has
    one report, with the file's figures. `notices_agree`: each late flight has one notice at the provider, no other
    flight has, and the service has noted the same.
    """

    rows: int
    lost: int
    doubled: int
    per_carrier: dict[str, dict[str, int]]
    agrees: bool
    days: int
    reports: int
    reports_agree: bool
    late: int
    notices: int
    notices_agree: bool


async def judge(
    path: Path, *, skip: frozenset[int], producer: str, consumer: str, sent: Mapping[str, int], until: date
) -> Verdict:  # fmt: skip
    """Count by SQL over both services' tables, at these URLs, and what the provider has `sent` for each flight.

    `skip` are line numbers that are no flights. Days after `until` have no report yet.
    """
    lines = _lines(path, skip)
    rows, unstaged = await _ask(producer, lines, _STAGED, _UNSTAGED)
    lost, doubled = await _ask(consumer, lines, _LOST, _DOUBLED)
    projected, expected, reported, due, late, noted = await _ask_tables(
        consumer, lines, _PROJECTED, _EXPECTED, _REPORTED, _DUE, _LATE, _NOTED
    )
    flights = sorted(row[0] for row in late)
    reported, due = ([row for row in rows if row["day"] <= until] for rows in (reported, due))
    return Verdict(
        rows, lost + unstaged, doubled, {row["carrier"]: {n: int(row[n]) for n in _NUMBERS} for row in projected},
        agrees=projected == expected, days=len(due), reports=len(reported), reports_agree=reported == due,
        late=len(flights), notices=sum(sent.values()),
        notices_agree=sent == dict.fromkeys(flights, 1) and sorted(row[0] for row in noted) == flights,
    )  # fmt: skip


def _lines(path: Path, skip: frozenset[int]) -> list[Line]:
    opener = gzip.open if path.read_bytes()[:2] == b"\x1f\x8b" else open
    found = []
    with opener(path, "rt", encoding="utf-8", errors="replace", newline="") as text:
        reader = csv.DictReader(text)
        for row in reader:
            if reader.line_num not in skip:
                day = date(int(row["year"]), int(row["month"]), int(row["day"]))
                flight = f"{day.isoformat()}:{row['carrier'].strip()}:{int(row['flight'])}:{row['origin'].strip()}"
                found.append((flight, row["carrier"].strip(), day, row["dep_time"], row["dep_delay"]))
    return found


async def _ask(url: str, lines: list[Line], *questions: str) -> list[int]:
    connection = await _loaded(url, lines)
    try:
        return [int(await connection.fetchval(question)) for question in questions]
    finally:
        await connection.close()


async def _ask_tables(url: str, lines: list[Line], *questions: str) -> list[list[asyncpg.Record]]:
    connection = await _loaded(url, lines)
    try:
        return [await connection.fetch(question) for question in questions]
    finally:
        await connection.close()


async def _loaded(url: str, lines: list[Line]) -> asyncpg.Connection[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    await connection.execute(_LOAD)
    await connection.copy_records_to_table("line", records=lines)
    return connection
