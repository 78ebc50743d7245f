"""Fixtures of the room of effects: two worker processes' furniture, and a connection to look with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from effects.bench import unrecorded
from work.bench import Process, process

ON_RECORD = """
CREATE TABLE unrecorded (effect bigint, was text, became text);
CREATE FUNCTION check_record() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = postroad AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM audit WHERE subject = 'effect ' || NEW.id AND xmin = pg_current_xact_id()::xid) THEN
        INSERT INTO unrecorded VALUES (NEW.id, OLD.state, NEW.state);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER on_record AFTER UPDATE ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.state IN ('unknown', 'reconciling') AND NEW.state NOT IN ('unknown', 'reconciling'))
    EXECUTE FUNCTION check_record();
"""
"""Watches every test for what leaves *unknown* with neither a look-up nor a person's word in that transaction."""


@pytest.fixture
async def here(runtime_url: str) -> AsyncIterator[Process]:
    async with process(runtime_url) as standing:
        yield standing


@pytest.fixture
async def there(runtime_url: str) -> AsyncIterator[Process]:
    async with process(runtime_url) as standing:
        yield standing


@pytest.fixture
async def sql(database: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A superuser's connection, to look with; at the end nothing has left *unknown* without a record of why."""
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path = postroad")
    await connection.execute("CREATE TABLE receipt (payment text, outcome text)")
    await connection.execute("GRANT ALL ON receipt TO pr_runtime")
    await connection.execute(ON_RECORD)
    yield connection
    left = await unrecorded(connection)
    await connection.close()
    assert left == []
