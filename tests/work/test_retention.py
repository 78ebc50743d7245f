"""What is over is shown for a while; what is open is never removed by its age."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.work import retention
from work.bench import SCHEMA

NOW = datetime.now(UTC)


@pytest.fixture
async def finished(sql):
    for number, (outcome, days) in enumerate([
        ("handled", 8), ("handled", 10), ("dropped", 10), ("duplicate", 10), ("failed", 10), ("failed", 92),
        ("cancelled", 10), ("cancelled", 92),
    ]):  # fmt: skip
        await sql.execute(
            "INSERT INTO finished (id, queue, kind, outcome, attempt, created_at, finished_at)"
            " VALUES ($1, 'q', 'retry', $2, 1, now(), $3)",
            number, outcome, NOW - timedelta(days=days),
        )  # fmt: skip
    return sql


async def test_finished_work_that_could_not_leave_by_the_day_leaves_by_the_row_and_failures_later(finished):
    assert await drive(retention.thin_finished(SCHEMA, now=NOW), AsyncpgHand(finished)) == 5
    left = await finished.fetch("SELECT outcome FROM finished ORDER BY id")
    assert [row["outcome"] for row in left] == ["handled", "failed", "cancelled"]


async def test_resolved_quarantine_is_forgotten_after_ninety_days_and_open_rows_never(sql):
    for number, days in enumerate([None, 89, 91]):
        await sql.execute(
            "INSERT INTO quarantine (kind, queue, key, digest, class, code, fingerprint, error_type, reason, body,"
            " content_type, quarantined_at, resolved_at) VALUES ('delivery', 'q', $1, '', 'c', 'c', 'f', 'E', 'r', '',"
            " '', now() - interval '5 years', $2)",
            str(number), None if days is None else NOW - timedelta(days=days),
        )  # fmt: skip
    assert await drive(retention.forget_resolved(SCHEMA, now=NOW), AsyncpgHand(sql)) == 1
    assert [row["key"] for row in await sql.fetch("SELECT key FROM quarantine ORDER BY key")] == ["0", "1"]
