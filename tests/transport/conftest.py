"""A running transport for tests: its service, what it settled, what readiness says, and what it signalled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from postroad.clock import seconds
from postroad.testing.servers import RabbitNode
from postroad.transport.topology import Topology
from transport.line import Line

if TYPE_CHECKING:
    from postroad.transport.amqp.intake import AmqpIntake
    from postroad.transport.base import Incoming


@pytest.fixture(scope="session")
def node() -> Iterator[RabbitNode]:
    """A node for all of these tests, to stop, pause and alarm; each leaves it running."""
    with RabbitNode(settings={"max_message_size": "100000"}) as node:
        yield node


@pytest.fixture
def topology() -> Topology:
    return Topology.of(publishes=["shop"], consumers=[("billing", ["shop.order.placed"])])


@pytest.fixture
def line_of() -> Callable[..., Line]:
    """A transport that nothing runs yet."""
    return Line


@pytest.fixture
async def line_to(vhost: str) -> AsyncIterator[Callable[..., Awaitable[Line]]]:
    """Start a transport to a URL; it is stopped after the test, and before its virtual host goes."""

    @asynccontextmanager
    async def running(url: str, topology: Topology, intakes: dict[str, int], **settings: Any) -> AsyncIterator[Line]:
        line = Line(url, **settings)
        await line.transport.apply(topology)
        line.intakes = {queue: line.transport.intake(queue, prefetch=count) for queue, count in intakes.items()}  # type: ignore[attr-defined]
        await line.start()
        try:
            yield line
        finally:
            await line.stop()
            assert await line.owner.join(within=seconds(5)) == ()

    async with AsyncExitStack() as stack:

        async def start(url: str, topology: Topology, intakes: dict[str, int] | None = None, **settings: Any) -> Line:
            return await stack.enter_async_context(running(url, topology, intakes or {}, **settings))

        yield start


@pytest.fixture
async def line(line_to: Callable[..., Awaitable[Line]], vhost: str, topology: Topology) -> Line:
    """A transport on a fresh virtual host, with `topology` applied and a publisher."""
    return await line_to(vhost, topology)


@pytest.fixture
async def taking(line_to: Callable[..., Awaitable[Line]], vhost: str, topology: Topology) -> tuple[Line, AmqpIntake]:
    """The same with an intake of queue `billing`, prefetch 10."""
    line = await line_to(vhost, topology, {"billing": 10})
    return line, line.intakes["billing"]  # type: ignore[attr-defined]


@pytest.fixture
def drain() -> Callable[..., Awaitable[list[Incoming]]]:
    """Take exactly so many deliveries."""

    async def take(intake: AmqpIntake, count: int, *, within: float = 20) -> list[Incoming]:
        taken: list[Incoming] = []
        async with asyncio.timeout(within):
            while len(taken) < count:
                taken += await intake.take(count - len(taken))
        return taken

    return take
