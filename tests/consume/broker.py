"""A road over RabbitMQ for the tests of the consume room."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

from consume.bench import Ready
from postroad.clock import SYSTEM_CLOCK, seconds
from postroad.consume.collector import PREFETCH
from postroad.events.envelope import CONTENT_TYPE
from postroad.transport.amqp import AmqpSettings, AmqpTransport
from postroad.transport.base import Outgoing, Settlement
from postroad.transport.topology import Topology, dead_letter_queue
from support import ThreadOwner, until

NAME = "billing.orders"
TOPOLOGY = Topology.of(publishes=["orders"], consumers=[(NAME, ["orders.order.placed"])])


class Road:
    """A transport whose service runs on a process's signals."""

    def __init__(self, standing, url):
        self.heard = standing.heard
        self.owner = ThreadOwner(standing.signals)
        self.transport = AmqpTransport(
            url, owner=self.owner, signals=standing.signals, clock=SYSTEM_CLOCK, chance=random.random,
            settings=AmqpSettings(first=seconds(0.05), most=seconds(0.2)),
        )  # fmt: skip
        self.publisher = self.transport.publisher()
        self.confirmed, self._unsettled, self._tickets = 0, {}, 0
        self.publisher.on_settled(self._hear)

    def _hear(self, batch):
        for settled in batch:
            message = self._unsettled.pop(settled.ticket)
            if settled.settlement is Settlement.CONFIRMED:
                self.confirmed += 1
            else:
                asyncio.get_running_loop().call_later(0.1, self.publish, message)

    def dead_letters(self):
        return self.transport.intake(dead_letter_queue(NAME), prefetch=PREFETCH)

    def publish(self, message):
        self._tickets += 1
        self._unsettled[self._tickets] = message
        outgoing = Outgoing(
            ticket=self._tickets, exchange="orders.events", routing_key="orders.order.placed.v1", body=message,
            message_id=f"{self._tickets}", type="orders.order.placed", app_id="orders", correlation_id="c",
            content_type=CONTENT_TYPE,
        )  # fmt: skip
        self.publisher.publish([outgoing])


@asynccontextmanager
async def road(standing, url, *, topology=TOPOLOGY):
    """A transport that runs, and the intake of queue `NAME`; the dead letter queue's is made by `Road.dead_letters`."""
    made = Road(standing, url)
    await made.transport.apply(topology)
    stop, ready = asyncio.Event(), Ready()
    intake = made.transport.intake(NAME, prefetch=64)
    running = made.owner.task(made.transport.service().run(stop, ready), name="transport")
    try:
        await until(lambda: ready.reason == "" or running.done())
        yield made, intake
    finally:
        stop.set()
        await asyncio.wait_for(running, 15)
        await made.owner.join(within=seconds(5))
