"""A dispatcher in a process of its own, to be stopped and continued: says "sent", answers when told to, reports.

Usage: paused.py URL [unfenced]. It reads one line, confirms everything that it sent, and prints what became of that.
"""

from __future__ import annotations

import asyncio
import sys

from dispatching import SCHEMA, MemoryBroker, Process
from postroad.outbox import store
from postroad.outbox.clearer import Clearer
from postroad.outbox.dispatcher import Dispatcher
from postroad.signals.catalog import LeaseGone, OutboxCleared
from postroad.sql.manager import Manager
from support import until


def take_the_fence_down() -> None:
    """Believe in leases for ever, here and in the database."""
    text = store.QUERIES.text("clear", SCHEMA)
    open_gate = text.replace("AND mine.token = lease.token", "").replace(
        "WHERE lease.holder = $3::uuid", "WHERE $3::uuid IS NOT NULL"
    )
    assert open_gate != text
    store.QUERIES._rendered["clear", SCHEMA] = open_gate
    Dispatcher._drop = lambda self, shard: None
    Clearer._ours = lambda self, flights: list(flights)


async def main(url: str, *, fenced: bool) -> None:
    if not fenced:
        take_the_fence_down()
    manager = await Manager.open(url, schema=SCHEMA, size=4)
    broker = MemoryBroker()
    broker.at_once = False
    process = Process(manager, url, broker)
    await process.start()
    await until(lambda: len(broker.unanswered) > 0)
    sys.stdout.write("sent\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    broker.answer()
    await process.heard.wait(LeaseGone)
    if not fenced:
        await process.heard.wait(OutboxCleared)
    await until(lambda: not process.dispatcher._clearer.owed)
    sys.stdout.write(f"deleted {sum(each.deleted for each in process.heard.all(OutboxCleared))}\n")
    sys.stdout.flush()
    await process.end()
    await manager.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], fenced="unfenced" not in sys.argv))
