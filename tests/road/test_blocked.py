"""A handler that blocks its event loop costs no connection: heartbeats are answered elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from road.roads import Road, told, until

if TYPE_CHECKING:
    from postroad.testing.servers import Rabbit
    from runtime.processes import Running

pytestmark = pytest.mark.heavy
HEARTBEATS = 4  # Of one second each; the broker gives up after two without a word.


def connections(rabbit: Rabbit, road: Road) -> set[str]:
    """The broker's own names for the connections to the road's virtual host."""
    vhost = road.broker_url.rpartition("/")[2]
    lines = rabbit.ctl("list_connections", "--no-table-headers", "pid", "vhost").splitlines()
    return {line.split("\t")[0] for line in lines if line.split("\t")[1:] == [vhost]}


def a_handler_blocks(rabbit: Rabbit, road: Road, act: str) -> tuple[Running, set[str], set[str]]:
    """The board, and its connections before and after."""
    board = road.board(ROAD_HEARTBEAT="1")
    before = connections(rabbit, road)
    assert before
    road.dispatcher()
    road.publish([1], act=act)
    road.await_seen([1], within_seconds=20)
    road.publish([2])
    road.await_seen([2])
    return board, before, connections(rabbit, road)


def test_a_handler_that_blocks_its_loop_for_four_heartbeats_costs_no_connection(rabbit: Rabbit, road: Road) -> None:
    board, before, after = a_handler_blocks(rabbit, road, f"block:{HEARTBEATS}")
    assert before <= after
    assert told(board, "connection_down") == []
    assert sum(line["redelivered"] for line in told(board, "deliveries_received")) == 0
    assert {line["result"] for line in told(board, "delivery_settled")} == {"ok"}
    assert road.seen() == Counter([1, 2])
    road.assert_nothing_charged()


@pytest.mark.sabotage
def test_a_handler_that_stops_the_transports_thread_too_costs_the_connection(rabbit: Rabbit, road: Road) -> None:
    """It holds the interpreter's lock; the inbox still makes the redelivery a duplicate."""
    board, before, after = a_handler_blocks(rabbit, road, f"freeze:{HEARTBEATS}")
    assert not before <= after
    until(lambda: sum(line["redelivered"] for line in told(board, "deliveries_received")) > 0)
    assert road.seen() == Counter([1, 2])
