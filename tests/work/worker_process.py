"""A worker process for tests: runs rows of queue "q", says so on standard output, and finishes them when told.

A line ``ran ID`` means that the handler started; it waits for a line on standard input, then says ``finished ID True``
or ``finished ID False`` (fenced). Cancellation is ignored on purpose: it is the worst of handlers.
"""

from __future__ import annotations

import asyncio
import sys

from postroad.work import store
from work.bench import QUICK, SCHEMA, process


async def main(url: str) -> None:
    async with process(url) as here:

        class Stubborn:
            queue, slots = "q", 4

            async def run(self, row):
                await asyncio.shield(here.owner.task(self.outlive(row), name=f"row:{row.id}"))

            async def outlive(self, row):
                say("ran", row.id)
                await told.wait()
                say("finished", row.id, await here.run(store.finish(SCHEMA, row.id, row.token, outcome="handled")))

        told = asyncio.Event()
        loop = asyncio.get_running_loop()

        def listen():
            sys.stdin.readline()
            loop.call_soon_threadsafe(told.set)

        here.owner.thread(listen, name="stdin")
        await here.claimer(Stubborn(), settings=QUICK).run(asyncio.Event(), here.ready)


def say(*words):
    print(*words, flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
