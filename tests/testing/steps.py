"""What tests of the road do again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.asyncpg import within
from testing.shop import Mail, OrderPlaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.testing import Road


async def place(road: Road, *numbers: str) -> None:
    """Publish orders with these numbers, committed."""
    async with road.transaction() as tx:
        for number in numbers:
            await within(tx).publish(OrderPlaced(number=number), key=number)


async def enqueue(road: Road, job: Callable[[Mail, Any], Any], receiver: str, **options: Any) -> None:
    """Enqueue one mail, committed."""
    async with road.transaction() as tx:
        await within(tx).enqueue(job, Mail(receiver=receiver), **options)


async def column(road: Road, table: str) -> list[str]:
    """The first column of a table of the service's own, in order."""
    async with road.transaction() as tx:
        return [row[0] for row in await tx.fetch(f"SELECT * FROM {table} ORDER BY 1")]
