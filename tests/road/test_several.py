"""P3 with several consumer processes: copies that arrive at once, and events that arrive out of order."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pika
import pytest

from road.roads import EXCHANGE, QUEUE, Road, told, until

if TYPE_CHECKING:
    from runtime.processes import Running

pytestmark = pytest.mark.heavy
COUNT, COPIES = 20, 3  # The broker deals in turn: the first copy goes now to the one, now to the other.


def envelope(number: int, **changed: Any) -> bytes:
    """An event as the parcels service sends it."""
    time = "2026-01-01T00:00:00.000000Z"
    fields = {
        "specversion": "1.0", "id": str(uuid4()), "source": "urn:postroad:parcels", "type": "parcels.parcel.moved",
        "schemaversion": 1, "time": time, "recordedtime": time, "correlationid": "story",
        "data": {"number": number, "act": "wait:0.05"},
    }  # fmt: skip
    return json.dumps({**fields, **changed}).encode()


def send(channel: Any, body: bytes, **properties: Any) -> None:
    given = {"content_type": "application/cloudevents+json", "delivery_mode": 2, **properties}
    channel.basic_publish(EXCHANGE, "parcels.parcel.moved.v1", body, pika.BasicProperties(**given))


def copies_arrive_at_two_processes(road: Road, **settings: str) -> list[Running]:
    boards = [road.board(**settings), road.board(**settings)]

    def flood(channel: Any) -> None:
        for number in range(COUNT):
            body = envelope(number)
            for _ in range(COPIES):
                send(channel, body)

    road.on_channel(flood)
    until(lambda: sum(len(told(board, "delivery_settled")) for board in boards) == COUNT * COPIES)
    return boards


def test_copies_that_arrive_at_two_processes_at_once_take_effect_once(road: Road) -> None:
    boards = copies_arrive_at_two_processes(road)
    assert road.seen() == Counter(range(COUNT))
    results = Counter(line["result"] for board in boards for line in told(board, "delivery_settled"))
    assert results == {"ok": COUNT, "duplicate": COUNT * (COPIES - 1)}
    assert all(told(board, "delivery_settled") for board in boards)
    road.assert_nothing_charged()
    empty = road.on_channel(lambda channel: channel.queue_declare(QUEUE, passive=True))
    assert empty.method.message_count == 0


@pytest.mark.sabotage
def test_without_the_inbox_copies_at_two_processes_take_effect_twice(road: Road) -> None:
    copies_arrive_at_two_processes(road, ROAD_WITHOUT="inbox")
    assert road.seen() != Counter(range(COUNT))
    assert max(road.seen().values()) > 1


# --- order ----------------------------------------------------------------------------------------------------------

KEYS = [f"K{number}" for number in range(6)]
OUT_OF_ORDER = (2, 5, 1, 4, 3, 6)


def applied(road: Road) -> dict[str, list[int]]:
    """The sequences that counted, per key, in the order in which they did."""
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    for key, sequence in road.rows("SELECT key, sequence FROM weight ORDER BY id"):
        found[key].append(int(sequence))
    return found


def weights_arrive_out_of_order(road: Road, **settings: str) -> list[Running]:
    boards = [road.board(**settings), road.board(**settings)]
    road.dispatcher()
    for key in KEYS:
        road.weigh(key, *OUT_OF_ORDER)
    until(lambda: sum(len(told(board, "delivery_settled")) for board in boards) >= len(KEYS) * len(OUT_OF_ORDER))
    return boards


def assert_only_forward(road: Road) -> None:
    for sequences in applied(road).values():
        assert sequences == sorted(set(sequences))
        assert sequences[-1] == max(OUT_OF_ORDER)


def test_of_events_out_of_order_in_two_processes_only_newer_ones_count(road: Road) -> None:
    weights_arrive_out_of_order(road)
    assert_only_forward(road)
    stale = road.count("postroad.inbox", "outcome = 'dropped' AND reason = 'stale sequence'")
    assert stale == len(KEYS) * len(OUT_OF_ORDER) - road.count("weight") > 0
    road.assert_nothing_charged()


@pytest.mark.sabotage
def test_without_the_guard_older_events_come_last(road: Road) -> None:
    weights_arrive_out_of_order(road, ROAD_WITHOUT="order_guard")
    with pytest.raises(AssertionError):
        assert_only_forward(road)
