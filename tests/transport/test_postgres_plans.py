"""Guards on the plans of the PostgreSQL transport's hot statements, and on how many there are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from postroad.sql.asyncpg import AsyncpgHand
from postroad.transport.postgres import store
from transport.ends import Numbers, PostgresEnds, bodies

FUTURE, WAITING = 100_000, 30_000
ROW = "'{1}', '{k}', '{shop.order.placed}', '{NULL}', '{x}', '{t}', ARRAY['{}'], '{shop.events}', '{r}', ':deliveries'"
CASES = {
    "send": (ROW, "subscription_pkey", 60),
    "ack": ("'{1,2,3}', '{1,2,3}'", "work_pkey", 60),
    "holding": ("'{nobody:deliveries}'", "work_open_key", 60),
}


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(database)
    await connection.execute(f"""
        SET search_path = postroad;
        INSERT INTO subscription (consumer, event_type)
        SELECT 'c' || n, CASE WHEN n < 3 THEN 'shop.order.placed' ELSE 'shop.order.other' || n END
        FROM generate_series(1, 5000) n;
        INSERT INTO work (id, queue, kind, key, state, run_at, body, content_type)
        SELECT nextval('work_id'), 'q', 'retry', n::text, 'scheduled', now() + n * interval '1 minute', '', ''
        FROM generate_series(1, {FUTURE}) n;
        INSERT INTO work (id, queue, kind, key, state, run_at, body, content_type)
        SELECT nextval('work_id'), 'c' || n % 3 || ':deliveries', 'delivery', n::text, 'ready', now(), '', ''
        FROM generate_series(1, {WAITING}) n;
        ANALYZE work, subscription;
    """)
    yield connection
    await connection.close()


async def plan_of(sql: Any, name: str, arguments: str, mode: str) -> tuple[list[tuple[str, str | None]], int]:
    transaction = sql.transaction()
    await transaction.start()
    try:
        await sql.execute(f"SET LOCAL plan_cache_mode = {mode}")
        await sql.execute(f"PREPARE guarded AS {store.QUERIES.text(name, 'postroad')}")
        text = await sql.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE guarded ({arguments})")
        await sql.execute("DEALLOCATE guarded")
    finally:
        await transaction.rollback()
    plan = json.loads(text)[0]["Plan"]
    return nodes(plan), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def nodes(plan: Any) -> list[tuple[str, str | None]]:
    name = plan.get("Index Name") or plan.get("Relation Name")
    return [(plan["Node Type"], name)] + [node for inner in plan.get("Plans", ()) for node in nodes(inner)]


def assert_lean(found: tuple[list[tuple[str, str | None]], int], index: str, most: int) -> None:
    plan, pages = found
    assert not [node for node, name in plan if node == "Seq Scan" and name in {"work", "subscription"}], plan
    assert index in {name for _, name in plan}, plan
    assert pages <= most, plan


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("name", CASES)
async def test_hot_statements_follow_their_index(sql: Any, name: str, mode: str) -> None:
    arguments, index, most = CASES[name]
    assert_lean(await plan_of(sql, name, arguments, mode), index, most)


@pytest.mark.sabotage
async def test_without_the_index_the_guard_turns_red(sql: Any) -> None:
    await sql.execute("ALTER TABLE subscription DROP CONSTRAINT subscription_pkey")
    arguments, index, most = CASES["send"]
    with pytest.raises(AssertionError):
        assert_lean(await plan_of(sql, "send", arguments, "force_custom_plan"), index, most)


async def test_a_thousand_events_cost_few_statements(
    postgres: Any, database: str, runtime_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement for each batch handed over, and for each claim and turn of acks: not for each event."""
    made: list[str] = []
    fetch = AsyncpgHand.fetch

    async def counted(self: AsyncpgHand, statement: Any) -> Any:
        if ":deliveries" in str(statement.args) or "unnest($1::bigint[]" in statement.text:
            made.append(statement.text[:40])
        return await fetch(self, statement)

    monkeypatch.setattr(AsyncpgHand, "fetch", counted)
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        end = await PostgresEnds(stack, postgres, database, runtime_url).open(prefetch=200)
        await end.send(*Numbers().messages(1000))
        seen: set[int] = set()
        while len(seen) < 1000:
            taken = await end.intake.take(200)
            seen.update(bodies(taken))
            end.intake.ack([one.tag for one in taken])
        assert 0 < len(made) < 150, len(made)
