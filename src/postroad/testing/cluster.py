"""A RabbitMQ cluster of our own for tests: nodes that can be killed, restarted one by one, and cut off."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Final
from urllib.parse import quote

from typing_extensions import override

from postroad.clock import seconds
from postroad.errors import Unavailable
from postroad.testing.process import Started, listens, wait_until
from postroad.testing.rabbitmq import RabbitNode

_SETTINGS: Final = {
    "cluster_partition_handling": "pause_minority",
    "net_ticktime": "8",  # A silent node is given up after so many seconds; a minute otherwise.
}
_NO_COOKIE: Final = "cut_off"


class RabbitCluster(Started):
    """Three RabbitMQ nodes on this machine that are one broker; quorum queues have a member on each.

    A node without the majority pauses (``pause_minority``). Start-up takes 15 to 30 seconds. `nodes` may be killed,
    stopped, restarted and paused like any other; what is left runs on while it is two. Not for use by several threads
    at once.

    Raises:
        UsageError: RabbitMQ is not installed; the message says what to install.
    """

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        given = {**_SETTINGS, **(settings or {})}
        first = RabbitNode(settings=given)
        self.nodes = (first, RabbitNode(settings=given, peer=first), RabbitNode(settings=given, peer=first))

    @override
    def start(self) -> None:
        """Start the nodes and join them.

        Raises:
            Unavailable: one did not come up, or does not join.
        """
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.start()
        first, *others = self.nodes
        for node in others:
            node.ctl("stop_app")
            node.ctl("join_cluster", first.address.node)
            node.ctl("start_app")
        self.await_whole()

    def url(self, vhost: str = "/", user: str = "guest", password: str = "guest") -> str:  # noqa: S107 - the broker's own default
        """The AMQP URL of a virtual host, which names every node."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@{hosts}/{quote(vhost, safe='')}"

    def leader(self, queue: str, *, vhost: str = "/") -> RabbitNode:
        """The node that leads a quorum queue now.

        Raises:
            Unavailable: the queue has no leader, or there is no such queue.
        """
        listing = self._running().ctl("list_queues", "-p", vhost, "--no-table-headers", "name", "leader")
        names = dict(line.split("\t") for line in listing.splitlines() if "\t" in line)
        for node in self.nodes:
            if node.address.node == names.get(queue):
                return node
        raise Unavailable("PR302", f"queue {queue!r} of virtual host {vhost!r} has no leader now")

    def cut_off(self, node: RabbitNode) -> None:
        """Part `node` from the others, as a broken network does: it is a minority, and pauses. `rejoin` ends it."""
        others = ", ".join(f"'{other.address.node}'" for other in self.nodes if other is not node)
        # It no longer accepts their cookie, nor they its: every attempt to connect again fails.
        node.evaluate(f"[begin erlang:set_cookie(N, {_NO_COOKIE}), erlang:disconnect_node(N) end || N <- [{others}]]")
        if not wait_until(lambda: not listens(node.port), within=seconds(30)):
            raise Unavailable("PR302", f"the node {node.address.node} was cut off and did not pause")

    def rejoin(self, node: RabbitNode) -> None:
        """Mend what `cut_off` did, and wait until the node works with the others again."""
        others = ", ".join(f"'{other.address.node}'" for other in self.nodes if other is not node)
        node.evaluate(f"[erlang:set_cookie(N, erlang:get_cookie()) || N <- [{others}]]")
        self.await_whole()

    def roll(self) -> None:
        """Restart the nodes one after another, as an upgrade does: each only once no queue depends on it."""
        for node in self.nodes:
            node.restart()
            self.await_whole()

    def await_whole(self, *, within: timedelta = seconds(60)) -> None:
        """Wait until all nodes run and know each other, and every quorum queue could lose any one of them.

        Raises:
            Unavailable: that did not come about in time.
        """
        if not wait_until(lambda: all(self._sound(node) for node in self.nodes), within=within, every=seconds(0.2)):
            raise Unavailable("PR302", "the RabbitMQ cluster did not become whole in time")

    @override
    def close(self) -> None:
        """End all nodes for good, at once, and remove their data."""
        with ExitStack() as stack:
            for node in self.nodes:  # The first has the others' epmd: it goes last.
                stack.callback(node.close)

    def _running(self) -> RabbitNode:
        for node in self.nodes:
            if node.runs:
                return node
        raise Unavailable("PR302", "no node of the RabbitMQ cluster runs")

    def _sound(self, node: RabbitNode) -> bool:
        others = [f"'{other.address.node}'" for other in self.nodes if other is not node]
        know = f"[] =:= ([{', '.join(others)}] -- nodes())"
        try:
            return node.evaluate(
                f"rabbit:is_running() andalso {know} andalso [] =:= rabbit_quorum_queue:list_with_minimum_quorum()"
            ) == "true"  # fmt: skip
        except Unavailable:
            return False
