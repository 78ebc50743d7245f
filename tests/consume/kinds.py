"""Both kinds of handler from one text: what is written as `async def` on asyncpg also runs as a `def` on psycopg."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
from psycopg.rows import namedtuple_row

from postroad import asyncpg as asyncpg_door
from postroad import psycopg as psycopg_door

if TYPE_CHECKING:
    from postroad.consume import Consumer

BOTH = ("async def", "def")
DATA_ERRORS = (asyncpg.DataError, psycopg.DataError)


class Gate:
    """An event that handlers of both kinds can wait for and set, on whichever loop or thread they run."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def set(self) -> None:
        self._open.set()

    async def wait(self) -> None:
        while not self._open.is_set():  # noqa: ASYNC110 - set from another thread's loop
            await asyncio.sleep(0.005)


class Tx:
    """A psycopg connection that is spoken to as an asyncpg one."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    async def execute(self, text: str, *args: Any) -> None:
        psycopg.RawCursor(self.connection).execute(text.encode(), args or None)

    async def fetchval(self, text: str, *args: Any) -> Any:
        with psycopg.RawCursor(self.connection, row_factory=namedtuple_row) as cursor:
            row = cursor.execute(text.encode(), args or None).fetchone()
        return None if row is None else row[0]


def as_def(consumer: Consumer[Any]) -> Consumer[Any]:
    """The consumer with a `def` handler that does, on its thread and its psycopg connection, what its own does."""
    function: Any = consumer.function

    def handle(event: Any, delivery: Any) -> None:
        asyncio.run(function(event, replace(delivery, tx=Tx(delivery.tx))))

    return replace(consumer, function=handle)


async def publish(delivery: Any, event: object) -> None:
    """Publish by the door of the delivery's connection."""
    if isinstance(delivery.tx, Tx):
        psycopg_door.within(delivery.tx.connection).publish(event)
    else:
        await asyncpg_door.within(delivery.tx).publish(event)


def outside() -> Callable[[Awaitable[Any]], Awaitable[Any]]:
    """From a handler of either kind: have something awaited by the loop that runs now."""
    loop = asyncio.get_running_loop()

    async def on_it(work: Any) -> Any:
        if asyncio.get_running_loop() is loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    return on_it
