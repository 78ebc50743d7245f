"""Guards on the plans of the hot statements: they must not come to read the whole table."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from postroad.work import store
from work.bench import SCHEMA, put

FUTURE, READY = 100_000, 30_000
MODES = ("force_generic_plan", "force_custom_plan")


@pytest.fixture
async def crowded(sql):
    await sql.execute(f"""
        INSERT INTO work (id, queue, kind, key, state, run_at, priority, body, content_type)
        SELECT nextval('work_id'), 'q', 'retry', n::text, 'scheduled', now() + n * interval '1 minute', 0, 'body', ''
        FROM generate_series(1, {FUTURE}) n;
        INSERT INTO work (id, queue, kind, key, state, run_at, priority, body, content_type)
        SELECT nextval('work_id'), 'r' || n % 3, 'retry', n::text, 'ready', now() - n * interval '1 second', n % 2,
            'body', ''
        FROM generate_series(1, {READY}) n;
    """)
    await sql.execute("ANALYZE work")
    return sql


async def explained(sql, name, arguments, mode):
    """The plan of a statement as it runs, and how many pages it touched; nothing is changed."""
    transaction = sql.transaction()
    await transaction.start()
    try:
        await sql.execute(f"SET LOCAL plan_cache_mode = {mode}")
        await sql.execute(f"PREPARE guarded AS {store.QUERIES.text(name, SCHEMA)}")
        text = await sql.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE guarded ({arguments})")
        await sql.execute("DEALLOCATE guarded")
    finally:
        await transaction.rollback()
    plan = json.loads(text)[0]["Plan"]
    return nodes(plan), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def nodes(plan):
    name = plan.get("Index Name") or plan.get("Relation Name")
    return [(plan["Node Type"], name)] + [node for inner in plan.get("Plans", ()) for node in nodes(inner)]


CASES = {
    "claim": ("'r1', 100, 'worker:a'", "work_ready", 2500),
    "claim_on": (
        "'r1', 100, 'worker:a', '{0,1}', ARRAY[now() - interval '2 hours', '-infinity'], '{0,0}'", "work_ready", 2500,
    ),
    "claim_suspect": ("'r1', 'worker:a'", "work_suspect", 60),
    "make_due": ("100", "work_scheduled", 60),
    "recover": ("'{worker:gone}', 100", "work_running", 60),
    "running_workers": ("", "work_running", 60),
    "held_by": ("'worker:gone'", "work_running", 60),
    "suspects": ("'{q,r1}'", "work_suspect", 60),
}  # fmt: skip


def assert_lean(plan, pages, *, index, most):
    assert not [node for node, name in plan if node == "Seq Scan" and name == "work"], plan
    assert index in {name for _, name in plan}, plan
    assert pages <= most


@pytest.mark.parametrize("mode", MODES)
async def test_the_hot_statements_read_their_index_and_little_else(crowded, mode):
    for name, (arguments, index, most) in CASES.items():
        call = arguments or None
        if call is None:
            text = await crowded.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {store.QUERIES.text(name, SCHEMA)}")
            plan = json.loads(text)[0]["Plan"]
            found, pages = nodes(plan), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        else:
            found, pages = await explained(crowded, name, call, mode)
        assert_lean(found, pages, index=index, most=most)


async def test_a_crowd_of_future_rows_costs_a_claim_nothing(crowded):
    _, pages = await explained(crowded, "claim", "'q', 100, 'worker:a'", "force_custom_plan")
    assert pages < 20


@pytest.mark.sabotage
@pytest.mark.parametrize("index", ["work_ready", "work_scheduled"])
async def test_sabotage_without_its_index_a_statement_reads_the_table(crowded, index):
    await crowded.execute(f"DROP INDEX {index}")
    name = {"work_ready": "claim", "work_scheduled": "make_due"}[index]
    arguments, _, most = CASES[name]
    plan, pages = await explained(crowded, name, arguments, "force_custom_plan")
    with pytest.raises(AssertionError):
        assert_lean(plan, pages, index=index, most=most)


async def test_a_position_spares_the_claim_what_a_held_transaction_keeps(here, sql, database):
    """They stay in the index as dead versions; a claim that goes on behind them skips them."""
    await sql.execute("""
        INSERT INTO work (id, queue, kind, key, state, run_at, body, content_type)
        SELECT nextval('work_id'), 'q', 'retry', n::text, 'ready', now() - interval '1 day' + n * interval '1 second',
            'body', ''
        FROM generate_series(1, 20000) n
    """)
    await sql.execute("ANALYZE work")
    async with here.manager.connection() as held, held.transaction(isolation="repeatable_read"):
        await held.execute("SELECT 1 FROM postroad.work LIMIT 1")
        rows = await here.run(store.claim(SCHEMA, queue="q", limit=19_000, worker="worker:a"))
        last = rows[-1]
        _, front = await explained(sql, "claim", "'q', 1, 'w'", "force_custom_plan")
        arguments = f"'q', 1, 'w', '{{0}}', ARRAY['{last.run_at.isoformat()}'::timestamptz], '{{{last.id}}}'"
        plan, behind = await explained(sql, "claim_on", arguments, "force_custom_plan")
    assert ("Index Scan", "work_ready") in plan
    assert behind * 3 < front


async def test_a_claim_is_one_statement(here, monkeypatch):
    await put(here)
    steps = list_steps(store.claim(SCHEMA, queue="q", limit=100, worker="w"))
    assert len(steps) == 1
    assert len(list_steps(store.claim(SCHEMA, queue="q", limit=9, worker="w", after={0: (timedelta(0), 1)}))) == 1


def list_steps(pipeline):
    steps = []
    try:
        step = next(pipeline)
        while True:
            steps.append(step)
            step = pipeline.send([])
    except StopIteration:
        return steps
