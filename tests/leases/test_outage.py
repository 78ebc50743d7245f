"""Leases while their database is away: they run out here first, and come back with greater tokens."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from postroad.clock import seconds
from postroad.errors import Unavailable
from postroad.signals.catalog import LeaseGone, LeasesRenewed, LossReason
from postroad.sql.migrations import Roles, migrate
from postroad.testing.servers import TcpProxy

TTL = seconds(1.5)


async def taken_again(process, name: str):
    while True:
        try:
            lease = await process.keeper.acquire(name, ttl=TTL, on_lost=process.hear_lost)
        except Unavailable:
            await asyncio.sleep(0.02)
            continue
        if lease is not None:
            return lease
        await asyncio.sleep(0.02)


async def test_a_stalled_network_ends_trust_before_another_can_take_the_name(start, runtime_url, until) -> None:
    port = urlsplit(runtime_url).port
    with TcpProxy(port) as line:
        cut_off, other = await start(runtime_url.replace(f":{port}", f":{line.port}")), await start()
        lease = await cut_off.keeper.acquire("shard:05", ttl=TTL, on_lost=cut_off.hear_lost)
        assert lease is not None
        line.stall()
        successor = await taken_again(other, "shard:05")
        assert not lease.held
        assert successor.token == 2
        await until(lambda: cut_off.lost)
        await cut_off.ear.wait(LeaseGone, reason=LossReason.EXPIRED)
        assert cut_off.ear.all(LeasesRenewed, result="error")
        line.heal()
        again = await taken_again(cut_off, "shard:06")
        assert again.held
        assert not lease.held
        assert successor.held


async def test_a_short_cut_costs_no_lease(start, runtime_url) -> None:
    port = urlsplit(runtime_url).port
    with TcpProxy(port) as line:
        process = await start(runtime_url.replace(f":{port}", f":{line.port}"))
        lease = await process.keeper.acquire("shard:05", ttl=seconds(6), on_lost=process.hear_lost)
        assert lease is not None
        line.cut()
        await process.ear.wait(LeasesRenewed, result="error")
        line.heal()
        await process.ear.wait(LeasesRenewed, result="ok")
        assert lease.held
        assert process.lost == []


@pytest.mark.heavy
async def test_a_crash_of_the_database_loses_leases_here_and_no_tokens_there(start, own_postgres, until) -> None:
    own_postgres.create_database("leases")
    await migrate(own_postgres.url("leases"), schema="postroad", roles=Roles(runtime="pr_runtime"), days_ahead=0)
    process = await start(own_postgres.url("leases", "pr_runtime"))
    tokens = []
    for _ in range(2):
        lease = await taken_again(process, "shard:05")
        tokens.append(lease.token)
        own_postgres.kill()
        await until(lambda: process.lost)
        assert process.lost == [lease]
        process.lost.clear()
        with pytest.raises(Unavailable):
            await process.keeper.acquire("shard:05", ttl=TTL, on_lost=process.hear_lost)
        own_postgres.start()
    tokens.append((await taken_again(process, "shard:05")).token)
    assert tokens == [1, 2, 3]


@pytest.mark.heavy
async def test_a_restart_of_the_database_within_the_trust_costs_no_lease(start, own_postgres) -> None:
    own_postgres.create_database("leases")
    await migrate(own_postgres.url("leases"), schema="postroad", roles=Roles(runtime="pr_runtime"), days_ahead=0)
    process = await start(own_postgres.url("leases", "pr_runtime"))
    lease = await process.keeper.acquire("shard:05", ttl=seconds(60), on_lost=process.hear_lost)
    assert lease is not None
    own_postgres.restart()
    again = await taken_again(process, "shard:06")
    await process.ear.wait(LeasesRenewed, result="ok", count=2)
    assert lease.held
    assert again.held
    assert process.lost == []


@pytest.mark.heavy
@pytest.mark.timeout(60)
async def test_a_database_that_lets_nobody_in_for_a_while_does_not_end_the_heartbeat(own_postgres, start) -> None:
    await migrate(own_postgres.create_database("shop"), schema="postroad", roles=Roles(runtime="pr_runtime"))
    process = await start(own_postgres.url("shop", "pr_runtime"))
    lease = await process.keeper.acquire("shard:06", ttl=TTL, on_lost=process.hear_lost)
    assert lease is not None
    own_postgres.execute("ALTER DATABASE shop ALLOW_CONNECTIONS false")
    own_postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'pr_runtime'")
    await process.ear.wait(LeaseGone, name="shard:06", reason=LossReason.EXPIRED)
    own_postgres.execute("ALTER DATABASE shop ALLOW_CONNECTIONS true")
    async with asyncio.timeout(20):
        again = await taken_again(process, "shard:06")
    assert again.token > lease.token
