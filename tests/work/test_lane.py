from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime

from postroad.clock import seconds
from postroad.work import ClaimedRow, Wire
from postroad.work.lane import InHand, Lane
from postroad.work.settings import WorkSettings

START = datetime(2026, 1, 1, tzinfo=UTC)


class Four:
    queue = "q"
    slots = 4

    async def run(self, row):
        raise NotImplementedError


def lane():
    return Lane(Four(), WorkSettings())


def row(number, *, priority=0, suspect=0):
    return ClaimedRow(
        id=number, token=number, queue="q", kind="retry", key=None, wire=Wire(body=b"", content_type=""),
        suspect=suspect, created_at=START, run_at=START + seconds(number), priority=priority,
    )  # fmt: skip


def hold(where, *rows):
    for each in rows:
        where.take(InHand(each, "worker:a", asyncio.Future()))


async def test_as_many_are_wanted_as_slots_are_free():
    where = lane()
    assert where.wanted == 4
    hold(where, row(1), row(2))
    assert where.wanted == 2
    hold(where, row(3), row(4))
    assert (where.wanted, where.look_in(0.0)) == (0, math.inf)
    where.settled(2)
    assert (where.wanted, where.due(0.0)) == (1, True)


async def test_a_paused_lane_wants_nothing():
    where = lane()
    where.paused = True
    assert (where.wanted, where.due(1e9)) == (0, False)


async def test_a_suspect_waits_for_the_others_and_keeps_them_away():
    where = lane()
    hold(where, row(1))
    where.suspects = True
    assert where.wanted == 0
    where.settled(1)
    assert where.wanted == 1
    where.claimed_suspect(found=True, ended=1.0)
    hold(where, row(2, suspect=1))
    assert where.wanted == 0
    where.settled(2)
    assert where.wanted == 4


async def test_a_dry_lane_goes_on_with_the_next_suspect_and_a_busy_one_gives_the_others_their_turn():
    where = lane()
    where.claimed_suspect(found=True, ended=1.0)
    where.claimed([row(1)], wanted=4, front=True, began=1.0, ended=1.0)
    assert where.suspects is False
    where.claimed([], wanted=4, front=True, began=1.0, ended=1.0)
    assert where.suspects is True


async def test_a_claim_goes_on_where_the_last_one_got_to():
    where = lane()
    assert where.after(0.0) is None
    where.claimed([row(1), row(2), row(3, priority=5), row(4, priority=5)], wanted=4, front=True, began=0.0, ended=0.01)
    assert where.after(0.5) == {0: (START + seconds(2), 2), 5: (START + seconds(4), 4)}


async def test_a_claim_starts_from_the_front_once_a_second():
    where = lane()
    where.claimed([row(1)] * 4, wanted=4, front=True, began=0.0, ended=0.01)
    assert where.after(1.0) is not None
    assert where.after(1.02) is None


async def test_looking_from_the_front_costs_a_tenth_of_the_time_at_most():
    where = lane()
    where.claimed([row(1)] * 4, wanted=4, front=True, began=0.0, ended=0.5)
    assert where.after(5.4) is not None
    assert where.after(5.6) is None


async def test_a_lane_that_ran_dry_looks_from_the_front_as_soon_as_that_is_cheap():
    where = lane()
    where.claimed([row(1)], wanted=4, front=True, began=0.0, ended=0.002)
    assert where.after(0.01) is not None
    assert where.after(0.03) is None


async def test_a_row_that_appeared_behind_moves_the_position_back_only_if_more_may_be_there():
    full, short = lane(), lane()
    for where, wanted in ((full, 1), (short, 2)):
        where.claimed([row(9)], wanted=1, front=True, began=0.0, ended=0.0)
        where.claimed([row(3)], wanted=wanted, front=True, began=2.0, ended=2.0)
    assert full.after(2.0) == {0: (START + seconds(3), 3)}
    assert short._reached == {0: (START + seconds(9), 9)}


async def test_an_idle_lane_looks_less_and_less_often_and_hurries_when_told():
    where, now, rests = lane(), 0.0, []
    for _ in range(6):
        where.claimed([], wanted=4, front=True, began=now, ended=now)
        rests.append(round(where.look_in(now), 3))
        now = where.look_at
    assert rests == [0.04, 0.08, 0.16, 0.25, 0.25, 0.25]
    where.hurry()
    assert where.due(now)
    where.looks()
    where.claimed([row(1)], wanted=4, front=True, began=now, ended=now)
    assert round(where.look_in(now), 3) == 0.02


async def test_a_row_that_is_told_of_while_a_claim_is_on_its_way_is_looked_for_at_once():
    where = lane()
    where.looks()
    where.hurry()
    where.claimed([], wanted=4, front=True, began=0.0, ended=0.01)
    assert where.due(0.01)
    where.looks()
    where.claimed([], wanted=4, front=True, began=0.01, ended=0.02)
    assert not where.due(0.02)


async def test_a_row_that_appears_behind_while_a_claim_is_on_its_way_is_looked_for_from_the_front():
    where = lane()
    where.claimed([row(n) for n in range(4)], wanted=4, front=True, began=0.0, ended=0.0)
    where.looks()
    where.rewind()
    where.claimed([row(n) for n in range(4, 8)], wanted=4, front=False, began=0.1, ended=0.1)
    assert where.after(0.1) is None
    where.looks()
    where.claimed([row(n) for n in range(4)], wanted=4, front=True, began=0.1, ended=0.1)
    assert where.after(0.1) is not None


async def test_with_more_priorities_than_it_remembers_it_looks_from_the_front_again():
    where = lane()
    for number in range(200):
        where.claimed([row(number, priority=number)] * 4, wanted=4, front=number == 0, began=0.0, ended=0.0)
        assert len(where.after(0.0) or ()) <= 64
    assert where.after(0.0) is None or len(where.after(0.0)) == 200 % 65


async def test_a_claim_that_failed_is_tried_later_and_later_whoever_wakes_the_lane():
    where = lane()
    waits = []
    for _ in range(12):
        where.failed(100.0)
        where.rewind()
        assert not where.due(100.0)
        waits.append(where.look_in(100.0))
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.5, 30.0)
    where.claimed([], wanted=4, front=True, began=140.0, ended=140.0)
    where.failed(140.0)
    assert where.look_in(140.0) == 0.5
