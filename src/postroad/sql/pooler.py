"""What stands between us and a database: nothing, or a pooler, and what it lets through."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import asyncpg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroad.sql.asyncpg import Connection

_ROUNDS: Final = 5
_PATIENCE: Final = 5.0
_WHO: Final = "SELECT pg_backend_pid()"


@dataclass(frozen=True, slots=True)
class Between:
    """What was found. Where `pooler` is False nothing stands in between.

    `shares`: it was seen to give one client's backend to another between transactions. `keeps`: statements that were
    prepared stay so all the same, as with pgbouncer 1.21 and later.
    """

    pooler: bool = False
    shares: bool = False
    keeps: bool = True


async def ask(connection: Connection, url: str) -> Between:
    """Find out by `connection` and, where it is a pooler's, by two more clients to `url`; nothing of them stays.

    A backend tells its number twice: when a connection opens, where a pooler puts one of its own, and in SQL.

    Raises:
        OSError, asyncpg.PostgresError, asyncpg.InterfaceError: what the driver says where the database is away.
    """
    # The count of rows is enough, and one message: nothing is prepared that a pooler would leave to others.
    if await connection.execute(f"SELECT WHERE pg_backend_pid() = {connection.get_server_pid()}") == "SELECT 1":
        return Between()
    async with _client(url) as first, _client(url) as second:
        for _ in range(_ROUNDS):
            try:
                async with asyncio.timeout(_PATIENCE):
                    found = await _swapped(first, second)
            except TimeoutError:  # A pooler with a single backend, which the other client holds.
                return Between(pooler=True, shares=True, keeps=False)
            if found is not None:
                return found
    return Between(pooler=True, keeps=False)  # Each client has its own, as far as can be seen: nothing is relied on.


async def _swapped(first: Connection, second: Connection) -> Between | None:
    """Let `second` have what `first` had, if the pooler is like that, and see what becomes of `first`."""
    name = f"postroad_{secrets.token_hex(8)}"  # New each time: what others have left behind would mislead.
    async with first.transaction():
        prepared = await first.prepare(_WHO, name=name)
        before = await prepared.fetchval()
    async with second.transaction():
        has_it = await second.fetchval(_WHO) == before
        try:
            async with first.transaction():
                after = await prepared.fetchval()
        except asyncpg.InvalidSQLStatementNameError:
            if has_it:
                await second.execute(f"DEALLOCATE {name}")
            return Between(pooler=True, shares=True, keeps=False)
    return None if before == after else Between(pooler=True, shares=True)


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url, timeout=_PATIENCE, statement_cache_size=0)
    try:
        yield connection
    finally:
        connection.terminate()  # At once, also where a transaction waits for its backend.
