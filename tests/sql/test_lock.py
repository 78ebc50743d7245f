"""Locks by a name: of a session of their own, lost with it, and of a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.errors import LeaseHeld, LeaseLost, SettingsError, Unavailable, UsageError
from postroad.signals import Signals
from postroad.signals.catalog import TaskFailed
from postroad.sql import drive, drive_sync, pooler
from postroad.sql.advisory import key_of, locked
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.lock import Locks
from postroad.sql.manager import Manager
from postroad.sql.psycopg import PsycopgHand
from postroad.testing.servers import TcpProxy
from support import ThreadOwner

heard: list[Any] = []


def locks(url: str, *, schema: str = "postroad", look_every: float = 5) -> Locks:
    owner = ThreadOwner(Signals(heard.append))
    return Locks(
        url, schema=schema, owner=owner, clock=SYSTEM_CLOCK, chance=lambda: 0.5, look_every=seconds(look_every)
    )


@pytest.fixture(autouse=True)
def nothing_fails_unseen():
    heard.clear()
    yield
    assert [signal for signal in heard if isinstance(signal, TaskFailed)] == []


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def ever() -> None:
    await asyncio.Event().wait()


LOCKED = """
    SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
     WHERE locktype = 'advisory' AND granted AND datname = current_database()
"""
KILL = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
     WHERE application_name = 'postroad-lock' AND datname = current_database()
"""

# --- of a session ---------------------------------------------------------------------------------------------------


async def test_one_has_the_lock_and_the_next_has_it_at_once_after_the_block(runtime_url, sql) -> None:
    one, two = locks(runtime_url), locks(runtime_url)
    async with one.hold("nightly"):
        assert await sql.fetchval(LOCKED) == 1
        with pytest.raises(LeaseHeld, match=r"lock 'nightly' is held by another session; try later.*PR402"):
            async with two.hold("nightly"):
                pass
        with pytest.raises(LeaseHeld, match=r"waited 0.3 s"):
            async with two.hold("nightly", wait=seconds(0.3)):
                pass
        async with two.hold("another"), locks(runtime_url, schema="other").hold("nightly"):
            pass
    async with two.hold("nightly"):
        pass
    assert await sql.fetchval(LOCKED) == 0


async def test_who_waits_has_it_after_the_other(runtime_url) -> None:
    one, order = locks(runtime_url), []

    async def next_one() -> None:
        async with one.hold("nightly", wait=seconds(20)):
            order.append("two")

    async with one.hold("nightly"):
        waiting = asyncio.ensure_future(next_one())
        await asyncio.sleep(0)
        order.append("one")
    await waiting
    assert order == ["one", "two"]


async def killed(url: str, sql: asyncpg.Connection) -> None:
    async with locks(url).hold("nightly"):
        assert await sql.fetchval(KILL) == 1
        await ever()


async def test_a_lock_is_lost_with_its_connection_and_its_block_is_cancelled(runtime_url, sql) -> None:
    with pytest.raises(LeaseLost, match=r"lock 'nightly' was lost with its connection.*PR403"):
        async with asyncio.timeout(20):
            await killed(runtime_url, sql)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    async with locks(runtime_url).hold("nightly"):
        pass


