"""P13: told to stop under load, processes are gone in time, and nothing is lost, doubled or charged."""

from __future__ import annotations

import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from road.roads import Road, told, until

if TYPE_CHECKING:
    from runtime.processes import Running

pytestmark = pytest.mark.heavy
GRACE, TIMES, LOAD = 3, 3, 150


def end_both(road: Road, board: Running, dispatcher: Running) -> None:
    """SIGTERM to both at once, while both have work in hand."""
    began = time.monotonic()
    for process in (board, dispatcher):
        process.process.send_signal(signal.SIGTERM)
    for process in (board, dispatcher):
        process.process.wait(60)
        assert time.monotonic() - began < GRACE + 1
        assert process.process.returncode == 0
        receipt = process.wait_for("shutdown_receipt")
        assert receipt["abandoned"] == 0
        assert process.plain == []
        assert told(process, "task_failed") == told(process, "service_failed") == []
    assert road.count("postroad.lease", "expires_at > clock_timestamp()") == 0
    road.assert_nothing_charged()


def stop_and_start_under_load(road: Road, **settings: str) -> None:
    given = {"POSTROAD_GRACE_SECONDS": str(GRACE), **settings}
    for time_ in range(TIMES):
        board, dispatcher = road.board(**given), road.dispatcher(**given)
        before = sum(road.seen().values())
        for part in range(5):
            road.publish(range(time_ * LOAD + part * LOAD // 5, time_ * LOAD + (part + 1) * LOAD // 5), act="wait:0.1")
        until(lambda board=board: len(told(board, "deliveries_acked")) >= 2)  # type: ignore[misc]
        end_both(road, board, dispatcher)
        receipt = board.wait_for("shutdown_receipt")
        assert receipt["finished"] > 0
        assert receipt["given_back"] > 0
        assert before < sum(road.seen().values()) < (time_ + 1) * LOAD
    board = road.board()
    dispatcher = road.dispatcher()
    until(lambda: road.count("postroad.outbox") == 0)
    road.publish([LOAD * TIMES])
    road.await_seen([LOAD * TIMES])
    until(
        lambda: (
            sum(line["count"] for line in told(board, "deliveries_received")) == len(told(board, "delivery_settled"))
        )
    )


def test_told_to_stop_under_load_three_times_nothing_is_lost_doubled_or_charged(road: Road) -> None:
    stop_and_start_under_load(road)
    assert road.seen() == Counter(range(LOAD * TIMES + 1))
    road.assert_nothing_charged()


@pytest.mark.sabotage
def test_were_what_is_not_done_acked_instead_of_given_back_it_would_be_lost(road: Road) -> None:
    stop_and_start_under_load(road, ROAD_WITHOUT="return")
    assert len(road.seen()) < LOAD * TIMES
