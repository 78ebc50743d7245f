"""What tests look at: the row of the installation, and its marks on the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pika


async def row(url: str) -> dict[str, Any]:
    connection = await asyncpg.connect(url)
    try:
        return dict(await connection.fetchrow("SELECT * FROM postroad.installation"))
    finally:
        await connection.close()


async def execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def marked(url: str, found: dict[str, Any], *, by: str = "token") -> bool:
    """Whether the broker has the mark of one of the tokens."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        connection.channel().exchange_declare(f"postroad.installation.{found['id']}.{found[by]}", passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    finally:
        connection.close()
    return True


async def until_row(url: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds(await row(url)):
            pass
