"""P8: a dispatcher that was stopped past its lease wakes up, and whatever it writes then changes nothing."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from road.roads import EXCHANGE, QUEUE, Road, told, until

if TYPE_CHECKING:
    from runtime.processes import Running

pytestmark = pytest.mark.heavy
BINDING = "parcels.parcel.moved.*"


def stopped(running: Running) -> bool:
    stat = Path(f"/proc/{running.process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def a_dispatcher_wakes_too_late(road: Road, without: str) -> tuple[Running, Running, int]:
    """Stopped between confirm and delete, overtaken, continued: the two dispatchers, and the rows that are left then.

    Meanwhile no queue wants the event any more: the successor's own send is returned, and it keeps the row. That row
    is what the late delete would take away.
    """
    board = road.board()
    paused = road.dispatcher(ROAD_AT="confirmed:1:SIGSTOP", ROAD_WITHOUT=without)
    road.publish([1])
    until(lambda: stopped(paused))
    board.wait_for("delivery_settled", result="ok")
    road.on_channel(lambda channel: channel.queue_unbind(QUEUE, EXCHANGE, BINDING))
    successor = road.dispatcher()
    successor.wait_for("publish_refused", result="returned")
    until(lambda: road.count("postroad.outbox", "attempts > 0 AND reason LIKE 'returned:%'") == 1)
    os.kill(paused.process.pid, signal.SIGCONT)
    match without:
        case "":
            paused.wait_for("lease_gone", kind="shard")
        case "distrust":
            paused.wait_for("late_write_refused", room="outbox", count=1)
        case _:
            paused.wait_for("outbox_cleared", deleted=1)
    assert paused.stop() < 10  # It tells the outbox all that it thinks it owes before it ends.
    return paused, successor, road.count("postroad.outbox", "attempts > 0")


@pytest.mark.parametrize("without", ["", "distrust"], ids=["both walls", "the database's alone"])
def test_a_paused_dispatchers_late_delete_changes_nothing_and_the_successor_finishes(road: Road, without: str) -> None:
    paused, successor, rows = a_dispatcher_wakes_too_late(road, without)
    assert rows == 1
    assert sum(line["deleted"] for line in told(paused, "outbox_cleared")) == 0
    road.on_channel(lambda channel: channel.queue_bind(QUEUE, EXCHANGE, BINDING))
    until(lambda: road.count("postroad.outbox") == 0)
    successor.wait_for("outbox_cleared", deleted=1)
    assert road.seen() == Counter([1])


@pytest.mark.sabotage
def test_without_both_walls_a_late_delete_takes_a_row_that_its_successor_keeps(road: Road) -> None:
    _, _, rows = a_dispatcher_wakes_too_late(road, "distrust,fence")
    assert rows == 0
