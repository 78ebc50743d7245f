"""What stands before the database; `tests/matrix/behind_pooler.py` has a real pooler."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from postroad.sql import Statement, pooler
from postroad.sql.manager import Manager
from postroad.sql.pooler import Between


async def test_a_connection_of_ones_own_is_known_for_it(runtime_url: str) -> None:
    connection = await asyncpg.connect(runtime_url)
    try:
        assert await pooler.ask(connection, runtime_url) == Between()
    finally:
        await connection.close()


async def prepared(manager: Manager) -> int:
    """How many statements a connection of the pool has prepared after three rounds."""
    for _ in range(3):
        await manager.fetch(Statement("SELECT $1::int AS one", (1,)))
    count = "SELECT count(*) AS count FROM pg_prepared_statements WHERE statement LIKE 'SELECT $1%'"
    [row] = await manager.fetch(Statement(count))
    return int(row["count"])


@pytest.mark.parametrize(("found", "count"), [(Between(), 1), (Between(True, True, False), 0), (Between(True), 1)])
async def test_statements_are_prepared_where_they_stay_so(
    runtime_url: str, monkeypatch: pytest.MonkeyPatch, found: Between, count: int
) -> None:
    async def ask(*_: Any) -> Between:
        return found

    monkeypatch.setattr(pooler, "ask", ask)
    manager = await Manager.open(runtime_url, schema="postroad", size=1)
    try:
        assert await prepared(manager) == count
    finally:
        await manager.close()
