"""Guards on the plans of the hot statements: they must not come to read the whole table."""

from __future__ import annotations

import json
import os
from datetime import timedelta

import asyncpg
import pytest

from postroad.work import running, store
from work.bench import SCHEMA, put

FUTURE, READY = (
    int(os.environ.get(f"POSTROAD_TEST_{name}", default)) for name, default in (("FUTURE", 100_000), ("READY", 30_000))
)
"""How many rows wait: a million of each shows the same, in more time."""
CHURNED = 20_000
MORE = 1.2
"""New versions lie on pages of their own where the table has grown; what a claim walks over again is more than that."""
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


@pytest.fixture
async def churned(sql):
    """A table whose statistics know of no running row, and whose index of these holds many dead ones."""
    await sql.execute(f"""
        INSERT INTO work (id, queue, kind, state, run_at, body, content_type)
        SELECT nextval('work_id'), 'q', 'job', 'ready', now() - interval '1 hour' + n * interval '1 ms', 'body', ''
        FROM generate_series(1, {CHURNED}) n
    """)
    await sql.execute("ANALYZE work")
    held = await asyncpg.connect(**await _place(sql))
    await held.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    await sql.execute(f"""
        UPDATE work SET state = 'running', worker = 'worker:a', token = nextval('work_token')
        WHERE id <= {CHURNED - 200};
        DELETE FROM work WHERE state = 'running';
        UPDATE work SET state = 'running', worker = 'worker:a', token = nextval('work_token');
    """)
    yield sql
    await held.close()


async def _place(sql):
    row = await sql.fetchrow("SELECT current_database() AS database, current_user AS user")
    address = sql._addr
    host, port = address if isinstance(address, tuple) else (address.rpartition("/")[0], address.rpartition(".")[2])
    return {"host": host, "port": int(port), **row}


@pytest.mark.parametrize("mode", MODES)
async def test_statements_on_claimed_rows_go_by_their_ids_whatever_ran_before(churned, mode):
    """A plan by the index of what runs would walk over all that ran since the last vacuum."""
    rows = await churned.fetch("SELECT id, token FROM work ORDER BY id LIMIT 100")
    ids, tokens = ("'{" + ",".join(str(row[name]) for row in rows) + "}'" for name in ("id", "token"))
    one = f"{rows[0]['id']}, {rows[0]['token']}"
    cases = [
        (running, "finish_many", f"{ids}, {tokens}, 'handled', NULL", 3000),
        (running, "hold", one, 20),
        (running, "report", f"{one}, 0.5, 'half'", 60),
        (store, "give_back", f"{ids}, {tokens}", 3000),
        (store, "finish", f"{one}, 'handled', NULL", 60),
        (store, "delay_again", f"{one}, '1 s', 1, '{{}}'", 80),
    ]
    for room, name, arguments, most in cases:
        plan, pages = await explained(churned, name, arguments, mode, queries=room.QUERIES)
        assert_lean(plan, pages, index="work_pkey", most=most)
        assert "work_running" not in {index for _, index in plan}, (name, plan)


@pytest.mark.sabotage
async def test_sabotage_asked_for_their_state_too_they_walk_over_all_that_ran(churned, monkeypatch):
    text = running.QUERIES.text("hold", SCHEMA)
    monkeypatch.setitem(
        running.QUERIES._rendered,
        ("hold", SCHEMA),
        text.replace("WHERE", "WHERE state = 'running' AND worker = 'worker:a' AND"),
    )
    await churned.execute("ALTER TABLE work DROP CONSTRAINT work_pkey")
    row = await churned.fetchrow("SELECT id, token FROM work LIMIT 1")
    plan, pages = await explained(
        churned, "hold", f"{row['id']}, {row['token']}", "force_custom_plan", queries=running.QUERIES
    )
    with pytest.raises(AssertionError):
        assert_lean(plan, pages, index="work_pkey", most=20)


async def explained(sql, name, arguments, mode, *, queries=store.QUERIES):
    """The plan of a statement as it runs, and how many pages it touched; nothing is changed."""
    transaction = sql.transaction()
    await transaction.start()
    try:
        await sql.execute(f"SET LOCAL plan_cache_mode = {mode}")
        await sql.execute(f"PREPARE guarded AS {queries.text(name, SCHEMA)}")
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
        "'r1', 100, 'worker:a', '{0,1}', ARRAY[now() - interval '2 hours', '-infinity'], '{0,0}'",
        "work_ready",
        2500,
    ),
    "claim_suspect": ("'r1', 'worker:a'", "work_suspect", 60),
    "make_due": ("100", "work_scheduled", 60),
    "recover": ("'{worker:gone}', 100", "work_running", 60),
    "running_workers": ("", "work_running", 60),
    "held_by": ("'worker:gone'", "work_running", 60),
    "suspects": ("'{q,r1}'", "work_suspect", 60),
}
JOBS = {
    "asked": ("'{worker:gone}', '{q,r1}'", "work_running", 60),
    "count_running": ("'r1'", "work_running", 60),
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


@pytest.mark.parametrize("mode", MODES)
async def test_what_is_asked_of_running_rows_reads_their_index_alone(crowded, mode):
    for name, (arguments, index, most) in JOBS.items():
        plan, pages = await explained(crowded, name, arguments, mode, queries=running.QUERIES)
        assert_lean(plan, pages, index=index, most=most)


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


@pytest.fixture
async def worked_off(here, crowded):
    """What the first claim of a crowd reads, and what one does after thirty were ended: from where they got to, and
    from the start. A transaction is held open meanwhile, so that nothing of them can be cleared away."""
    async with here.manager.connection() as held, held.transaction(isolation="repeatable_read"):
        await held.execute("SELECT 1 FROM postroad.work LIMIT 1")
        start = "'{0}', ARRAY['-infinity'::timestamptz], '{0}'"
        _, first = await explained(crowded, "claim_on", f"'r1', 100, 'w', {start}", "force_custom_plan")
        reached = {}
        for _ in range(30):
            rows = await here.run(store.claim(SCHEMA, queue="r1", limit=100, worker="worker:a", after=reached))
            reached |= {row.priority: (row.run_at, row.id) for row in rows}
            ends = [running.Finish(row.id, row.token, outcome="handled") for row in rows]
            assert len(await here.run(running.finish_many(SCHEMA, ends))) == 100
        [(priority, (run_at, last))] = reached.items()
        place = f"'{{{priority}}}', ARRAY['{run_at.isoformat()}'::timestamptz], '{{{last}}}'"
        _, later = await explained(crowded, "claim_on", f"'r1', 100, 'w', {place}", "force_custom_plan")
        _, again = await explained(crowded, "claim", "'r1', 100, 'w'", "force_custom_plan")
    return first, later, again


async def test_a_claim_reads_as_little_after_many_as_at_first(worked_off):
    """Pages, not time: neither the crowd that waits nor the dead rows of those before cost the next claim anything."""
    first, later, _ = worked_off
    assert later <= first * MORE


@pytest.mark.sabotage
async def test_sabotage_from_the_start_it_reads_all_that_was_claimed_before(worked_off):
    first, _, again = worked_off
    assert again > first * MORE


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
