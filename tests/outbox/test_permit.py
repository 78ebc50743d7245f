"""The dispatcher asks before it sends: at its start, and again whenever it has reached the database anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from dispatching import an_event
from support import until

if TYPE_CHECKING:
    import asyncpg

    from dispatching import Author, MemoryBroker
    from outbox.conftest import Start


@dataclass
class Word:
    """A permit as a test gives it."""

    doubt: str = ""
    asked: int = 0

    def look_again(self) -> None:
        self.asked += 1
        self.doubt = "asked again"


async def test_in_doubt_no_shard_is_taken_and_the_reason_is_told(
    author: Author, broker: MemoryBroker, process: Start
) -> None:
    word = Word("a copy")
    running = await process(broker, shards=None, permit=word)
    ids = await author.stage(an_event())
    await until(lambda: running.reason == "a copy")
    assert broker.ids() == []
    assert running.held == ()
    word.doubt = ""
    await until(lambda: broker.ids() == ids)
    assert running.ready


async def doubted_anew(
    author: Author, broker: MemoryBroker, process: Start, rows: asyncpg.Connection, permit: Word | None
) -> list[str]:
    """Stage and have sent, lose every connection to the database, and stage again."""
    running = await process(broker, permit=permit)
    first = await author.stage(an_event())
    await until(lambda: broker.ids() == first)
    await rows.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'pr_runtime'"
        " AND datname = current_database() AND pid <> pg_backend_pid()"
    )
    second = await author.stage(an_event())
    await until(lambda: running.reason == "asked again" or broker.ids() == first + second)
    return first + second


async def test_a_database_that_was_reached_anew_is_in_doubt_until_it_is_proven(
    author: Author, broker: MemoryBroker, process: Start, database_rows: asyncpg.Connection
) -> None:
    word = Word()
    ids = await doubted_anew(author, broker, process, database_rows, word)
    assert word.asked
    assert broker.ids() == ids[:1]
    word.doubt = ""
    await until(lambda: broker.ids() == ids)


@pytest.mark.sabotage
async def test_sabotage_without_a_permit_it_sends_at_once_to_whatever_it_reached(
    author: Author, broker: MemoryBroker, process: Start, database_rows: asyncpg.Connection
) -> None:
    ids = await doubted_anew(author, broker, process, database_rows, None)
    assert broker.ids() == ids
