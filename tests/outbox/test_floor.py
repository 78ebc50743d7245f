"""The floor: no late commit is passed over, whatever the order in which transactions commit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroad.outbox.floor import Floors


def looked(floors: Floors, oldest: int) -> None:
    floors.passed(oldest, dict(floors.floor))


def test_the_floor_stays_until_a_mark_after_the_cursor_is_older_than_everything_that_runs():
    floors = Floors()
    floors.add(3)
    floors.advance(3, 70)
    floors.mark(500, floors.reached())
    floors.advance(3, 90)
    looked(floors, 500)
    assert floors.floor == {3: 0}
    looked(floors, 501)
    assert floors.floor == {3: 70}
    assert floors.lagging
    assert not floors.marked
    floors.mark(510, floors.reached())
    assert floors.marked
    looked(floors, 511)
    assert floors.floor == floors.cursor == {3: 90}
    assert not floors.lagging


def test_a_floor_that_was_rewound_during_a_look_is_not_raised_by_it():
    floors = Floors()
    floors.add(3)
    floors.advance(3, 70)
    floors.mark(500, floors.reached())
    seen = dict(floors.floor)
    floors.passed(501, seen)
    assert floors.floor == {3: 70}
    floors.mark(600, floors.reached())
    seen = dict(floors.floor)
    floors.rewind(3, 20)
    floors.passed(601, seen)
    assert floors.floor == {3: 19}
    assert floors.ranges([3, 4]) == ([3], [19], [70])


def test_a_shard_that_was_dropped_keeps_nothing():
    floors = Floors()
    floors.add(3)
    floors.advance(3, 70)
    floors.mark(500, floors.reached())
    floors.drop(3)
    floors.advance(3, 80)
    floors.add(3)
    looked(floors, 501)
    assert floors.floor == floors.cursor == {3: 0}


def test_under_a_transaction_that_stays_open_the_number_of_marks_is_bounded_and_the_newest_is_kept():
    floors = Floors()
    floors.add(0)
    for number in range(1, 100):
        floors.advance(0, number)
        floors.mark(number, floors.reached())
    looked(floors, 8)
    assert floors.floor == {0: 7}
    looked(floors, 100)
    assert floors.floor == {0: 99}


@given(st.lists(st.sampled_from(["begin", "commit", "read", "mark"]), max_size=60), st.randoms(use_true_random=False))
def test_whoever_commits_late_is_still_above_the_floor(acts, chance):
    """A model of the database: places and transaction numbers are given out in order, commits come in any."""
    floors = Floors()
    floors.add(0)
    place = xid = 0
    running: dict[int, int] = {}
    unread: set[int] = set()
    for act in acts:
        if act == "begin":
            place, xid = place + 1, xid + 1
            running[xid] = place
        elif act == "commit" and running:
            done = chance.choice(sorted(running))
            unread.add(running.pop(done))
        elif act == "read":
            oldest = min(running, default=xid + 1)
            floor, cursor = floors.floor[0], floors.cursor[0]
            assert all(late > floor for late in unread)
            floors.passed(oldest, dict(floors.floor))
            floors.advance(0, max(unread, default=cursor))
            unread.clear()
        elif act == "mark":
            reached = floors.reached()
            xid += 1
            floors.mark(xid, reached)
    assert all(late > floors.floor[0] for late in [*unread, *running.values()])
