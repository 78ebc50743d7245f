"""An author as a process of its own: one row of its own and one event, then it waits to be told, then it commits.

Arguments: the URL of its database, and `together` or, as nobody should, `apart`: the event in a transaction of its own.
"""

from __future__ import annotations

import asyncio
import sys

import asyncpg

from postroad.asyncpg import within
from road.apps.parcels import ParcelMoved


async def main(url: str, manner: str) -> None:
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute("INSERT INTO parcel VALUES (1)")
        if manner == "together":
            await within(connection).publish(ParcelMoved(number=1))
        else:
            other = await asyncpg.connect(url)
            async with other.transaction():
                await within(other).publish(ParcelMoved(number=1))
            await other.close()
        await told("staged")
    await told("committed")
    await connection.close()


async def told(word: str) -> None:
    """Say how far we are, and wait for a line."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
