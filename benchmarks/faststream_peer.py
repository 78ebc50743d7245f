"""FastStream as a user would pick it: its RabbitMQ broker, persistent publishes, each confirmed and routed.

It publishes the same bodies from memory: no outbox is read and nothing is deleted, which is in its favour.
Usage: faststream_peer.py dispatch COUNT, with BENCH_BROKER_URL set; prints one JSON line {"rate": per second}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import uvloop
from faststream.rabbit import ExchangeType, QueueType, RabbitBroker, RabbitExchange, RabbitQueue

BODY = {"order_id": "x" * 36, "note": "b" * 380}
AT_ONCE = 200


async def main(count: int) -> None:
    broker = RabbitBroker(os.environ["BENCH_BROKER_URL"])
    exchange = RabbitExchange("peer.events", type=ExchangeType.TOPIC, durable=True)
    queue = RabbitQueue("peer.queue", durable=True, queue_type=QueueType.QUORUM, routing_key="peer.order.placed.v1")
    await broker.connect()
    declared = await broker.declare_queue(queue)
    await declared.bind(await broker.declare_exchange(exchange), routing_key=queue.routing_key)
    await declared.purge()
    gate = asyncio.Semaphore(AT_ONCE)

    async def publish(number: int) -> None:
        async with gate:
            await broker.publish(
                BODY, exchange=exchange, routing_key="peer.order.placed.v1", persist=True, mandatory=True,
                message_id=str(number),
            )  # fmt: skip

    started = time.perf_counter()
    await asyncio.gather(*(publish(number) for number in range(count)))
    print(json.dumps({"rate": count / (time.perf_counter() - started)}))
    await declared.purge()
    await broker.stop()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[2])))
