"""What breaks without a word: lines that lead nowhere, and a queue that is deleted under its consumer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from postroad.testing.servers import TcpProxy
from road.roads import QUEUE, Road, told, until

if TYPE_CHECKING:
    from runtime.processes import Running

pytestmark = pytest.mark.heavy
LOAD = 40
AT_ONCE = 8


@contextmanager
def line(url: str) -> Iterator[tuple[TcpProxy, str]]:
    """A proxy to the server of `url`, and the URL that leads through it."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    with TcpProxy(port) as proxy:
        yield proxy, url.replace(f":{port}/", f":{proxy.port}/")


def lines_lead_nowhere(road: Road, proxy: TcpProxy, *, within_seconds: float, **settings: str) -> None:
    """Neither side is told, while handlers are in their transactions and publishes under way."""
    board, dispatcher = road.board(**settings), road.dispatcher(**settings)
    road.publish(range(LOAD), act="wait:1")
    until(lambda: len(road.seen()) >= AT_ONCE and in_their_handlers(road) == AT_ONCE)
    proxy.strand()
    road.publish(range(LOAD, LOAD + 20))
    road.await_seen(range(LOAD + 20), within_seconds=within_seconds)
    assert road.seen() == Counter(range(LOAD + 20))
    assert_nobody_charged(road, board, dispatcher)


def in_their_handlers(road: Road) -> int:
    """How many transactions of the board wait for their handler."""
    idle = "state = 'idle in transaction' AND usename = 'pr_runtime' AND datname = current_database()"
    return road.count("pg_stat_activity", idle)


def assert_nobody_charged(road: Road, *processes: Running) -> None:
    road.assert_nothing_charged()
    for process in processes:
        assert process.process.poll() is None
        assert told(process, "publish_refused") == []
        assert told(process, "service_failed") == []


# --- to the broker --------------------------------------------------------------------------------------------------

QUICK = {"ROAD_HEARTBEAT": "1", "ROAD_CONFIRM": "3"}
NEVER = {"ROAD_HEARTBEAT": "600", "ROAD_CONFIRM": "3"}


def test_lines_to_the_broker_that_lead_nowhere_cost_a_heartbeat_and_charge_nothing(road: Road) -> None:
    with line(road.broker_url) as (proxy, url):
        lines_lead_nowhere(road, proxy, within_seconds=40, POSTROAD_BROKER_URL=url, **QUICK)


@pytest.mark.sabotage
def test_without_heartbeats_a_line_to_the_broker_that_leads_nowhere_is_never_missed(road: Road) -> None:
    with line(road.broker_url) as (proxy, url), pytest.raises(AssertionError):
        lines_lead_nowhere(road, proxy, within_seconds=20, POSTROAD_BROKER_URL=url, **NEVER)


# --- to the database ------------------------------------------------------------------------------------------------


def test_lines_to_the_database_that_lead_nowhere_cost_a_patience_and_charge_nothing(road: Road) -> None:
    with line(road.settings["POSTROAD_DATABASE_URL"]) as (proxy, url):
        lines_lead_nowhere(road, proxy, within_seconds=30, POSTROAD_DATABASE_URL=url, ROAD_PATIENCE="2")


@pytest.mark.sabotage
def test_without_patience_a_line_to_the_database_that_leads_nowhere_is_waited_for(road: Road) -> None:
    with line(road.settings["POSTROAD_DATABASE_URL"]) as (proxy, url), pytest.raises(AssertionError):
        lines_lead_nowhere(road, proxy, within_seconds=15, POSTROAD_DATABASE_URL=url, ROAD_PATIENCE="600")


# --- a deleted queue ------------------------------------------------------------------------------------------------


def a_queue_is_deleted_and_made_again(road: Road, *, within_seconds: float, **settings: str) -> Running:
    """What is published meanwhile finds no queue: it stays in the outbox, and goes out when there is one."""
    board = road.board(POSTROAD_TOPOLOGY="verify", **settings)
    dispatcher = road.dispatcher()
    road.publish(range(5))
    road.await_seen(range(5))
    road.on_channel(lambda channel: channel.queue_delete(QUEUE))
    road.publish(range(5, 10))
    dispatcher.wait_for("publish_refused", result="returned")
    assert road.count("postroad.outbox") == 5
    road.command("topology", "apply", "road.apps.board:app")
    road.await_seen(range(10), within_seconds=within_seconds)
    assert road.seen() == Counter(range(10))
    assert road.count("postroad.quarantine") == road.count("postroad.work") == road.count("postroad.finished") == 0
    return board


def test_a_queue_deleted_under_its_consumer_loses_nothing_that_comes_later(road: Road) -> None:
    road.command("topology", "apply", "road.apps.board:app")
    board = a_queue_is_deleted_and_made_again(road, within_seconds=40)
    assert told(board, "consumer_gone", cause="broker")
    assert len(told(board, "consumer_subscribed")) >= 3  # Both consumers', and the one that came back.


@pytest.mark.sabotage
def test_did_nobody_hear_of_the_deletion_the_consumer_would_be_silent_for_ever(road: Road) -> None:
    road.command("topology", "apply", "road.apps.board:app")
    with pytest.raises(AssertionError):
        a_queue_is_deleted_and_made_again(road, within_seconds=15, ROAD_WITHOUT="notice")
    assert road.seen() == Counter(range(5))
