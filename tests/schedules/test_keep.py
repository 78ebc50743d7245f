"""What is kept of occurrences, and what a tick reads of many schedules."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroad.schedules import store
from schedules.planbench import SCHEMA, at, begin_at, finish, occurrences, office, schedule, settled, tick


async def test_occurrences_that_ended_long_ago_leave_and_are_not_made_again(here, sql) -> None:
    held = await office(here, schedule())
    await begin_at(sql)
    await tick(here, held, at("02 00:01"))
    await finish(sql)
    await settled(here, held)
    await tick(here, held, at("02 00:02"))
    now = await sql.fetchval("SELECT clock_timestamp()")
    assert await here.run(store.expire(SCHEMA, now=now, limit=100)) == 0
    assert await here.run(store.expire(SCHEMA, now=now + timedelta(days=91), limit=100)) == 1
    assert [row["state"] for row in await occurrences(sql)] == ["started"], "what is open stays"
    await tick(here, held, at("02 00:02"))
    assert len(await occurrences(sql)) == 1


@pytest.fixture
async def many(here, sql) -> None:
    """Ten thousand schedules, of which three are due, with a hundred thousand occurrences behind them."""
    await sql.execute(
        "INSERT INTO schedule (name, app, definition, release, cursor, next_at)"
        " SELECT 'reports.' || number, 'reports', '{}', 1, now(), now() + make_interval(secs => number - 3)"
        " FROM generate_series(1, 10000) AS number"
    )
    await sql.execute(
        "INSERT INTO occurrence (schedule, due, kind, key, state, start_at, revision)"
        " SELECT id, now() - make_interval(hours => hour), 'scheduled', hour::text, 'succeeded', now(), 1"
        " FROM schedule, generate_series(1, 10) AS hour"
    )
    await sql.execute("ANALYZE schedule, occurrence, work")


async def plan(sql, name: str, *args: object) -> str:
    rows = await sql.fetch(f"EXPLAIN {store.QUERIES.text(name, SCHEMA)}", *args)
    return "\n".join(row[0] for row in rows)


async def test_of_ten_thousand_schedules_only_what_is_due_is_read(sql, many) -> None:
    assert "Index Scan using schedule_next" in await plan(sql, "due", "reports", at("02 00:00"), 500)
    assert "schedule_next" in await plan(sql, "next", "reports")
    ids = [row["id"] for row in await sql.fetch("SELECT id FROM schedule LIMIT 100")]
    assert "occurrence_open" in await plan(sql, "open", ids)
    assert "Seq Scan on occurrence" not in await plan(sql, "over", "reports", 1000)


@pytest.mark.sabotage
async def test_without_its_index_all_schedules_are_read(sql, many) -> None:
    await sql.execute("DROP INDEX schedule_next")
    assert "Seq Scan on schedule" in await plan(sql, "due", "reports", at("02 00:00"), 500)
