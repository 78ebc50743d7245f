"""Workers in processes of their own that are killed, or paused past their lease."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from postroad.clock import SYSTEM_CLOCK
from postroad.signals.catalog import LeaseGone, WorkRecovered
from postroad.sql.migrations import Roles, migrate
from postroad.work import store
from work.bench import QUICK, SCHEMA, Probe, process, put

pytestmark = pytest.mark.heavy

RUNTIME = "pr_runtime"
SCRIPT = Path(__file__).parent / "worker_process.py"
TAKEN_OVER = QUICK.lease.total_seconds() + QUICK.sweep.total_seconds() + 2.0


@asynccontextmanager
async def worker(url):
    path = os.pathsep.join(filter(None, [str(SCRIPT.parent.parent), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), url, env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def line(child):
    async with asyncio.timeout(20):
        return (await child.stdout.readline()).decode().split()


async def test_a_killed_workers_row_is_taken_over_within_lease_and_sweep(here, runtime_url, sql):
    number = await put(here)
    async with worker(runtime_url) as child:
        assert await line(child) == ["ran", str(number)]
        child.kill()
        died = SYSTEM_CLOCK.monotonic()
        probe = Probe(here)
        async with here.running(probe):
            await probe.until(lambda: probe.done)
        assert SYSTEM_CLOCK.monotonic() - died < TAKEN_OVER
    assert [(row.id, row.attempt, row.suspect) for row in probe.rows] == [(number, 1, 1)]


async def test_a_long_row_of_a_living_worker_is_never_taken_over(here, runtime_url, sql):
    """It runs for three leases."""
    number = await put(here)
    async with worker(runtime_url) as child:
        await line(child)
        probe = Probe(here)
        async with here.running(probe):
            end = SYSTEM_CLOCK.monotonic() + 3 * QUICK.lease.total_seconds()
            while SYSTEM_CLOCK.monotonic() < end:
                assert await sql.fetchval("SELECT state FROM work") == "running"
            child.stdin.write(b"\n")
            assert await line(child) == ["finished", str(number), "True"]
        assert probe.rows == []


async def paused_past_its_lease(here, url):
    """A worker is stopped, its row is taken over and runs elsewhere; then it goes on and finishes. What it said."""
    number = await put(here)
    finishing = asyncio.Event()

    async def slowly(_row):
        await finishing.wait()

    probe = Probe(here, act=slowly)
    async with worker(url) as child:
        assert await line(child) == ["ran", str(number)]
        os.kill(child.pid, signal.SIGSTOP)
        async with here.running(probe):
            await here.heard.wait(WorkRecovered)
            await probe.until(lambda: probe.running)
            os.kill(child.pid, signal.SIGCONT)
            child.stdin.write(b"\n")
            said = await line(child)
            finishing.set()
            await probe.until(lambda: not probe.running)
    return said, probe


async def test_the_late_finish_of_a_paused_worker_changes_nothing(here, runtime_url, sql):
    said, probe = await paused_past_its_lease(here, runtime_url)

    assert said[2] == "False"
    assert len(probe.done) == 1
    assert await sql.fetchval("SELECT count(*) FROM finished") == 1


@pytest.mark.sabotage
async def test_sabotage_with_one_token_for_all_claims_the_late_finish_counts(here, runtime_url, sql):
    await sql.execute("""
        CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.token := 1; RETURN NEW; END';
        CREATE TRIGGER same BEFORE UPDATE ON work FOR EACH ROW WHEN (NEW.token IS NOT NULL) EXECUTE FUNCTION same();
    """)
    said, probe = await paused_past_its_lease(here, runtime_url)

    assert said[2] == "True"
    assert probe.done == []


async def test_the_fence_is_the_token_of_the_claim(here, sql):
    await put(here)
    [row] = await here.run(store.claim(SCHEMA, queue="q", limit=1, worker="worker:a"))

    assert await here.run(store.finish(SCHEMA, row.id, row.token + 1, outcome="handled")) is False
    assert await here.run(store.finish(SCHEMA, row.id, row.token, outcome="handled")) is True


async def test_a_database_killed_under_load_charges_nothing_and_loses_nothing(own_postgres):
    url = own_postgres.create_database("road")
    await migrate(url, schema=SCHEMA, roles=Roles(runtime=RUNTIME), days_ahead=1)
    own_postgres.execute(
        "INSERT INTO postroad.work (id, queue, kind, key, state, attempt, body, content_type)"
        " SELECT nextval('postroad.work_id'), 'q', 'retry', n::text, 'ready', 1, '', '' FROM generate_series(1, 300) n",
        database="road",
    )
    async with process(own_postgres.url("road", RUNTIME)) as here:
        probe = Probe(here)
        async with here.running(probe):
            await probe.until(lambda: len(probe.done) >= 20)
            await asyncio.to_thread(own_postgres.kill)
            await asyncio.to_thread(own_postgres.start)
            await probe.until(lambda: len({row.id for row in probe.rows}) == 300 and not probe.running, within=60)
            async with asyncio.timeout(30):
                while own_postgres.execute("SELECT 1 FROM postroad.work LIMIT 1", database="road"):  # noqa: ASYNC110
                    await asyncio.sleep(0)
    left = own_postgres.execute(
        "SELECT count(*), count(DISTINCT id), min(attempt), max(attempt) FROM postroad.finished", database="road"
    )
    assert left == [("300", "300", "2", "2")]


@pytest.mark.timeout(90)
async def test_an_outage_longer_than_the_lease_makes_no_suspects_of_what_the_living_ran(own_postgres):
    url = own_postgres.create_database("road")
    await migrate(url, schema=SCHEMA, roles=Roles(runtime=RUNTIME), days_ahead=0)
    url, told = own_postgres.url("road", RUNTIME), asyncio.Event()

    async def until_told(_row):
        await told.wait()

    async with process(url) as here, process(url) as there:
        ours, theirs = Probe(here, act=until_told), Probe(there, act=until_told)
        async with here.running(ours), there.running(theirs):
            for _ in range(8):
                await put(here)
            async with asyncio.timeout(20):
                while len(ours.running) + len(theirs.running) < 8:  # noqa: ASYNC110 - two probes tell of it
                    await asyncio.sleep(0.01)
            for _ in range(2):
                ran = len(ours.rows) + len(theirs.rows)
                here.heard.signals.clear()
                there.heard.signals.clear()
                await asyncio.to_thread(own_postgres.kill)
                await here.heard.wait(LeaseGone)
                await there.heard.wait(LeaseGone)
                await asyncio.to_thread(own_postgres.start)
                async with asyncio.timeout(20):
                    while len(ours.rows) + len(theirs.rows) < ran + 8:  # noqa: ASYNC110 - two probes tell of it
                        await asyncio.sleep(0.01)
            told.set()
    assert {(row.attempt, row.suspect) for row in [*ours.rows, *theirs.rows]} == {(1, 0)}
