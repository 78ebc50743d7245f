"""A transaction under one lease, however long it is open, holds up no other lease of the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from postroad.clock import seconds
from postroad.errors import Unavailable
from postroad.leases import Lease, fence
from postroad.leases.store import QUERIES
from postroad.signals.catalog import LeaseGone, LeasesRenewed, LossReason
from postroad.sql import drive
from postroad.sql.asyncpg import AsyncpgHand

SHORT = seconds(1.5)
LONG = seconds(30)


@pytest.fixture
async def fenced(database: str) -> AsyncIterator[object]:
    """Open a transaction under a lease, and leave it open."""
    opened: list[asyncpg.Connection] = []

    async def begin(lease: Lease) -> asyncpg.Connection:
        connection = await asyncpg.connect(database)
        opened.append(connection)
        await connection.execute("BEGIN")
        assert await drive(fence("postroad", [lease]), AsyncpgHand(connection)) == {lease.name}
        return connection

    yield begin
    for connection in opened:
        connection.terminate()


async def lost_beside_a_long_transaction(start, fenced) -> list[tuple[str, LossReason]]:
    """What is lost first, and why, by a process that keeps a transaction under the lease `user:books` open."""
    one = await start()
    books = await one.keeper.acquire("user:books", ttl=seconds(4), on_lost=one.hear_lost)
    worker = await one.keeper.acquire("worker:a", ttl=SHORT, on_lost=one.hear_lost)
    assert books is not None
    assert worker is not None
    await fenced(books)
    await one.ear.wait(LeaseGone)
    return [(gone.name, gone.reason) for gone in one.ear.all(LeaseGone)]


async def test_a_long_transaction_costs_its_own_lease_alone(start, fenced) -> None:
    assert await lost_beside_a_long_transaction(start, fenced) == [("user:books", LossReason.EXPIRED)]


@pytest.mark.sabotage
async def test_renewals_that_wait_for_the_lock_lose_the_leases_of_others(start, fenced, monkeypatch) -> None:
    waiting = QUERIES._texts["renew"].replace("SKIP LOCKED", "")
    monkeypatch.setattr(QUERIES, "_texts", {**QUERIES._texts, "renew": waiting})
    monkeypatch.setattr(QUERIES, "_rendered", {})
    assert await lost_beside_a_long_transaction(start, fenced) == [("worker:a", LossReason.EXPIRED)]


async def test_a_lease_whose_transaction_ends_in_time_is_renewed_then(start, fenced) -> None:
    one = await start()
    books = await one.keeper.acquire("user:books", ttl=seconds(6), on_lost=one.hear_lost)
    assert books is not None
    connection = await fenced(books)
    before = books.trusted_until
    await one.ear.wait(LeasesRenewed, kind="user", result="locked", count=2)
    assert books.trusted_until == before, "what was not renewed is trusted no longer than before"
    await connection.execute("COMMIT")
    await one.ear.wait(LeasesRenewed, kind="user", result="ok")
    assert books.held
    assert one.lost == []


async def test_one_that_was_taken_away_while_another_is_locked_is_lost_at_once(start, fenced, database) -> None:
    one = await start()
    books = await one.keeper.acquire("user:books", ttl=seconds(6), on_lost=one.hear_lost)
    other = await one.keeper.acquire("user:other", ttl=seconds(6), on_lost=one.hear_lost)
    assert books is not None
    assert other is not None
    await fenced(books)
    pushing = await asyncpg.connect(database)
    await pushing.execute("UPDATE postroad.lease SET token = token + 1 WHERE name = 'user:other'")
    await pushing.close()
    await one.ear.wait(LeaseGone, name="user:other", reason=LossReason.FENCED)
    await one.ear.wait(LeasesRenewed, kind="user", result="locked")
    assert books.held


async def asked_for_in_vain(start, fenced, database) -> list[str]:
    """Somebody asks on and on for a name that has run out under an open transaction; what else he loses meanwhile."""
    one, two = await start(), await start()
    books = await one.keeper.acquire("user:books", ttl=LONG, on_lost=one.hear_lost)
    worker = await two.keeper.acquire("worker:b", ttl=SHORT, on_lost=two.hear_lost)
    assert books is not None
    assert worker is not None
    lapsing = await asyncpg.connect(database)
    await lapsing.execute("UPDATE postroad.lease SET expires_at = clock_timestamp() WHERE name = 'user:books'")
    await lapsing.close()
    await fenced(books)
    while worker.held and len(two.ear.all(LeasesRenewed, kind="worker", result="ok")) < 4:
        taking = two.keeper.taking("user:books", ttl=LONG, on_lost=two.hear_lost)
        assert not await asyncio.wrap_future(taking)
    return [lease.name for lease in two.lost]


async def test_who_asks_for_a_locked_name_is_answered_at_once_and_keeps_his_own(start, fenced, database) -> None:
    assert await asked_for_in_vain(start, fenced, database) == []


@pytest.mark.sabotage
async def test_a_taking_that_waits_for_the_lock_fails(start, fenced, database, monkeypatch) -> None:
    waiting = QUERIES._texts["acquire"].replace("SKIP LOCKED", "")
    monkeypatch.setattr(QUERIES, "_texts", {**QUERIES._texts, "acquire": waiting})
    monkeypatch.setattr(QUERIES, "_rendered", {})
    with pytest.raises(Unavailable):
        await asked_for_in_vain(start, fenced, database)
