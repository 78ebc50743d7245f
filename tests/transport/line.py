"""A running AMQP transport for tests: its service, what it settled, what readiness says, and what it signalled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.signals import Signals
from postroad.transport.amqp import AmqpSettings, AmqpTransport
from postroad.transport.base import Outgoing, Settled
from support import Recorder, ThreadOwner, until

QUICK = {"first": seconds(0.05), "most": seconds(0.2)}


class Line:
    """A transport whose service runs, and everything that it says."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.signals = Signals()
        self.heard = Recorder(self.signals)
        self.owner = ThreadOwner(self.signals)
        self.transport = AmqpTransport(
            url,
            owner=self.owner,
            signals=self.signals,
            clock=SYSTEM_CLOCK,
            chance=random.random,
            settings=AmqpSettings(**{**QUICK, **settings}),
        )
        self.publisher = self.transport.publisher()
        self.settled: dict[int, Settled] = {}
        self.settlements = 0
        self.batches = 0
        self.ready = False
        self.reason = ""
        self._tickets = 0
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.publisher.on_settled(self._hear)

    def _hear(self, batch: Sequence[Settled]) -> None:
        self.batches += 1
        self.settlements += len(batch)
        self.settled.update({settled.ticket: settled for settled in batch})

    def up(self) -> None:
        self.ready, self.reason = True, ""

    def down(self, reason: str) -> None:
        self.ready, self.reason = False, reason

    async def start(self) -> None:
        self._stop.clear()
        self._running = self.owner.task(self.transport.service().run(self._stop, self), name="transport")
        await until(lambda: self.ready or self._running is None or self._running.done())
        if self._running.done():
            await self._running

    async def stop(self) -> None:
        self._stop.set()
        if self._running is not None:
            await asyncio.wait_for(self._running, 15)
            self._running = None

    def message(self, **fields: Any) -> Outgoing:
        self._tickets += 1
        given: dict[str, Any] = {
            "exchange": "shop.events",
            "routing_key": "shop.order.placed.v1",
            "body": b'{"n": 1}',
            "message_id": str(uuid4()),
            "type": "shop.order.placed",
            "app_id": "shop",
            "correlation_id": "c-1",
            "content_type": "application/cloudevents+json",
        }
        return Outgoing(ticket=self._tickets, **{**given, **fields})

    async def outcomes(self, *messages: Outgoing, within: float = 20) -> list[Settled]:
        """Publish and wait until every one is settled."""
        for message in messages:
            self.settled.pop(message.ticket, None)
        self.publisher.publish(messages)
        await until(lambda: all(message.ticket in self.settled for message in messages), within=within)
        return [self.settled[message.ticket] for message in messages]

    async def holds(self, count: int) -> None:
        """Wait until so many messages are ready in queue `billing`: what a consumer leaves returns a little later."""
        async with asyncio.timeout(10):
            while await self.transport.depths(["billing"]) != {"billing": count}:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