@pytest.mark.sabotage
async def test_without_the_interrupt_the_block_goes_on_without_its_lock(runtime_url, sql, monkeypatch) -> None:
    monkeypatch.setattr("postroad.sql.interrupt.Interrupt.tell", lambda _: None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await killed(runtime_url, sql)
    assert await sql.fetchval(LOCKED) == 0


async def test_a_network_that_leads_nowhere_ends_the_block(runtime_url) -> None:
    port = urlsplit(runtime_url).port
    with TcpProxy(port) as line:
        through = locks(runtime_url.replace(f":{port}", f":{line.port}"), look_every=0.2)

        async def work() -> None:
            async with asyncio.timeout(30), through.hold("nightly"):
                line.stall()
                await ever()

        with pytest.raises(LeaseLost):
            await work()


async def test_an_error_and_a_cancellation_come_out_as_they_are_and_unlock(runtime_url, sql) -> None:
    one = locks(runtime_url)
    with pytest.raises(ZeroDivisionError):
        async with one.hold("nightly"):
            raise ZeroDivisionError
    entered = asyncio.Event()

    async def work() -> None:
        async with one.hold("nightly"):
            entered.set()
            await ever()

    working = asyncio.ensure_future(work())
    await entered.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    while await sql.fetchval(LOCKED):
        pass


async def test_what_is_no_name_and_no_wait_is_refused(runtime_url) -> None:
    one = locks(runtime_url)
    for name, wait in (("", None), ("a\nb", None), (7, None), ("a", 5), ("a", seconds(-1)), ("a", seconds(1e6))):
        with pytest.raises(UsageError, match="PR107"):
            async with one.hold(name, wait=wait):
                pass
    with pytest.raises(Unavailable):
        async with locks("postgresql://nobody@127.0.0.1:1/none").hold("a"):
            pass


def test_the_key_of_a_name_is_stable_and_the_schemas_own() -> None:
    assert key_of("postroad", "nightly") == 683226027939470089
    assert len({key_of(schema, name) for schema in ("a", "b") for name in ("x", "y", "x y")}) == 6
    assert all(-(2**63) <= key_of("postroad", str(number)) < 2**63 for number in range(100))


async def test_a_pool_gives_locks_where_it_was_opened_with_them(runtime_url) -> None:
    manager = await Manager.open(runtime_url, schema="postroad", size=2, locks=locks(runtime_url))
    async with manager.lock("nightly"):
        with pytest.raises(LeaseHeld):
            async with manager.transaction(lock="nightly"):
                pytest.fail("names are the same for both forms")
    await manager.close()
    manager = await Manager.open(runtime_url, schema="postroad", size=2)
    with pytest.raises(UsageError, match="locks=Locks"):
        manager.lock("nightly")
    await manager.close()


# --- of a transaction ------------------------------------------------------------------------------------------------


async def test_a_transaction_has_the_lock_until_its_end(runtime_url, sql) -> None:
    manager = await Manager.open(runtime_url, schema="postroad", size=3)
    async with manager.transaction(lock="nightly") as connection:
        assert await connection.fetchval("SELECT 1") == 1
        with pytest.raises(LeaseHeld, match="'nightly'"):
            async with manager.transaction(lock="nightly"):
                pytest.fail("both have it")
        with pytest.raises(LeaseHeld, match=r"waited 0.2 s"):
            async with manager.transaction(lock="nightly", wait=seconds(0.2)):
                pytest.fail("both have it")
    async with manager.transaction(lock="nightly", wait=seconds(5)) as connection:
        assert await connection.fetchval("SHOW lock_timeout") == "0", "what the wait needed is put back"
    assert await sql.fetchval(LOCKED) == 0
    await manager.close()


async def test_the_authors_own_transaction_may_lock_and_go_on_when_it_has_it_not(runtime_url) -> None:
    one, two = await asyncpg.connect(runtime_url), await asyncpg.connect(runtime_url)
    async with one.transaction(), two.transaction():
        await drive(locked("postroad", "nightly"), AsyncpgHand(one))
        with pytest.raises(LeaseHeld):
            await drive(locked("postroad", "nightly"), AsyncpgHand(two))
        assert await two.fetchval("SELECT 1") == 1
    with psycopg.connect(runtime_url) as three:
        drive_sync(locked("postroad", "nightly"), PsycopgHand(three))
        with pytest.raises(LeaseHeld) as caught:
            async with one.transaction():
                await drive(locked("postroad", "nightly", wait=seconds(0.1)), AsyncpgHand(one))
        assert isinstance(caught.value.__cause__, asyncpg.LockNotAvailableError)
        with pytest.raises(LeaseHeld), psycopg.connect(runtime_url) as four:
            drive_sync(locked("postroad", "nightly", wait=seconds(0.1)), PsycopgHand(four))
    with pytest.raises(UsageError, match="wait="):
        next(locked("postroad", "nightly", wait=seconds(31)))
    await one.close()
    await two.close()


# --- poolers (a real one: tests/matrix/locks_behind_pooler.py) ------------------------------------------------------


async def test_where_a_pooler_shares_sessions_a_session_lock_is_refused(runtime_url, sql, monkeypatch) -> None:
    async def shared(*_: object) -> pooler.Between:
        return pooler.Between(pooler=True, shares=True)

    monkeypatch.setattr(pooler, "ask", shared)
    with pytest.raises(SettingsError, match=r"transaction pooler.*POSTROAD_DIRECT_URL.*within a transaction.*PR201"):
        async with locks(runtime_url).hold("nightly"):
            pytest.fail("it would mean nothing")
    assert await sql.fetchval(LOCKED) == 0
