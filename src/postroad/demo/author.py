"""The producer service's own code: for each flight one transaction, with its row and its event."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg

from postroad.asyncpg import within
from postroad.demo.departures import FlightCancelled, FlightDeparted
from postroad.demo.flights import Flight, Malformed, read
from postroad.errors import Unavailable

CONNECTIONS: Final = 4
REPORT_EVERY: Final = 25
_LOST: Final = (
    OSError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InterfaceError,
    asyncpg.InternalClientError, Unavailable,
)  # fmt: skip
INSERT = """
INSERT INTO flight (flight_id, carrier, origin, destination, delay_minutes) VALUES ($1, $2, $3, $4, $5)
"""


def event_of(flight: Flight) -> FlightDeparted | FlightCancelled:
    """What happened to `flight`, as its event."""
    place = (flight.flight_id, flight.carrier, flight.origin, flight.destination)
    if flight.delay is None:
        return FlightCancelled(
            flight_id=place[0], carrier=place[1], origin=place[2], destination=place[3], day=flight.day
        )
    return FlightDeparted(
        flight_id=place[0], carrier=place[1], origin=place[2], destination=place[3], day=flight.day,
        delay_minutes=flight.delay,
    )  # fmt: skip


async def stage(connection: asyncpg.Connection[asyncpg.Record], flight: Flight) -> None:
    """Write the flight and publish its event: both, or neither."""
    async with connection.transaction():
        await connection.execute(
            INSERT, flight.flight_id, flight.carrier, flight.origin, flight.destination, flight.delay
        )
        await within(connection).publish(event_of(flight), key=flight.flight_id, occurred_at=flight.occurred)


class Writer:
    """One connection of the author's, made anew where the database was lost."""

    def __init__(self, url: str) -> None:
        """Write to the database at `url`."""
        self._url = url
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def write(self, flight: Flight) -> bool:
        """Stage `flight`; False where it was there before.

        Where the connection is lost nobody knows whether the transaction was committed: it is tried again, and what
        is there then is this one.
        """
        doubt = False
        while True:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await asyncpg.connect(self._url)
                await stage(self._connection, flight)
            except asyncpg.UniqueViolationError:
                return doubt
            except _LOST:
                doubt = True
                await asyncio.sleep(0.1)
            else:
                return True

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()


class Author:
    """Stages the lines of a file as far as it is allowed to, and says on standard output how far it came."""

    def __init__(self, path: Path) -> None:
        """Read from `path`."""
        self._lines: Iterator[Flight | Malformed] = read(path)
        self._taken = 0
        self._limit = 0
        self._more = asyncio.Event()
        self.staged = 0

    def allow(self, limit: int) -> None:
        """Go on until `limit` lines were taken."""
        self._limit = max(self._limit, limit)
        self._more.set()

    async def work(self, writer: Writer) -> None:
        """Stage line after line until the file ends; several of these share it."""
        while (line := await self._next()) is not None:
            if isinstance(line, Malformed):
                say(malformed=[line.line, line.reason])
                continue
            if not await writer.write(line):
                say(repeated=line.flight_id)
                continue
            self.staged += 1
            if self.staged % REPORT_EVERY == 0:
                say(staged=self.staged)

    async def _next(self) -> Flight | Malformed | None:
        while self._taken >= self._limit:
            say(staged=self.staged, waits_at=self._limit)
            self._more.clear()
            await self._more.wait()
        self._taken += 1
        return next(self._lines, None)


def say(**facts: Any) -> None:
    """Tell whoever started this process, a line of JSON at a time."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def main(path: Path, url: str) -> None:
    """Stage `path` into the database at `url`, reading the limits that are allowed from standard input."""
    author = Author(path)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    writers = [Writer(url) for _ in range(CONNECTIONS)]

    async def obey() -> None:
        while line := await reader.readline():
            author.allow(int(line))

    async def write() -> None:
        await asyncio.gather(*(author.work(writer) for writer in writers))
        say(staged=author.staged, done=True)
        reader.feed_eof()

    await asyncio.gather(obey(), write())
    for writer in writers:
        await writer.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), os.environ["DEMO_AUTHOR_URL"]))
