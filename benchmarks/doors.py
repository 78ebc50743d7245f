"""What staging costs at each author's door, against a plain INSERT of the same row through the same door.

Usage: doors.py DOOR COUNT or doors.py DOOR-plain COUNT (doors.py setup 0 before), with BENCH_DATABASE_URL set; prints
one JSON line {"rate": per second}. Begin and commit are not counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import uvloop
from floor import ROW, TABLES, Order, row_of
from ours import OrderPlaced
from sqlalchemy import Column, MetaData, Table, create_engine, types
from sqlalchemy.dialects.postgresql import BYTEA, UUID
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import postroad.psycopg
import postroad.sqlalchemy

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = (
    "id", "type", "version", "key", "sequence", "occurred", "recorded", "correlation", "causation", "retention",
    "envelope",
)  # fmt: skip
AWARE = types.DateTime(timezone=True)
SAME = Table(
    "same", MetaData(schema="floor"), Column("id", UUID), Column("type", types.Text), Column("version", types.Integer),
    Column("key", types.Text), Column("sequence", types.BigInteger), Column("occurred", AWARE),
    Column("recorded", AWARE), Column("correlation", types.Text), Column("causation", types.Text),
    Column("retention", types.SmallInteger), Column("envelope", BYTEA),
)  # fmt: skip
FORMATTED = ROW
for _number in range(11, 0, -1):
    FORMATTED = FORMATTED.replace(f"${_number}", "%s")


def url(driver: str = "") -> str:
    return os.environ["BENCH_DATABASE_URL"].replace("postgresql://", f"postgresql{driver}://", 1)


def plain(number: int) -> tuple[Any, ...]:
    return tuple(row_of(Order(order_id="x" * 36, note="b" * 380), str(number)))


def event() -> OrderPlaced:
    return OrderPlaced(order_id="x" * 36, note="b" * 380)


async def timed(count: int, write: Callable[[int], Any], end: Callable[[], Any]) -> float:
    """Seconds that so many writes take, each in a transaction that was begun before."""
    taken = 0.0
    for number in range(count):
        began = time.perf_counter()
        done = write(number)
        if hasattr(done, "__await__"):
            await done
        taken += time.perf_counter() - began
        ended = end()
        if ended is not None:
            await ended
    return taken


async def by_psycopg(count: int, *, is_plain: bool) -> float:
    with psycopg.connect(url()) as connection:

        def begin() -> None:
            connection.commit()
            connection.execute("SELECT 1")

        def write(number: int) -> None:
            if is_plain:
                connection.execute(FORMATTED, plain(number))
            else:
                postroad.psycopg.within(connection).publish(event(), key=str(number))

        begin()
        return await timed(count, write, begin)


async def by_async_psycopg(count: int, *, is_plain: bool) -> float:
    async with await psycopg.AsyncConnection.connect(url()) as connection:

        async def begin() -> None:
            await connection.commit()
            await connection.execute("SELECT 1")

        def write(number: int) -> Any:
            if is_plain:
                return connection.execute(FORMATTED, plain(number))
            return postroad.psycopg.within(connection).publish(event(), key=str(number))

        await begin()
        return await timed(count, write, begin)


async def by_session(count: int, *, is_plain: bool) -> float:
    with Session(create_engine(url("+psycopg"))) as session:

        def begin() -> None:
            session.commit()
            session.connection().exec_driver_sql("SELECT 1")

        def write(number: int) -> None:
            if is_plain:
                session.execute(SAME.insert(), dict(zip(NAMES, plain(number), strict=True)))
            else:
                postroad.sqlalchemy.within(session).publish(event(), key=str(number))

        begin()
        return await timed(count, write, begin)


async def by_async_session(count: int, *, is_plain: bool) -> float:
    async with AsyncSession(create_async_engine(url("+asyncpg"))) as session:

        async def begin() -> None:
            await session.commit()
            await (await session.connection()).exec_driver_sql("SELECT 1")

        def write(number: int) -> Any:
            if is_plain:
                return session.execute(SAME.insert(), dict(zip(NAMES, plain(number), strict=True)))
            return postroad.sqlalchemy.within(session).publish(event(), key=str(number))

        await begin()
        return await timed(count, write, begin)


DOORS = {
    "psycopg": by_psycopg,
    "psycopg-async": by_async_psycopg,
    "sqlalchemy": by_session,
    "sqlalchemy-async": by_async_session,
}


async def setup() -> None:
    connection = await asyncpg.connect(url())
    await connection.execute(TABLES)
    await connection.close()


if __name__ == "__main__":
    stage, amount = sys.argv[1], int(sys.argv[2])
    if stage == "setup":
        asyncio.run(setup())
    else:
        seconds = uvloop.run(DOORS[stage.removesuffix("-plain")](amount, is_plain=stage.endswith("-plain")))
        print(json.dumps({"rate": amount / seconds}), flush=True)
