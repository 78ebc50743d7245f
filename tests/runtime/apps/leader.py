"""An App whose background service works only while it is the leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.clock import seconds
from postroad.runtime.app import App

if TYPE_CHECKING:
    import asyncio

    from postroad.owner import Readiness

app = App("leader")


async def lead(stop: asyncio.Event, ready: Readiness) -> None:
    async with app.lease("leader", ttl=seconds(5)):
        ready.up()
        await stop.wait()


app.background("lead", lead)
