"""An outbox that grows while the broker is away: authors do not feel it, and it drains within bounds."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import asyncpg
import pytest

from dispatching import an_event
from outbox.test_routes import GOOD, PRODUCTION, a_backlog
from postroad.outbox.routes import Routes
from postroad.outbox.window import Window
from support import until

ROWS = int(os.environ.get("POSTROAD_TEST_BACKLOG", "100000"))
"""A million by hand; less where the whole suite runs."""
COMMITS = 300


async def commit_latency(author, url):
    """The median seconds of a transaction that stages one event, begin and commit included."""
    connection = await asyncpg.connect(url)
    taken = []
    for number in range(COMMITS):
        began = time.monotonic()
        async with connection.transaction():
            await author.stage_on(connection, an_event(f"well-{number}", route=GOOD[0], type=GOOD[0][:-3]))
        taken.append(time.monotonic() - began)
    await connection.close()
    return sorted(taken)[COMMITS // 2]


async def grown_and_drained(author, author_url, broker, process, database_rows, *, rows):
    """The median commit before and after the outbox grew, how many events were with the broker at most, its window."""
    running = await process(broker, **PRODUCTION)
    broker.turn(up=False)
    before = await commit_latency(author, author_url)
    for _ in range(10):
        await a_backlog(database_rows, rows // 10, route=GOOD[1])
    await database_rows.execute("ANALYZE postroad.outbox")
    waiting = await database_rows.fetchval("SELECT count(*) FROM postroad.outbox")
    after = min([await commit_latency(author, author_url) for _ in range(3)])
    most = 0
    publish = broker.publish

    def counted(batch):
        nonlocal most
        publish(batch)
        most = max(most, len(broker.unanswered))

    broker.publish, broker.at_once = counted, False
    began = time.monotonic()
    broker.turn(up=True)
    window = running.dispatcher._settings.window
    await until(lambda: len(broker.unanswered) >= min(running.dispatcher._window.lane_limit, window + 1), within=60)
    broker.at_once = True
    broker.answer()
    total = rows + 4 * COMMITS
    await until(lambda: len(broker.seen) >= total, within=max(rows / 500, 60))
    rate = total / (time.monotonic() - began)
    assert len(set(broker.ids())) == total
    sys.stdout.write(
        f"{waiting} rows waited; commit {before * 1000:.2f} ms before, {after * 1000:.2f} ms then; drained at"
        f" {rate:.0f}/s, at most {most} with the broker\n"
    )
    assert rate > 1000, rate
    await until(lambda: not broker.unanswered)

    async def left():
        return await database_rows.fetchval("SELECT count(*) FROM postroad.outbox")

    async with asyncio.timeout(30):
        while await left():  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.05)  # a poll
    return before, after, most, window


@pytest.mark.heavy
@pytest.mark.timeout(240 + ROWS / 400)
async def test_an_outbox_grown_in_an_outage_costs_authors_nothing_and_drains_within_its_window(
    author, author_url, broker, process, database_rows
):
    before, after, most, window = await grown_and_drained(author, author_url, broker, process, database_rows, rows=ROWS)
    assert after <= 1.5 * before + 0.001
    assert most <= window


@pytest.mark.heavy
@pytest.mark.sabotage
async def test_without_its_bounds_the_window_takes_in_whatever_has_grown(
    author, author_url, broker, process, database_rows, monkeypatch
):
    """Nor may the breaker pass the route over, which does so once nothing is answered for a while."""
    monkeypatch.setattr(Routes, "look", lambda _: None)
    init = Window.__init__
    monkeypatch.setattr(Window, "__init__", lambda self, limit, size: init(self, 100 * limit, 100 * size, share=1))
    _, _, most, window = await grown_and_drained(author, author_url, broker, process, database_rows, rows=20_000)
    assert most > window
