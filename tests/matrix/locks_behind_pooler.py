"""Locks behind a real pgbouncer: refused where it lends sessions for a transaction, and of a transaction they hold."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import asyncpg
import pytest

from matrix.pgbouncer import Pgbouncer
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import LeaseHeld, SettingsError
from postroad.signals import Signals
from postroad.sql import drive, pooler
from postroad.sql.advisory import key_of, locked
from postroad.sql.asyncpg import AsyncpgHand
from postroad.sql.lock import Locks
from support import ThreadOwner

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

PROGRAM = os.environ.get("POSTROAD_TEST_PGBOUNCER", "pgbouncer")


def locks(url: str) -> Locks:
    return Locks(url, schema="postroad", owner=ThreadOwner(Signals()), clock=SYSTEM_CLOCK, chance=lambda: 0.5)


@pytest.fixture
def bouncer(postgres: Postgres):
    with Pgbouncer(postgres, PROGRAM) as running:
        yield running


async def test_behind_a_transaction_pooler_a_session_lock_is_refused(bouncer, runtime_url) -> None:
    with pytest.raises(SettingsError, match=r"transaction pooler.*POSTROAD_DIRECT_URL.*within a transaction.*PR201"):
        async with locks(bouncer.url(runtime_url)).hold("nightly"):
            pytest.fail("it would mean nothing")


async def pooled_lock_and_a_stranger(bouncer, runtime_url) -> bool:
    """Whether two clients of the pooler have the lock at once, or one has it that nobody can give back."""
    async with locks(bouncer.url(runtime_url)).hold("nightly"):
        stranger = await asyncpg.connect(bouncer.url(runtime_url), statement_cache_size=0)
        async with stranger.transaction():
            had = await stranger.fetchval("SELECT pg_try_advisory_lock($1::bigint)", key_of("postroad", "nightly"))
        await stranger.close()
    return had


@pytest.mark.sabotage
async def test_without_the_refusal_two_have_the_lock(bouncer, runtime_url, monkeypatch) -> None:
    async def nothing(*_: object) -> pooler.Between:
        return pooler.Between()

    monkeypatch.setattr(pooler, "ask", nothing)
    monkeypatch.setattr("postroad.sql.lock._SESSION", "SELECT 1")
    assert await pooled_lock_and_a_stranger(bouncer, runtime_url)


async def test_behind_it_the_lock_of_a_transaction_holds(bouncer, runtime_url) -> None:
    through = bouncer.url(runtime_url)
    one, two = [await asyncpg.connect(through, statement_cache_size=0) for _ in range(2)]
    async with one.transaction(), two.transaction():
        await drive(locked("postroad", "nightly"), AsyncpgHand(one))
        with pytest.raises(LeaseHeld):
            await drive(locked("postroad", "nightly"), AsyncpgHand(two))
    async with two.transaction():
        await drive(locked("postroad", "nightly"), AsyncpgHand(two))
    await one.close()
    await two.close()


async def test_a_pooler_by_session_is_none_that_matters(postgres, runtime_url) -> None:
    with Pgbouncer(postgres, PROGRAM, more="pool_mode = session") as running:
        async with locks(running.url(runtime_url)).hold("nightly"):
            with pytest.raises(LeaseHeld):
                async with locks(runtime_url).hold("nightly"):
                    pass
