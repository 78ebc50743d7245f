"""What the broker takes out of a queue, with whole processes: collected once, released like any other."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from road.roads import QUEUE, Road, told, until

if TYPE_CHECKING:
    from runtime.processes import Running

pytestmark = pytest.mark.heavy


def rejected(road: Road, number: int) -> None:
    """Somebody else takes a movement from the queue and rejects it."""
    road.board().stop()  # It made the queues.
    dispatcher = road.dispatcher()
    road.publish([number])
    until(lambda: road.count("postroad.outbox") == 0)
    dispatcher.stop()

    def reject(channel: Any) -> None:
        method, _, _ = channel.basic_get(QUEUE)
        channel.basic_reject(method.delivery_tag, requeue=False)

    road.on_channel(reject)


def depth(road: Road, queue: str) -> int:
    declared = road.on_channel(lambda channel: channel.queue_declare(queue, passive=True))
    return int(declared.method.message_count)


def collected(road: Road) -> Running:
    rejected(road, 1)
    board = road.board()
    until(lambda: road.count("postroad.quarantine") == 1)
    return board


def test_a_rejected_message_is_collected_and_its_release_takes_effect(road: Road) -> None:
    board = collected(road)
    ((row),) = road.quarantined()
    assert (row["kind"], row["code"], row["queue"]) == ("dead-letter", "PR512", QUEUE)
    assert "rejected" in row["reason"]
    assert road.seen() == {}
    board.wait_for("dead_letter_collected", reason="rejected")
    road.command("quarantine", "retry", str(row["id"]), "--by", "ada")
    road.await_seen([1])
    until(lambda: road.count("postroad.finished", "outcome = 'handled' AND attempt = 1") == 1)
    assert depth(road, f"{QUEUE}.dlq") == 0


def test_a_collector_killed_between_commit_and_ack_leaves_one_row(road: Road) -> None:
    rejected(road, 1)
    first = road.starting_board(ROAD_AT="collected:1:SIGKILL")
    until(lambda: first.process.poll() == -signal.SIGKILL)
    assert road.count("postroad.quarantine") == 1
    second = road.board()
    second.wait_for("dead_letter_collected", fresh=False)
    until(lambda: depth(road, f"{QUEUE}.dlq") == 0)
    assert road.count("postroad.quarantine") == 1
    assert told(second, "delivery_quarantined") == []
