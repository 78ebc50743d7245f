"""A web server as gunicorn makes one: the App is imported, the process forked, and each worker enters the App.

Arguments: the URL of the author's database, how many workers, and how many events each of them publishes.
"""

from __future__ import annotations

import asyncio
import os
import sys

import asyncpg

from postroad.asyncpg import within
from road.apps.parcels import ParcelMoved
from road.apps.whole import app


async def worker(url: str, number: int, events: int) -> None:
    """Serve requests, each of which publishes, until the server is told to end."""
    async with app:
        await app.ready()
        connection = await asyncpg.connect(url)
        for request in range(events):
            async with connection.transaction():
                await within(connection).publish(ParcelMoved(number=number * events + request))
        await connection.close()
        sys.stdout.write("served\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)


def main(url: str, workers: int, events: int) -> None:
    """Fork the workers, and wait for all of them."""
    children = []
    for number in range(workers):
        child = os.fork()
        if child == 0:
            asyncio.run(worker(url, number, events))
            os._exit(0)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    raise SystemExit(len(failed))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
