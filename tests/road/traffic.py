"""An author at a steady rate, which goes on through outages; table `parcel` tells the truth of what it committed."""

from __future__ import annotations

import asyncio
import threading
import time
from statistics import median
from typing import TYPE_CHECKING, Self

import asyncpg

from postroad.asyncpg import within
from road.apps.parcels import ParcelMoved
from road.roads import until

if TYPE_CHECKING:
    from road.roads import Road

PAUSE = 0.05
AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)


class Traffic:
    """Commits a row of its own and an event, some twenty times a second, while the block lasts.

    `taken` holds the seconds of each transaction that ended well, begin and commit included.
    """

    def __init__(self, road: Road, *, first: int = 0, act: str = "") -> None:
        self.taken: list[float] = []
        self._road = road
        self._number = first
        self._act = act
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._write()), name="traffic")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def await_more(self, count: int, *, within_seconds: float = 40) -> None:
        """Wait until so many more were committed."""
        wanted = len(self.taken) + count
        until(lambda: len(self.taken) >= wanted, within_seconds=within_seconds)

    def usual(self, since: int = 0) -> float:
        """The median of `taken`, from the one with this number on."""
        return median(self.taken[since:])

    def committed(self) -> set[int]:
        """Every number that was committed; call it when the block has ended."""
        return {int(number) for (number,) in self._road.rows("SELECT number FROM parcel")}

    async def _write(self) -> None:
        url = self._road.postgres.url(self._road.name, "pr_author")
        connection: asyncpg.Connection[asyncpg.Record] | None = None
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                if connection is None:
                    connection = await asyncpg.connect(url, timeout=5)
                    began = time.monotonic()
                await asyncio.wait_for(self._one(connection), 10)
                self.taken.append(time.monotonic() - began)
            except AWAY:
                if connection is not None:
                    connection.terminate()
                connection = None
            self._number += 1
            await asyncio.sleep(PAUSE)  # the rate of its traffic
        if connection is not None:
            await connection.close()

    async def _one(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        async with connection.transaction():
            await connection.execute("INSERT INTO parcel VALUES ($1)", self._number)
            await within(connection).publish(ParcelMoved(number=self._number, act=self._act))
