"""A broker of several nodes: one URL, and whichever of them answers."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from postroad.errors import SettingsError, Unavailable
from postroad.hosts import each_host
from postroad.testing.servers import Rabbit, TcpProxy, free_port
from postroad.transport.amqp.connection import Address, AmqpSettings
from postroad.transport.base import Settlement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.transport.topology import Topology


def nodes_url(vhost: str, *ports: int) -> str:
    """The same virtual host, by these ports of this machine."""
    user, _, rest = vhost.partition("@")
    return f"{user}@{','.join(f'127.0.0.1:{port}' for port in ports)}/{rest.partition('/')[2]}"


@pytest.fixture
def doors(rabbit: Rabbit) -> Iterator[tuple[TcpProxy, TcpProxy]]:
    """Two ways to the same broker, as if it were two nodes."""
    with ExitStack() as stack:
        yield stack.enter_context(TcpProxy(rabbit.port)), stack.enter_context(TcpProxy(rabbit.port))


async def goes_on_when_its_node_is_gone(
    line_to: Any, vhost: str, doors: tuple[TcpProxy, TcpProxy], topology: Topology
) -> None:
    line = await line_to(nodes_url(vhost, *(door.port for door in doors)), topology, {"billing": 10})
    await confirmed(line)
    for door in sorted(doors, key=lambda one: -one.connections):
        door.cut()
        await confirmed(line)
        door.heal()


async def confirmed(line: Any) -> None:
    """Publish until the broker has one; what it has not been given is unknown at once."""
    async with asyncio.timeout(5):
        while (await line.outcomes(line.message()))[0].settlement is not Settlement.CONFIRMED:
            pass


async def test_what_is_lost_with_one_node_goes_on_at_another(
    line_to: Any, vhost: str, doors: tuple[TcpProxy, TcpProxy], topology: Topology
) -> None:
    await goes_on_when_its_node_is_gone(line_to, vhost, doors, topology)


@pytest.mark.sabotage
async def test_a_process_that_forgets_the_other_nodes_stands_still(
    line_to: Any, vhost: str, doors: tuple[TcpProxy, TcpProxy], topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.transport.amqp.connection.each_host", lambda url: each_host(url)[:1])
    with pytest.raises(TimeoutError):
        await goes_on_when_its_node_is_gone(line_to, vhost, doors, topology)


@pytest.mark.parametrize("place", [0, 1])
async def test_a_node_that_is_away_from_the_start_is_passed_over(
    line_to: Any, vhost: str, rabbit: Rabbit, topology: Topology, place: int
) -> None:
    ports = [rabbit.port]
    ports.insert(place, free_port())
    await confirmed(await line_to(nodes_url(vhost, *ports), topology))


async def test_all_nodes_away_is_one_line_that_names_them(line_of: Any) -> None:
    one, two = free_port(), free_port()
    with pytest.raises(Unavailable, match=rf"127.0.0.1:{one} or 127.0.0.1:{two}, virtual host 'v' cannot be reached"):
        await line_of(f"amqp://u:hush@127.0.0.1:{one},127.0.0.1:{two}/v").start()


def test_every_node_has_the_urls_user_virtual_host_and_options() -> None:
    address = Address.of("amqp://me:s%2Ccret@one:1,two/v%2Fw?heartbeat=3")
    assert [node.place for node in address.nodes] == ["one:1, virtual host 'v/w'", "two:5672, virtual host 'v/w'"]
    given = [node.parameters(AmqpSettings(), role="publish") for node in address.nodes]
    assert [(one.host, one.port, one.credentials.password) for one in given] == [
        ("one", 1, "s,cret"), ("two", 5672, "s,cret")
    ]  # fmt: skip
    assert address.hosts == ["one", "two"]
    assert "cret" not in repr(address)


@pytest.mark.parametrize("url", ["amqp://u:hush@one:x,two/v", "amqp://u:hush@one,two:99999999/v", "http://one,two/v"])
def test_nodes_that_cannot_be_read_are_refused(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Address.of(url)
    assert "hush" not in str(caught.value)
