"""The whole road over PostgreSQL alone: deaths, pauses, gone consumers, and the moves to a broker and back."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from postroad.runtime.settings import POSTGRES
from road.roads import WITHOUT_BROKER, Road, told, until

if TYPE_CHECKING:
    from runtime.processes import Running

pytestmark = [pytest.mark.heavy, pytest.mark.parametrize("road", [WITHOUT_BROKER], indirect=True)]
COUNT = 12
LEASE, SWEEP = 2, 1  # Seconds; the road's worker lease, and the product's sweep.
IN_HAND = "queue = 'board.moves:deliveries' AND state = 'running'"


def killed(running: Running) -> bool:
    return running.process.poll() == -signal.SIGKILL


# --- dispatchers ----------------------------------------------------------------------------------------------------


def a_dispatcher_dies(road: Road, **settings: str) -> None:
    """It is killed when rows of work are committed and the outbox does not know; another goes on."""
    road.board()
    first = road.dispatcher(ROAD_AT="confirmed:1:SIGKILL")
    road.publish(range(COUNT))
    until(lambda: killed(first))
    assert road.count("postroad.outbox") > 0
    road.dispatcher(**settings)
    road.await_seen(range(COUNT))


def test_a_dispatcher_killed_between_its_commit_and_the_delete_hands_over_again_and_it_counts_once(road: Road) -> None:
    a_dispatcher_dies(road)
    until(lambda: road.count("postroad.work") == 0)
    assert road.seen() == Counter(range(COUNT))
    road.assert_nothing_charged()


# --- consumers ------------------------------------------------------------------------------------------------------


def a_consumer_is_killed_in_mid_item(road: Road, **settings: str) -> tuple[Running, float]:
    """Of two boards the one that holds the event is killed; the other, and when that was."""
    boards = [road.board(**settings), road.board(**settings)]
    road.dispatcher()
    road.publish([1], act="wait:4")
    until(lambda: any(told(board, "handler_started") for board in boards))
    boards.sort(key=lambda board: not told(board, "handler_started"))
    boards[0].process.kill()
    boards[0].process.wait()
    return boards[1], time.monotonic()


def test_what_a_killed_consumer_held_is_taken_over_within_its_lease_and_one_sweep(road: Road) -> None:
    second, since = a_consumer_is_killed_in_mid_item(road)
    second.wait_for("handler_started")
    assert time.monotonic() - since < LEASE + SWEEP + 3  # The rest is the machine's.
    assert sum(line["redelivered"] for line in told(second, "deliveries_received")) == 1
    road.await_seen([1])
    assert road.seen() == Counter([1])


@pytest.mark.sabotage
def test_without_recovery_what_a_killed_consumer_held_stays_with_it(road: Road) -> None:
    a_consumer_is_killed_in_mid_item(road, ROAD_WITHOUT="recovery")
    road.publish([2])
    road.await_seen([2])
    until(lambda: road.count("postroad.lease", "name LIKE 'worker:%' AND expires_at < clock_timestamp()") == 1)
    assert road.seen() == Counter([2])
    assert road.count("postroad.work", IN_HAND) == 1


def test_a_consumer_that_was_stopped_past_its_lease_wakes_up_and_doubles_nothing(road: Road) -> None:
    first = road.board()
    road.dispatcher()
    road.publish(range(COUNT), act="wait:0.2")
    until(lambda: len(road.seen()) >= 2)
    os.kill(first.process.pid, signal.SIGSTOP)
    second = road.board()
    until(lambda: bool(told(second, "work_recovered")))
    os.kill(first.process.pid, signal.SIGCONT)  # What it was at is open in its transaction: until now nobody else can.
    first.wait_for("lease_gone", kind="worker")
    road.publish([COUNT])
    road.await_seen(range(COUNT + 1))
    until(lambda: road.count("postroad.work") == 0)
    assert road.seen() == Counter(range(COUNT + 1))
    assert first.stop() < 10


# --- subscriptions --------------------------------------------------------------------------------------------------


def test_what_nobody_subscribes_to_stays_in_the_outbox_until_somebody_does(road: Road) -> None:
    dispatcher = road.dispatcher()
    road.publish([1])
    refused = dispatcher.wait_for("publish_refused", result="returned")
    assert "postroad topology apply" in refused["reason"]
    assert road.count("postroad.outbox", "attempts > 0") == 1
    road.board()
    road.await_seen([1])


def test_a_consumer_that_is_gone_collects_no_more_once_it_is_retired(road: Road) -> None:
    road.board().stop()
    road.dispatcher()
    road.publish([1, 2])
    until(lambda: road.count("postroad.work", "queue = 'board.moves:deliveries'") == 2)
    until(lambda: road.count("postroad.outbox") == 0)
    assert "1 subscriptions ended, 2 waiting deliveries dropped" in road.command("topology", "retire", "board.moves")
    road.publish([3])
    until(lambda: road.count("postroad.outbox", "attempts > 0") == 1)
    assert road.count("postroad.work") == 0


# --- moving ---------------------------------------------------------------------------------------------------------


def test_moved_to_a_broker_nothing_that_waits_in_the_database_is_lost(road: Road, vhost: str) -> None:
    road.board().stop()
    dispatcher = road.dispatcher()
    road.publish(range(COUNT))
    until(lambda: road.count("postroad.work", "kind = 'delivery'") == COUNT)
    dispatcher.stop()
    road.broker_url = vhost
    assert f"{COUNT} in the database for consumer 'board.moves'" in road.command("doctor")
    board = road.board()
    road.dispatcher()
    road.publish([COUNT])
    road.await_seen(range(COUNT + 1))
    until(lambda: road.count("postroad.work") == 0)
    assert road.seen() == Counter(range(COUNT + 1))
    road.assert_nothing_charged()
    assert sum(line["count"] for line in told(board, "deliveries_received")) == 1  # of the broker
    assert "no delivery is left in the database" in road.command("doctor")


def test_moved_back_the_doctor_says_that_the_broker_carried_events_before(road: Road, vhost: str) -> None:
    road.broker_url = vhost
    board, dispatcher = road.board(), road.dispatcher()
    road.publish([1])
    road.await_seen([1])
    board.stop()
    dispatcher.stop()
    road.broker_url = POSTGRES
    road.board()
    road.dispatcher()
    road.publish([2])
    road.await_seen([1, 2])
    assert road.seen() == Counter([1, 2])
    told_ = road.command("doctor")
    assert "carried events before: what lies in its queues stays there" in told_
