"""Holders in processes of their own that are killed, paused and cut off: their writes never overlap."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from leases.holder_process import TTL
from postroad.clock import SYSTEM_CLOCK
from postroad.sql.migrations import Roles, migrate

if TYPE_CHECKING:
    from postroad.testing.servers import PostgresServer

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).parent / "holder_process.py"
TABLE = "CREATE TABLE public.written (place bigserial PRIMARY KEY, token bigint); GRANT ALL ON written TO pr_runtime;"
TABLE += "GRANT ALL ON SEQUENCE written_place_seq TO pr_runtime"
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'pr_runtime'"
RETRY = 0.4  # 0.25 s, jittered by half.


class Child:
    """One holder, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.tokens: list[int] = []

    async def says(self, word: str) -> list[str]:
        async with asyncio.timeout(40):
            while True:
                said = await self.line()
                if said[0] == word:
                    return said

    async def line(self) -> list[str]:
        assert self.process.stdout is not None
        said = (await self.process.stdout.readline()).decode().split()
        assert said, "it ended"
        if said[0] == "has":
            self.tokens.append(int(said[1]))
        return said

    async def listen(self) -> None:
        while True:
            await self.line()

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@asynccontextmanager
async def child(url: str, *more: str) -> AsyncIterator[Child]:
    path = os.pathsep.join(filter(None, [str(SCRIPT.parent.parent), os.environ.get("PYTHONPATH")]))
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), url, *more, env={**os.environ, "PYTHONPATH": path}, stdout=asyncio.subprocess.PIPE
    )
    made = Child(process)
    try:
        await made.says("ready")
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    await connection.execute(TABLE)
    yield connection
    await connection.close()


async def written(read: Callable[[], Awaitable[list[int]]], *, under: int, more_than: int = 3) -> None:
    """Wait until that many writes under the token were committed."""
    async with asyncio.timeout(40):
        while (await read()).count(under) <= more_than:  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(0.01)


def overlaps(tokens: list[int]) -> list[tuple[int, int]]:
    """Where a holder wrote after the next one had begun."""
    return [(earlier, later) for earlier, later in pairwise(tokens) if later < earlier]


async def paused_past_its_lease(url: str, sql: asyncpg.Connection, *more: str) -> list[int]:
    """One holder stands still past its lease, another takes over, the first goes on."""

    async def read() -> list[int]:
        return [row["token"] for row in await sql.fetch("SELECT token FROM written ORDER BY place")]

    async with child(url, *more) as one:
        await one.says("has")
        await written(read, under=1)
        async with child(url, *more) as two:
            one.stop()
            await two.says("has")
            await written(read, under=2)
            before = (await read()).count(1)
            one.go_on()
            if more:
                await written(read, under=1, more_than=before)
            else:
                await one.says("lost")
            count = (await read()).count(2)
            await written(read, under=2, more_than=count)
            assert (one.tokens, two.tokens) == ([1], [2])
    return await read()


async def test_a_holder_that_stood_still_past_its_lease_writes_nothing_after_the_next_one(runtime_url, sql) -> None:
    tokens = await paused_past_its_lease(runtime_url, sql)
    assert set(tokens) == {1, 2}
    assert overlaps(tokens) == []


@pytest.mark.sabotage
async def test_without_fence_and_interrupt_it_does(runtime_url, sql) -> None:
    assert overlaps(await paused_past_its_lease(runtime_url, sql, "unfenced")) != []


async def test_a_killed_holders_name_is_taken_over_within_its_lease_and_one_retry(runtime_url, sql) -> None:
    async with child(runtime_url) as one, child(runtime_url) as two:
        first = asyncio.ensure_future(one.says("has"))
        second = asyncio.ensure_future(two.says("has"))
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        holder, taking = (one, second) if first.done() else (two, first)
        holder.process.kill()
        died = SYSTEM_CLOCK.monotonic()
        assert (await taking)[1] == "2"
        assert SYSTEM_CLOCK.monotonic() - died < TTL.total_seconds() + RETRY + 1.0  # The machine may be busy.


async def test_pauses_cut_connections_and_restarts_of_the_database_make_no_two_holders(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.create_database("shop")
    await migrate(url, schema="postroad", roles=Roles(runtime="pr_runtime"), days_ahead=0)
    own_postgres.execute(TABLE, database="shop")

    async def read() -> list[int]:
        rows = await asyncio.to_thread(
            own_postgres.execute, "SELECT token FROM written ORDER BY place", database="shop"
        )
        return [int(token) for (token,) in rows]

    runtime = own_postgres.url("shop", "pr_runtime")
    async with child(runtime) as one, child(runtime) as two:
        listening = [asyncio.ensure_future(each.listen()) for each in (one, two)]
        for fault in ("pause", "cut", "crash", "pause", "restart"):
            seen = await progress(read)
            holder = one if max(seen) in one.tokens else two
            if fault == "pause":
                holder.stop()
                await progress(read, beyond=max(seen))
                holder.go_on()
            elif fault == "cut":
                own_postgres.execute(CUT)
            elif fault == "crash":
                await asyncio.to_thread(own_postgres.kill)
                await asyncio.to_thread(own_postgres.start)
            else:
                await asyncio.to_thread(own_postgres.restart)
        tokens = await progress(read)
        for task in listening:
            task.cancel()
    assert overlaps(tokens) == []
    assert len(set(tokens)) >= 3, "the name went from one to the other"
    assert len(one.tokens + two.tokens) == len({*one.tokens, *two.tokens}), "no token was given twice"
    assert one.tokens == sorted(one.tokens)
    assert two.tokens == sorted(two.tokens)


async def progress(read: Callable[[], Awaitable[list[int]]], *, beyond: int = 0) -> list[int]:
    """Wait for some more writes, by a holder with a token `beyond` that one; all tokens that wrote."""
    before: int | None = None
    async with asyncio.timeout(60):
        while True:
            tokens = await read()
            counted = sum(token > beyond for token in tokens)
            before = counted if before is None else before
            if counted > before + 3:
                return tokens
            await asyncio.sleep(0.02)  # Other processes write.
