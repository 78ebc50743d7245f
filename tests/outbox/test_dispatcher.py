"""The dispatcher on a real database, with a broker in memory that answers as the test wants."""

from __future__ import annotations

from dispatching import an_event
from postroad.signals.catalog import OutboxCleared, PublishesSettled


async def waiting(connection) -> int:
    return await connection.fetchval("SELECT count(*) FROM postroad.outbox")


async def test_what_is_staged_is_sent_once_and_leaves_the_outbox(author, broker, process, database_rows):
    ids = await author.stage(*[an_event(f"k{n}") for n in range(1200)])
    running = await process(broker)
    await running.heard.wait(OutboxCleared, lambda _: sum(c.deleted for c in running.heard.all(OutboxCleared)) == 1200)
    assert broker.ids() == ids
    assert await waiting(database_rows) == 0
    assert sum(s.count for s in running.heard.all(PublishesSettled)) == 1200
    await running.stop()
    assert running.dispatcher.receipt() == (0, 0, 0)
