"""P2, P3 and P4 under SIGKILL: consumers and dispatchers die where it hurts, and every event takes effect once."""

from __future__ import annotations

import json
import signal
from collections import Counter, defaultdict
from typing import Any

import pytest

from road.roads import EXCHANGE, QUEUE, Road, told, until
from runtime.processes import Running

pytestmark = pytest.mark.heavy
COUNT = 12
ONCE = Counter(range(COUNT))


def killed(running: Running) -> bool:
    return running.process.poll() == -signal.SIGKILL


# --- consumers ------------------------------------------------------------------------------------------------------


def a_consumer_dies(road: Road, point: str, **settings: str) -> Running:
    """A board kills itself when its third message is at `point`; the next one finishes. Returns the next one."""
    first = road.board(ROAD_AT=f"{point}:3:SIGKILL", **settings)
    road.dispatcher()
    road.publish(range(COUNT), act="wait:0.02")
    until(lambda: killed(first))
    second = road.board(**settings)
    road.await_seen(set(range(COUNT)) if "late_ack" not in settings.get("ROAD_WITHOUT", "") else ())
    # The queue is empty, and the last ack is out, once what comes after them is through.
    road.publish([COUNT])
    road.await_seen([COUNT])
    second.wait_for("delivery_settled", result="ok")
    return second


def assert_once(road: Road) -> None:
    assert road.seen() == ONCE + Counter([COUNT])
    road.assert_nothing_charged()


def test_a_consumer_killed_in_its_handlers_leaves_nothing_half_done_and_nothing_undone(road: Road) -> None:
    second = a_consumer_dies(road, "handler")
    assert_once(road)
    assert sum(line["redelivered"] for line in told(second, "deliveries_received")) >= 1


def test_a_consumer_killed_between_commit_and_ack_has_its_effect_once(road: Road) -> None:
    second = a_consumer_dies(road, "committed")
    assert_once(road)
    until(lambda: bool(told(second, "delivery_settled", result="duplicate")))


@pytest.mark.sabotage
def test_without_the_inbox_a_consumer_killed_between_commit_and_ack_has_its_effect_twice(road: Road) -> None:
    a_consumer_dies(road, "committed", ROAD_WITHOUT="inbox")
    assert max(road.seen().values()) > 1
    with pytest.raises(AssertionError):
        assert_once(road)


@pytest.mark.sabotage
def test_acked_before_the_commit_what_a_killed_consumer_held_is_lost(road: Road) -> None:
    a_consumer_dies(road, "handler", ROAD_WITHOUT="late_ack")
    assert len(road.seen()) < COUNT
    with pytest.raises(AssertionError):
        assert_once(road)


# --- dispatchers ----------------------------------------------------------------------------------------------------


def a_dispatcher_dies(road: Road, **settings: str) -> dict[str, list[bytes]]:
    """It is killed when the broker has confirmed and the outbox does not know; another goes on.

    Returns the bodies that the broker was given, by message id, as a queue beside the board's has them.
    """
    road.board()
    road.on_channel(
        lambda channel: (channel.queue_declare("tap", durable=True), channel.queue_bind("tap", EXCHANGE, "#"))
    )
    first = road.dispatcher(ROAD_AT="confirmed:1:SIGKILL", **settings)
    road.publish(range(COUNT))
    until(lambda: killed(first))
    assert road.count("postroad.outbox") > 0
    road.dispatcher(**settings)
    road.await_seen(range(COUNT))
    return road.on_channel(lambda channel: drained(channel, "tap"))


def drained(channel: Any, queue: str) -> dict[str, list[bytes]]:
    bodies: dict[str, list[bytes]] = defaultdict(list)
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return bodies
        bodies[properties.message_id].append(body)


def assert_sent_again_as_it_was(road: Road, bodies: dict[str, list[bytes]]) -> None:
    logged = {
        key: bytes.fromhex(text) for key, text in road.rows("SELECT id, encode(envelope, 'hex') FROM postroad.event")
    }
    assert bodies.keys() == logged.keys()
    assert {key: set(copies) for key, copies in bodies.items()} == {key: {body} for key, body in logged.items()}
    assert {json.loads(body)["id"] for body in logged.values()} == logged.keys()
    assert sum(map(len, bodies.values())) > COUNT
    assert road.seen() == ONCE


def test_a_dispatcher_killed_between_confirm_and_delete_sends_the_same_bytes_again_and_they_count_once(
    road: Road,
) -> None:
    assert_sent_again_as_it_was(road, a_dispatcher_dies(road))
    until(lambda: road.on_channel(lambda channel: channel.queue_declare(QUEUE, passive=True)).method.message_count == 0)
    assert road.seen() == ONCE
    road.assert_nothing_charged()


@pytest.mark.sabotage
def test_with_a_new_id_for_every_send_a_dispatchers_death_doubles_effects(road: Road) -> None:
    bodies = a_dispatcher_dies(road, ROAD_WITHOUT="identity")
    until(lambda: max(road.seen().values()) > 1)
    with pytest.raises(AssertionError):
        assert_sent_again_as_it_was(road, bodies)
