"""Fixtures of the room of reconciliation: a ground to stand on, and two tables that should say the same."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.reconcile import Reconciliation, pages
from postroad.reconcile.ground import Ground
from postroad.signals import Signals
from postroad.sql.manager import Manager
from reconcile.books import APPLIED, BOOKED
from work.bench import Heard


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A superuser's connection, to look and to tamper with; the two tables are there."""
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path = postroad, public")
    await connection.execute(
        'CREATE TABLE public.booked (key text COLLATE "C" PRIMARY KEY, amount int);'
        'CREATE TABLE public.applied (key text COLLATE "C" PRIMARY KEY, amount int);'
        "GRANT ALL ON public.booked, public.applied TO pr_runtime"
    )
    yield connection
    await connection.close()


@pytest.fixture
async def heard() -> Heard:
    return Heard()


@pytest.fixture
async def ground(runtime_url: str, heard: Heard) -> AsyncIterator[Ground]:
    signals = Signals()
    signals.subscribe(heard)
    manager = await Manager.open(runtime_url, schema="postroad", size=4)
    yield Ground(manager=manager, resources={}, signals=signals, clock=SYSTEM_CLOCK, by="ada")
    await manager.close()


@pytest.fixture
def books() -> Reconciliation:
    return Reconciliation("books", authority=pages(BOOKED), projection=pages(APPLIED), settle=seconds(0.2))
