"""The window and who waits in it: bounds, identities, held back keys."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from postroad.outbox.flight import Flight, Route, outgoing, route
from postroad.outbox.waiting import Waiting
from postroad.outbox.window import Window
from postroad.transport.base import Settled, Settlement

DEPARTED = route("flights.flight.departed.v2")
LEASE = SimpleNamespace(name="shard:03", token=1, held=True)


def flight(place: int, *, shard: int = 3, size: int = 10, key: int | None = None, **changes) -> Flight:
    made = Flight(shard, place, place, datetime.now(UTC), 90, DEPARTED, key, None, 0, LEASE)
    for name, value in changes.items():
        setattr(made, name, value)
    body = {"envelope": b"x" * size, "id": f"id-{place}", "correlation": "story"}
    made.outgoing = outgoing(made, body, ticket=place * 10)
    made.size = size
    return made


def confirm(*places: int) -> list[Settled]:
    return [Settled(place * 10, Settlement.CONFIRMED) for place in places]


def test_a_route_says_type_version_and_owner():
    assert Route("flights.flight.departed.v2", "flights.flight.departed", 2, "flights") == DEPARTED
    assert route("odd") == Route("odd", "odd", 0, "odd")


def test_a_publish_carries_the_stored_bytes_and_says_which_attempt_it_is_from_the_second_on():
    first, again = flight(1).outgoing, flight(1, attempts=2).outgoing
    assert (first.exchange, first.routing_key, first.app_id) == (
        "flights.events",
        "flights.flight.departed.v2",
        "flights",
    )
    assert first.headers == {}
    assert again.headers == {"postroad-attempt": 2}


def test_a_row_for_one_consumer_goes_through_the_replay_exchange():
    sent = flight(1, target="board").outgoing
    assert (sent.exchange, sent.routing_key) == ("flights.replay", "board")


def test_rows_go_out_in_order_of_place_within_the_bounds_and_one_always_may():
    window = Window(2, 25, share=1)
    window.admit([flight(9), flight(4), flight(5)])
    assert [message.message_id for message in window.hand_over(0.0)] == ["id-4", "id-5"]
    assert window.room == 0
    confirmed, _ = window.settle(confirm(4), 1.0)
    assert [message.message_id for message in window.hand_over(1.0)] == ["id-9"]
    window.settle(confirm(5, 9), 2.0)
    assert window.room == 1  # Settled, and the outbox does not know it yet.
    window.done(confirmed)
    window.admit([flight(11, size=1000), flight(12)])
    assert [message.message_id for message in window.hand_over(3.0)] == ["id-11"]


def test_late_answers_for_a_shard_that_was_lost_change_nothing():
    window = Window(10, 1000)
    window.admit([flight(1, shard=3), flight(2, shard=4)])
    window.hand_over(0.0)
    assert window.forget(3) == 1
    assert window.settle(confirm(1), 1.0) == ([], [])
    assert not window.busy(3)
    assert window.busy(4)
    assert window.places() == [2]
    again = flight(1, shard=3)
    window.again([again])
    assert window.ready == 0


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), max_size=40), st.integers(1, 8), st.integers(1, 60))
def test_never_more_than_the_bounds_and_never_a_row_twice(rows, limit, limit_bytes):
    window = Window(limit, limit_bytes)
    sent: list[str] = []
    unanswered: list[str] = []
    for place, size in rows:
        window.admit([flight(place, size=size)])
        batch = window.hand_over(0.0)
        unanswered += [message.message_id for message in batch]
        sent += [message.message_id for message in batch]
        assert len(unanswered) == window.unsettled <= limit
        if len(unanswered) > 1:
            assert sum(len(f.outgoing.body) for f in window._sent.values()) <= limit_bytes
        assert len(set(unanswered)) == len(unanswered)
        if len(unanswered) % 3 == 2:
            first = int(unanswered.pop(0)[3:])
            confirmed, _ = window.settle(confirm(first), 1.0)
            window.done(confirmed)


def test_a_refused_row_holds_back_its_key_and_is_itself_tried_again_first():
    waiting = Waiting()
    waiting.load(3, [(5, 77), (8, 77), (6, None)], complete=True)
    assert waiting.any
    assert not waiting.holds_back(3, 5, 77)
    assert waiting.holds_back(3, 8, 77)
    assert waiting.behind() == [8]
    assert not waiting.holds_back(3, 4, 77)  # Came before it.
    assert not waiting.holds_back(3, 9, 78)
    assert not waiting.holds_back(3, 9, None)
    assert waiting.holds_back(3, 12, 77)
    assert waiting.holds_back(3, 11, 77)
    assert waiting.settle(flight(5, key=77)) is None
    assert waiting.settle(flight(8, key=77)) == 11
    assert not waiting.holds_back(3, 11, 77)
    assert waiting.settle(flight(6)) is None
    assert not waiting.any


def test_a_row_that_can_not_be_cured_holds_back_nothing():
    waiting = Waiting()
    waiting.refuse(flight(5, key=77), holds=False)
    assert waiting.any
    assert not waiting.holds_back(3, 9, 77)
    waiting.drop(3)
    assert not waiting.any


def test_too_many_refused_rows_to_know_are_still_looked_for():
    waiting = Waiting()
    waiting.load(3, [], complete=False)
    assert waiting.any
