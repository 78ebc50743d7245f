"""P2, P3 and P4 under SIGKILL: consumers and dispatchers die where it hurts, and every event takes effect once."""

from __future__ import annotations

import json
import signal
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from road.roads import EITHER, EXCHANGE, QUEUE, Road, told, until

if TYPE_CHECKING:
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


@EITHER
def test_a_consumer_killed_in_its_handlers_leaves_nothing_half_done_and_nothing_undone(road: Road) -> None:
    second = a_consumer_dies(road, "handler")
    assert_once(road)
    assert sum(line["redelivered"] for line in told(second, "deliveries_received")) >= 1


@EITHER
def test_a_consumer_killed_between_commit_and_ack_has_its_effect_once(road: Road) -> None:
    second = a_consumer_dies(road, "committed")
    assert_once(road)
    until(lambda: bool(told(second, "delivery_settled", result="duplicate")))


@EITHER
@pytest.mark.sabotage
def test_without_the_inbox_a_consumer_killed_between_commit_and_ack_has_its_effect_twice(road: Road) -> None:
    a_consumer_dies(road, "committed", ROAD_WITHOUT="inbox")
    assert max(road.seen().values()) > 1
    with pytest.raises(AssertionError):
        assert_once(road)


@EITHER
@pytest.mark.sabotage
def test_acked_before_the_commit_what_a_killed_consumer_held_is_lost(road: Road) -> None:
    a_consumer_dies(road, "handler", ROAD_WITHOUT="late_ack")
    assert len(road.seen()) < COUNT
    with pytest.raises(AssertionError):
        assert_once(road)


def a_worker_dies(road: Road, **settings: str) -> Running:
    """A board is killed in the second attempt at an event, which it had claimed; another is there. Returns that."""
    first = road.board(ROAD_AT="retry:1:SIGKILL")
    road.dispatcher()
    road.publish([1], act="fail:1")
    until(lambda: killed(first))
    second = road.board(**settings)
    until(lambda: road.count("postroad.lease", "name LIKE 'worker:%' AND expires_at < clock_timestamp()") == 1)
    road.publish([2], act="fail:1")
    road.await_seen([2])
    return second


def test_a_retry_whose_worker_was_killed_is_taken_over_and_takes_effect_once(road: Road) -> None:
    second = a_worker_dies(road)
    road.await_seen([1, 2])
    assert road.seen() == Counter([1, 2])
    assert len(told(second, "work_recovered")) == 1
    until(lambda: road.count("postroad.work") == 0)
    assert road.count("postroad.finished", "outcome = 'handled' AND attempt = 2") == 2
    assert road.count("postroad.quarantine") == 0


@pytest.mark.sabotage
def test_without_recovery_a_killed_workers_retry_is_stuck(road: Road) -> None:
    a_worker_dies(road, ROAD_WITHOUT="recovery")
    assert road.seen() == Counter([2])
    assert road.count("postroad.work", "state = 'running'") == 1


# --- dispatchers ----------------------------------------------------------------------------------------------------


def a_dispatcher_dies(road: Road, **settings: str) -> dict[str, list[bytes]]:
    """It is killed when the broker has confirmed and the outbox does not know; another goes on.

    Returns the bodies that the broker was given, by message id, as a queue beside the board's has them.
    """
    road.board()
    tap(road)
    first = road.dispatcher(ROAD_AT="confirmed:1:SIGKILL", **settings)
    road.publish(range(COUNT))
    until(lambda: killed(first))
    assert road.count("postroad.outbox") > 0
    road.dispatcher(**settings)
    road.await_seen(range(COUNT))
    bodies: dict[str, list[bytes]] = defaultdict(list)
    for key, body in drained(road):
        bodies[key].append(body)
    return bodies


def tap(road: Road) -> None:
    """Let a queue of the test's own have everything too."""

    def bind(channel: Any) -> None:
        channel.queue_declare("tap", durable=True)
        channel.queue_bind("tap", EXCHANGE, "#")

    road.on_channel(bind)


def drained(road: Road) -> list[tuple[str, bytes]]:
    """Message id and body of everything in the tap, in its order."""

    def drain(channel: Any) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        while (got := channel.basic_get("tap", auto_ack=True))[0] is not None:
            found.append((got[1].message_id, got[2]))
        return found

    messages: list[tuple[str, bytes]] = road.on_channel(drain)
    return messages


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


KEYS, EACH = [f"K{number}" for number in range(8)], 4


def dispatchers_die_one_after_the_other(road: Road, **settings: str) -> tuple[int, dict[str, list[int]]]:
    """While an author goes on. How many events of each key it staged, and their order as the broker was given them."""
    fleet = [road.dispatcher(ROAD_AT=f"confirmed:{count}:SIGKILL", **settings) for count in (2, 4)]
    tap(road)
    staged = 0
    while not all(map(killed, fleet)):
        assert staged < 1000
        for key in KEYS:
            road.weigh(key, *range(staged, staged + EACH))
        staged += EACH
    road.dispatcher(**settings)
    until(lambda: road.count("postroad.outbox") == 0)
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    for _, body in drained(road):
        event = json.loads(body)
        found[event["partitionkey"]].append(int(event["sequence"]))
    return staged, found


def assert_in_order(staged: int, found: dict[str, list[int]]) -> None:
    """What is sent again comes again, but nothing comes for the first time before what was staged before it."""
    for sequences in found.values():
        assert list(dict.fromkeys(sequences)) == list(range(staged))


def test_events_of_a_key_keep_their_order_while_dispatchers_are_killed(road: Road) -> None:
    staged, found = dispatchers_die_one_after_the_other(road)
    assert_in_order(staged, found)
    assert sum(map(len, found.values())) > len(KEYS) * staged


@pytest.mark.sabotage
def test_handed_over_in_another_order_events_of_a_key_lose_theirs(road: Road) -> None:
    staged, found = dispatchers_die_one_after_the_other(road, ROAD_WITHOUT="sequence")
    assert all(set(sequences) == set(range(staged)) for sequences in found.values())
    with pytest.raises(AssertionError):
        assert_in_order(staged, found)
