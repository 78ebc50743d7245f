"""How a claimer ends: told to stop, cancelled, and with a handler that would not end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from postroad.clock import seconds
from postroad.signals.catalog import WorkSettled
from postroad.work import store
from work.bench import QUICK, Probe, fill, forever


async def test_told_to_stop_it_claims_nothing_more_and_lets_what_runs_finish(here, sql):
    await fill(sql, 5)
    go = asyncio.Event()

    async def until_told(_row):
        await go.wait()

    probe, stop = Probe(here, slots=2, act=until_told), asyncio.Event()
    claimer = here.claimer(probe)
    running = asyncio.create_task(claimer.run(stop, here.ready))
    await probe.until(lambda: len(probe.running) == 2)
    stop.set()
    assert (await asyncio.wait([running], timeout=0.3))[1]
    go.set()
    await running

    assert (len(probe.done), len(probe.rows)) == (2, 2)
    assert (claimer.receipt().settled, claimer.receipt().given_back, claimer.receipt().abandoned) == (2, 0, 0)
    assert await sql.fetchval("SELECT count(*) FROM work WHERE state = 'ready' AND suspect = 0 AND token IS NULL") == 3
    assert await sql.fetchval("SELECT count(*) FROM lease WHERE holder IS NOT NULL") == 0


async def assert_cancelled_it_gives_back(here, sql):
    await fill(sql, 3)
    probe, stop = Probe(here, act=forever), asyncio.Event()
    claimer = here.claimer(probe)
    running = asyncio.create_task(claimer.run(stop, here.ready))
    await probe.until(lambda: len(probe.running) == 3)
    stop.set()
    running.cancel()
    await asyncio.wait([running], timeout=5)

    assert running.cancelled()
    assert len(probe.cancelled) == 3
    assert (claimer.receipt().settled, claimer.receipt().given_back, claimer.receipt().abandoned) == (0, 3, 0)
    assert await sql.fetchval("SELECT count(*) FROM work WHERE state = 'ready' AND suspect = 0 AND attempt = 0") == 3
    assert await sql.fetchval("SELECT count(*) FROM lease WHERE holder IS NOT NULL") == 0
    assert [signal.result for signal in here.heard.of(WorkSettled)] == ["interrupted"] * 3


async def test_cancelled_it_gives_back_what_runs_uncharged_and_releases_the_lease(here, sql):
    await assert_cancelled_it_gives_back(here, sql)


@pytest.mark.sabotage
async def test_sabotage_without_giving_back_the_rows_wait_for_their_recovery(here, sql, monkeypatch):
    monkeypatch.setattr(store, "held_by", lambda schema, _worker: store.quarantine_state(schema))
    with pytest.raises(AssertionError):
        await assert_cancelled_it_gives_back(here, sql)


async def test_a_handler_that_will_not_end_is_abandoned_and_the_lease_is_not_released(here, sql):
    await fill(sql, 1)
    let_go = asyncio.Event()

    async def ignores(_row):
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    probe, stop = Probe(here, act=ignores), asyncio.Event()
    claimer = here.claimer(probe, settings=replace(QUICK, let_go=seconds(0.3)))
    running = asyncio.create_task(claimer.run(stop, here.ready))
    await probe.until(lambda: probe.running)
    running.cancel()
    await asyncio.wait([running], timeout=5)

    assert (claimer.receipt().given_back, claimer.receipt().abandoned) == (0, 1)
    assert await sql.fetchval("SELECT count(*) FROM work WHERE state = 'running'") == 1
    assert await sql.fetchval("SELECT count(*) FROM lease WHERE holder IS NOT NULL") == 1
    let_go.set()
    await probe.until(lambda: not probe.running)
