"""An outbox that grows while the broker is away: authors do not feel it, and it drains within bounds."""

from __future__ import annotations

import asyncio
import os
import time

import asyncpg
import pytest

from dispatching import an_event
from outbox.test_routes import GOOD, PRODUCTION, a_backlog
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


@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_an_outbox_grown_in_an_outage_costs_authors_nothing_and_drains_within_its_window(
    author, author_url, broker, process, database_rows
):
    running = await process(broker, **PRODUCTION)
    broker.turn(up=False)
    before = await commit_latency(author, author_url)
    for _ in range(10):
        await a_backlog(database_rows, ROWS // 10, route=GOOD[1])
    await database_rows.execute("ANALYZE postroad.outbox")
    after = [await commit_latency(author, author_url) for _ in range(3)]
    assert min(after) <= 1.5 * before + 0.001
    most = 0
    publish = broker.publish

    def counted(batch):
        nonlocal most
        publish(batch)
        most = max(most, len(broker.unanswered))

    broker.publish = counted
    began = time.monotonic()
    broker.turn(up=True)
    total = ROWS + 4 * COMMITS
    await until(lambda: len(broker.seen) >= total, within=ROWS / 500)
    assert most <= running.dispatcher._settings.window
    assert len(set(broker.ids())) == total
    rate = total / (time.monotonic() - began)
    assert rate > 1000, rate
    await until(lambda: not broker.unanswered)

    async def left():
        return await database_rows.fetchval("SELECT count(*) FROM postroad.outbox")

    async with asyncio.timeout(30):
        while await left():  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.05)  # a poll
