"""A message that kills the process whenever it runs: it ends in quarantine, and nobody else is charged with it."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from road.apps.parcels import ParcelMoved
from road.roads import QUEUE, Road, told, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.processes import Running

pytestmark = pytest.mark.heavy
POISON, BESIDE, BEHIND = 99, range(6), range(6, 20)
NEIGHBOURS = {*BESIDE, *BEHIND}
STARTED = 1 + 4
"""Its first delivery, of which nothing is noted, and four starts."""


def killed(running: Running) -> bool:
    return running.process.poll() == -signal.SIGKILL


def boards_until(road: Road, done: Callable[[], bool], *, most: int, **settings: str) -> list[Running]:
    """Start a board again whenever it was killed, until `done` or so many were; returns them all."""
    boards: list[Running] = []
    while len(boards) < most and not done():
        boards.append(road.starting_board(**settings))
        until(lambda: killed(boards[-1]) or done())
    return boards


def a_poison_among_neighbours(road: Road, *, most: int = STARTED + 3, **settings: str) -> list[Running]:
    """All are prefetched together; some run beside the poison."""
    road.board().stop()  # It made the queue.
    dispatcher = road.dispatcher()
    road.stage(
        [
            *(ParcelMoved(number=number, act="wait:0.6") for number in BESIDE),
            ParcelMoved(number=POISON, act="die:0"),
            *(ParcelMoved(number=number) for number in BEHIND),
        ]
    )
    until(lambda: road.count("postroad.outbox") == 0)
    dispatcher.stop()
    return boards_until(road, lambda: ended(road), most=most, **settings)


def ended(road: Road) -> bool:
    """Nothing is in the queue or in hand: every message has an outcome."""
    return road.count("postroad.inbox") == len(NEIGHBOURS) + 1


def assert_the_poison_alone_is_kept(road: Road, boards: list[Running]) -> None:
    assert [(row["code"], row["failure"], row["attempt"]) for row in road.quarantined()] == [("PR511", "quarantine", 1)]
    assert sum(map(killed, boards)) == STARTED
    assert road.seen() == Counter(NEIGHBOURS)
    assert all(line["attempt"] == 1 for board in boards for line in told(board, "handler_started"))
    for table in ("work", "finished", "starts"):
        assert road.count(f"postroad.{table}") == 0, table


def test_a_poison_message_ends_in_quarantine_and_its_neighbours_take_effect_once_uncharged(road: Road) -> None:
    boards = a_poison_among_neighbours(road)
    assert_the_poison_alone_is_kept(road, boards)
    suspects = [line for board in boards for line in told(board, "suspect_started")]
    assert {line["alone"] for line in suspects if line["unanswered"] >= 2} == {True}
    assert {line["alone"] for line in suspects if line["unanswered"] < 2} == {False}


@pytest.mark.sabotage
def test_without_starts_a_poison_message_kills_for_ever(road: Road) -> None:
    boards = a_poison_among_neighbours(road, ROAD_WITHOUT="starts")
    assert sum(map(killed, boards)) > STARTED
    with pytest.raises(AssertionError):
        assert_the_poison_alone_is_kept(road, boards)


@pytest.mark.sabotage
def test_without_solitude_a_poison_message_takes_its_neighbours_with_it(road: Road) -> None:
    boards = a_poison_among_neighbours(road, ROAD_WITHOUT="solitude")
    assert len(road.quarantined()) > 1
    with pytest.raises(AssertionError):
        assert_the_poison_alone_is_kept(road, boards)


def test_a_process_that_is_told_to_stop_leaves_no_start(road: Road) -> None:
    """It is stopped in a redelivered message that takes longer than its grace period."""
    first = road.board(ROAD_AT="handler:1:SIGKILL")
    road.dispatcher()
    road.publish([1], act="wait:60")
    until(lambda: killed(first))
    second = road.board(POSTROAD_GRACE_SECONDS="3")
    until(lambda: road.count("postroad.starts") == 1)
    second.wait_for("handler_started")
    second.stop()
    assert road.count("postroad.starts") == 0
    assert road.on_channel(lambda channel: channel.queue_declare(QUEUE, passive=True)).method.message_count == 1
    road.assert_nothing_charged()


def test_a_retry_that_kills_its_worker_for_ever_ends_in_quarantine(road: Road) -> None:
    road.board().stop()
    road.dispatcher()
    road.publish([1], act="die:1")
    boards = boards_until(road, lambda: road.count("postroad.quarantine") == 1, most=6)
    ((row),) = road.quarantined()
    assert (row["code"], row["attempt"]) == ("PR507", 4)
    assert sum(map(killed, boards)) == 3  # Once uncharged; the attempts are three, one of which it answered.
    assert road.seen() == Counter()
