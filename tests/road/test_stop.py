"""P13: told to stop under load, processes are gone in time, and nothing is lost, doubled or charged."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from road.roads import EITHER, Road, told, until

if TYPE_CHECKING:
    from runtime.processes import Running

pytestmark = pytest.mark.heavy
GRACE = 3
# A release may take a sixth of the lease, and longer than that on a busy machine with the short ones of other tests.
LEASES = {"POSTROAD_SHARD_LEASE_SECONDS": "6", "POSTROAD_WORKER_LEASE_SECONDS": "6"}


@dataclass(frozen=True)
class Load:
    """How often it is stopped, how many events wait each time, and what each handler does."""

    times: int
    events: int
    act: str
    together: int
    """How many deliveries shall have been committed together before it is stopped."""

    @property
    def total(self) -> int:
        return self.times * self.events

    def is_under_way(self, board: Running) -> bool:
        """Whether the process has done some of it."""
        commits = [line["count"] for line in told(board, "deliveries_committed")]
        return len(commits) >= 2 and max(commits) >= self.together


SLOW = Load(times=3, events=150, act="wait:0.1", together=1)
GROUPS = Load(times=20, events=1500, act="", together=2)


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


def stop_and_start_under_load(road: Road, load: Load, **settings: str) -> None:
    given = {"POSTROAD_GRACE_SECONDS": str(GRACE), **LEASES, **settings}
    receipts, met = [], 0
    for time_ in range(load.times):
        before, first = sum(road.seen().values()), time_ * load.events
        board, dispatcher = road.board(**given), road.dispatcher(**given)
        for part in range(5):
            numbers = range(first + part * load.events // 5, first + (part + 1) * load.events // 5)
            road.publish(numbers, act=load.act)
        until(lambda board=board: load.is_under_way(board))  # type: ignore[misc]
        end_both(road, board, dispatcher)
        receipts.append(board.wait_for("shutdown_receipt"))
        seen = sum(road.seen().values())
        assert before < seen
        met += seen < first + load.events
    assert met > 0  # Most stops come in the midst of the load; a quick machine may be done with it now and then.
    # Where deliveries are claimed a consumer may be caught between two claims, but not every time.
    assert sum(receipt["finished"] for receipt in receipts) > 0
    assert sum(receipt["given_back"] for receipt in receipts) > 0
    board = road.board()
    dispatcher = road.dispatcher()
    until(lambda: road.count("postroad.outbox") == 0)
    road.publish([load.total])
    road.await_seen([load.total])
    until(
        lambda: (
            sum(line["count"] for line in told(board, "deliveries_received")) == len(told(board, "delivery_settled"))
        )
    )


@EITHER
@pytest.mark.parametrize("load", [SLOW, GROUPS], ids=["slow gear", "groups"])
@pytest.mark.timeout(300)
def test_told_to_stop_under_load_again_and_again_nothing_is_lost_doubled_or_charged(road: Road, load: Load) -> None:
    stop_and_start_under_load(road, load)
    assert road.seen() == Counter(range(load.total + 1))
    road.assert_nothing_charged()


@EITHER
@pytest.mark.sabotage
def test_were_what_is_not_done_acked_instead_of_given_back_it_would_be_lost(road: Road) -> None:
    stop_and_start_under_load(road, SLOW, ROAD_WITHOUT="return")
    assert len(road.seen()) < SLOW.total
