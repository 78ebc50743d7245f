"""Leases and locks of an App that runs: inside another server, in background services, on threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from postroad import App
from postroad.clock import seconds
from postroad.errors import LeaseHeld, LeaseLost, SettingsError, UsageError
from postroad.runtime.settings import Settings
from postroad.signals.catalog import LeaseGone, ShutdownReceipt, TaskFailed
from runtime.processes import Running

if TYPE_CHECKING:
    from postroad.owner import Readiness
    from postroad.signals import Signal


@pytest.fixture
def heard() -> list[Signal]:
    return []


def app(url: str, heard: list[Signal]) -> App:
    given: dict[str, Any] = {"database_url": url, "direct_url": url, "roles": frozenset(), "grace": seconds(5)}
    return App("web", settings=Settings(**given), sinks=[heard.append])


async def test_an_app_without_roles_holds_leases_and_locks_and_connects_when_it_first_does(
    runtime_url: str, database: str, heard: list[Signal]
) -> None:
    one, two = app(runtime_url, heard), app(runtime_url, heard)
    watcher = await asyncpg.connect(database)
    count = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'pr_runtime' AND datname = current_database()"
    async with one, two:
        assert await watcher.fetchval(count) == 0
        async with one.lease("reports", ttl=seconds(5)) as lease, one.lease("others"):
            assert (lease.name, lease.token) == ("reports", 1)
            with pytest.raises(LeaseHeld):
                async with two.lease("reports"):
                    pass
            async with lease.transaction() as connection:
                assert await connection.fetchval("SELECT 1") == 1
        async with two.lease("reports", ttl=seconds(5), wait=seconds(5)) as lease:
            assert lease.token == 2
        async with one.lock("nightly"):
            with pytest.raises(LeaseHeld):
                async with two.lock("nightly", wait=seconds(0.1)):
                    pass
    assert await watcher.fetchval(count) == 0, "everything was closed"
    await watcher.close()
    receipts = [signal for signal in heard if isinstance(signal, ShutdownReceipt)]
    assert len(receipts) == 2
    assert [signal for signal in heard if isinstance(signal, TaskFailed)] == []


async def test_a_lock_is_lost_with_its_connection(runtime_url: str, database: str, heard: list[Signal]) -> None:
    one, watcher = app(runtime_url, heard), await asyncpg.connect(database)

    async def work() -> None:
        async with one.lock("nightly"):
            await watcher.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'postroad-lock'"
                " AND datname = current_database()"
            )
            await asyncio.Event().wait()

    async with one:
        with pytest.raises(LeaseLost, match="PR403"):
            await work()
    await watcher.close()


async def test_a_background_service_and_a_thread_hold_leases(runtime_url: str, heard: list[Signal]) -> None:
    one = app(runtime_url, heard)
    tokens: asyncio.Queue[int] = asyncio.Queue()

    def on_thread() -> int:
        with one.lease_sync("reports", ttl=seconds(5), wait=seconds(5)) as lease:
            lease.check()
            return lease.token

    async def background(stop: asyncio.Event, ready: Readiness) -> None:
        ready.up()
        async with one.lease("reports", ttl=seconds(5)) as lease:
            tokens.put_nowait(lease.token)
        tokens.put_nowait(await asyncio.to_thread(on_thread))
        await stop.wait()

    one.background("reporter", background)
    async with one, asyncio.timeout(20):
        assert [await tokens.get(), await tokens.get()] == [1, 2]
        with pytest.raises(UsageError, match="event loop"), one.lease_sync("reports"):
            pass
    assert [signal for signal in heard if isinstance(signal, LeaseGone)] == []


async def test_an_app_that_does_not_run_or_has_no_database_says_so(
    runtime_url: str, heard: list[Signal], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = app(runtime_url, heard)
    for door in (one.lease("x"), one.lock("x")):
        with pytest.raises(UsageError, match=r"App 'web' does not run; take a .* inside 'async with app:'.*PR101"):
            async with door:
                pass
    monkeypatch.delenv("POSTROAD_DATABASE_URL", raising=False)
    async with App("web") as bare:
        with pytest.raises(SettingsError, match=r"set POSTROAD_DATABASE_URL.*PR201"):
            async with bare.lease("x"):
                pass


async def test_a_first_lease_that_cannot_be_had_leaves_nothing_and_a_second_try_may(
    empty_database: str, heard: list[Signal]
) -> None:
    one = app(empty_database, heard)
    async with one:
        for _ in range(2):
            with pytest.raises(UsageError, match="PR202"):
                async with one.lease("x"):
                    pass


async def test_a_process_holds_a_lease_in_the_background_and_gives_it_up_at_its_end(
    runtime_url: str, database: str
) -> None:
    holder = "SELECT holder FROM postroad.lease WHERE name = 'user:leader'"
    watcher = await asyncpg.connect(database)
    with Running("leader:app", "--only", "maintain", POSTROAD_DATABASE_URL=runtime_url) as process:
        await asyncio.to_thread(process.wait_for, "service_ready", service="lead")
        assert await watcher.fetchval(holder) is not None
        await asyncio.to_thread(process.stop)
        assert process.process.returncode == 0, process.plain
    assert await watcher.fetchval(holder) is None
    await watcher.close()
