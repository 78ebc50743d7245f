"""A dispatcher that lost its shards changes nothing any more, however late it wakes; each with its sabotage."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from dispatching import SCHEMA, an_event
from postroad.clock import seconds
from postroad.outbox import store
from postroad.outbox.shards import SHARDS
from postroad.signals.catalog import LateWriteRefused, OutboxCleared, PublishesSettled, PublishResult
from postroad.transport.base import Settlement
from support import until

COUNT = 40
TAKE_OVER = "UPDATE postroad.lease SET holder = $1, token = token + 1 WHERE name LIKE 'shard:%'"
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def left(connection) -> int:
    return await connection.fetchval("SELECT count(*) FROM postroad.outbox")


async def a_stopped_dispatcher_wakes_too_late(author, broker, process, database_rows, url, *arguments) -> int:
    """A child sends, is stopped past its lease, its shards are taken over; then its confirms arrive. Rows left."""
    await author.stage(*[an_event(f"k{number}") for number in range(COUNT)])
    path = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).parent / "paused.py"), url, *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert await asyncio.wait_for(child.stdout.readline(), 30) == b"sent\n"
        child.send_signal(signal.SIGSTOP)
        broker.at_once = False
        successor = await process(broker)
        await until(lambda: len(broker.unanswered) == COUNT)
        child.stdin.write(b"answer\n")
        await child.stdin.drain()
        child.send_signal(signal.SIGCONT)
        report = await asyncio.wait_for(child.stdout.readline(), 30)
        assert report.startswith(b"deleted")
        rows = await left(database_rows)
        broker.answer()
        if rows:
            await successor.heard.wait(OutboxCleared)
        return rows
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        child._transport.close()  # type: ignore[attr-defined]


async def test_a_paused_dispatchers_late_delete_changes_nothing(author, broker, process, database_rows, runtime_url):
    assert await a_stopped_dispatcher_wakes_too_late(author, broker, process, database_rows, runtime_url) == COUNT


@pytest.mark.sabotage
async def test_without_the_fence_a_paused_dispatchers_late_delete_would_remove_rows(
    author, broker, process, database_rows, runtime_url
):
    rows = await a_stopped_dispatcher_wakes_too_late(author, broker, process, database_rows, runtime_url, "unfenced")
    assert rows < COUNT


async def a_take_over_commits_during_the_delete(author, broker, process, database_rows) -> int:
    """The leases are being taken over in an open transaction when the confirms arrive; it commits. Rows left."""
    broker.at_once = False
    await author.stage(*[an_event(f"k{number}") for number in range(COUNT)])
    running = await process(broker, shard_ttl=seconds(60), balance=seconds(30))
    await until(lambda: len(broker.unanswered) == COUNT)
    taking = database_rows.transaction()
    await taking.start()
    await database_rows.execute(TAKE_OVER, uuid4())
    broker.answer()
    await running.heard.wait(PublishesSettled)
    async with asyncio.timeout(10):
        while not await database_rows.fetchval(WAITS) and not running.heard.all(OutboxCleared):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await taking.commit()
    await running.heard.wait(OutboxCleared)
    assert sum(each.count for each in running.heard.all(PublishesSettled) if each.result is PublishResult.CONFIRMED)
    rows = await left(database_rows)
    if rows:
        assert sum(each.count for each in running.heard.all(LateWriteRefused)) == COUNT
        assert len(running.dispatcher._shards.reading()) < SHARDS
    return rows


async def test_a_delete_that_waited_for_a_take_over_removes_nothing_and_is_counted(
    author, broker, process, database_rows
):
    assert await a_take_over_commits_during_the_delete(author, broker, process, database_rows) == COUNT


@pytest.mark.sabotage
async def test_a_fence_that_locks_nothing_would_let_the_delete_through(
    author, broker, process, database_rows, monkeypatch
):
    text = store.QUERIES.text("clear", SCHEMA)
    open_gate = text.replace("FOR SHARE OF lease", "")
    assert open_gate != text
    monkeypatch.setitem(store.QUERIES._rendered, ("clear", SCHEMA), open_gate)
    assert await a_take_over_commits_during_the_delete(author, broker, process, database_rows) == 0


async def test_a_charge_under_a_lost_lease_is_not_written(author, broker, process, database_rows):
    broker.at_once = False
    await author.stage(an_event())
    running = await process(broker, shard_ttl=seconds(60), balance=seconds(30))
    await until(lambda: len(broker.unanswered) == 1)
    await database_rows.execute(TAKE_OVER, uuid4())
    broker.answer(Settlement.NACKED)
    await running.heard.wait(LateWriteRefused)
    assert await database_rows.fetchval("SELECT attempts FROM postroad.outbox") == 0
