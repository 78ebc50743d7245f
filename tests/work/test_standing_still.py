"""A process that stands still inside a transaction of ours: the server ends it, and the others go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from postroad.clock import seconds
from postroad.leases import advance
from postroad.leases import store as leases
from postroad.retry import Backoff
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.transactions import AsyncpgTransactions, AsyncpgUnit
from postroad.work import running, store
from postroad.work.job import job
from postroad.work.run import Run  # noqa: TC001 - the annotations of jobs are read
from work.jobbench import Number, enqueue, numbers, queues, until_empty, working

SCHEMA = "postroad"
ROOMS = (running.QUERIES, store.QUERIES, leases.QUERIES)
OURS = "'idle_in_transaction_session_timeout', '5s'"


def idling(monkeypatch, limit: str) -> None:
    """Let our transactions idle for `limit` instead of five seconds."""
    for each in ROOMS:
        texts = {name: text.replace(OURS, OURS.replace("5s", limit)) for name, text in each._texts.items()}
        assert texts != each._texts
        monkeypatch.setattr(each, "_texts", texts)
        monkeypatch.setattr(each, "_rendered", {})


@pytest.fixture
async def stopped(runtime_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The connection of a process that will stand still: what it sends is never followed by anything."""
    connection = await asyncpg.connect(runtime_url)
    yield connection
    connection.terminate()


async def claimed(sql, key: str | None = None) -> tuple[int, int]:
    """A row that runs under the lease of a worker that is gone."""
    [row] = await enqueue(sql, "j", *numbers(1), key=key)
    token = await sql.fetchval(
        "UPDATE work SET state = 'running', worker = 'worker:gone', token = nextval('work_token'),"
        " started_at = now() WHERE id = $1 RETURNING token",
        row,
    )
    return row, token


async def recovered(here, *, within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if await here.manager.run(store.recover(SCHEMA)):
            return True
    return False


async def stands_still(here, sql, stopped, *, finish: bool) -> bool:
    """A worker stands still before its commit; whether another recovers its row."""
    row, token = await claimed(sql)
    last = store.finish(SCHEMA, row, token, outcome="handled") if finish else running.hold(SCHEMA, row, token)
    await stopped.execute("BEGIN")
    assert await drive(last, AsyncpgHand(stopped))
    return await recovered(here, within=4)


@pytest.mark.parametrize("finish", [False, True])
async def test_a_worker_before_its_commit_gives_its_row_up(here, sql, stopped, monkeypatch, finish):
    idling(monkeypatch, "300ms")
    assert await stands_still(here, sql, stopped, finish=finish)
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        await stopped.execute("COMMIT")
    assert await sql.fetchval("SELECT count(*) FROM finished") == 0


@pytest.mark.sabotage
@pytest.mark.parametrize("finish", [False, True])
async def test_sabotage_without_the_limit_its_row_is_nobodys(here, sql, stopped, monkeypatch, finish):
    idling(monkeypatch, "0")
    assert not await stands_still(here, sql, stopped, finish=finish)


async def test_an_author_who_enqueues_under_its_key_waits_for_seconds_at_most(here, sql, stopped, monkeypatch):
    row, token = await claimed(sql, key="k")
    await stopped.execute("BEGIN")
    assert await drive(store.finish(SCHEMA, row, token, outcome="handled"), AsyncpgHand(stopped))
    async with asyncio.timeout(8):
        await sql.execute(
            "INSERT INTO work (id, queue, kind, key, state, event_type, body, content_type) VALUES"
            " (nextval('work_id'), 'j', 'job', 'k', 'ready', 'j', '{}', '') ON CONFLICT DO NOTHING"
        )


async def test_a_worker_whose_turn_it_is_in_the_fleet_gives_it_up(here, sql, stopped, monkeypatch):
    idling(monkeypatch, "300ms")
    assert await turn(here, sql, stopped)


@pytest.mark.sabotage
async def test_sabotage_without_the_limit_the_fleet_waits_for_it(here, sql, stopped, monkeypatch):
    idling(monkeypatch, "0")
    assert not await turn(here, sql, stopped)


async def turn(here, sql, stopped) -> bool:
    """A worker stands still when it has taken its turn; whether another may claim then."""
    await enqueue(sql, "j", *numbers(1))

    def claiming():
        return running.within_fleet(
            SCHEMA, "j", most=1, wanted=1, claim=lambda room: store.claim(SCHEMA, queue="j", limit=room, worker="w")
        )

    await stopped.execute("BEGIN")
    await AsyncpgHand(stopped).fetch(next(claiming()))
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        if await here.manager.run(claiming()):
            return True
    return False


async def test_a_process_that_recovers_another_gives_that_up(here, sql, stopped, monkeypatch):
    idling(monkeypatch, "300ms")
    await claimed(sql)
    await sql.execute("INSERT INTO lease (name, expires_at, ttl) VALUES ('worker:gone', now(), '10 s')")
    await stopped.execute("BEGIN")
    assert await drive(advance(SCHEMA, "worker:gone", 1), AsyncpgHand(stopped))
    assert await recovered(here, within=8)


@pytest.mark.parametrize("finish", [False, True])
async def test_an_attempt_whose_commit_came_too_late_is_not_charged(here, sql, monkeypatch, finish):
    idling(monkeypatch, "300ms")
    await sql.execute("CREATE TABLE made (number integer)")
    await sql.execute("GRANT ALL ON made TO pr_runtime")
    tries = []
    driven = AsyncpgUnit.drive

    async def and_stand_still(unit, pipeline):
        done = await driven(unit, pipeline)
        tries.append(unit)
        while len(tries) == 1 and not unit.lost:  # noqa: ASYNC110 - a connection tells nothing by itself
            await asyncio.sleep(0.01)
        return done

    monkeypatch.setattr(AsyncpgUnit, "drive", and_stand_still)

    @job("j", retry=Backoff(first=seconds(0.05), most=seconds(0.05), attempts=1))
    async def work(request: Number, run: Run) -> None:
        async with run.transaction(finish=finish) as tx:
            await tx.execute("INSERT INTO postroad.made VALUES ($1)", request.number)

    [row] = await enqueue(sql, "j", *numbers(1))
    transactions = AsyncpgTransactions(here.manager)
    async with working(here, queues(here, work, transactions=lambda _: transactions)):
        await until_empty(sql)
    assert len(tries) == 2
    assert await sql.fetchval("SELECT count(*) FROM made") == 1
    assert await sql.fetchrow("SELECT outcome, attempt FROM finished WHERE id = $1", row) == ("handled", 1)


@pytest.mark.parametrize("finish", [False, True])
async def test_the_limit_ends_with_the_transaction(here, sql, stopped, finish):
    row, token = await claimed(sql)
    last = store.finish(SCHEMA, row, token, outcome="handled") if finish else running.hold(SCHEMA, row, token)
    setting = "SELECT current_setting('idle_in_transaction_session_timeout')"
    async with stopped.transaction():
        assert await drive(last, AsyncpgHand(stopped))
        assert await stopped.fetchval(setting) == "5s"
    assert await stopped.fetchval(setting) == "0"
