"""Which gear a consumer runs in."""

from __future__ import annotations

from postroad.consume.gears import ABREAST, MOST, MOST_IN_TURNS, Gears


class Time:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


def gears(*, allowed=True):
    time = Time()
    return Gears(time, allowed=allowed, concurrency=8), time


def took(gear, duration, times):
    for _ in range(times):
        gear.took(duration)


def test_a_consumer_starts_fast_unless_it_opted_out():
    assert gears()[0].fast
    assert not gears(allowed=False)[0].fast


def test_between_five_and_eight_milliseconds_the_gear_stays_what_it_is():
    gear, _ = gears()
    took(gear, 0.007, 200)
    assert gear.fast
    took(gear, 0.009, 100)
    assert not gear.fast
    took(gear, 0.007, 200)
    assert not gear.fast
    took(gear, 0.004, 100)
    assert gear.fast


def test_the_mean_is_of_the_last_hundred():
    gear, _ = gears()
    took(gear, 0.5, 10)
    assert not gear.fast
    took(gear, 0.001, 99)
    assert not gear.fast
    took(gear, 0.001, 1)
    assert gear.fast


def test_a_cold_start_is_no_habit_but_a_slow_handler_is_seen_at_once():
    cold, slow = gears()[0], gears()[0]
    cold.took(0.1)
    assert cold.fast
    slow.took(1.0)
    assert not slow.fast


def test_a_group_is_as_large_as_fits_its_age():
    gear, _ = gears()
    assert gear.size == MOST
    took(gear, 0.001, 100)
    assert gear.size == MOST
    took(gear, 0.005, 100)
    assert gear.size in {9, 10}


def test_groups_in_turns_are_larger_while_nothing_fails():
    gear, time = gears()
    gear.collided()
    took(gear, 0.0002, 100)
    assert gear.size == MOST_IN_TURNS
    took(gear, 0.001, 100)
    assert gear.size in {49, 50}
    took(gear, 0.0002, 100)
    gear.failed()
    assert gear.size == MOST
    time.now += 60
    assert gear.size == MOST


def test_turns_overlap_until_a_commit_took_long_and_again_after_a_minute():
    gear, time = gears()
    assert gear.overlapping
    gear.overtook()
    assert (gear.overlapping, gear.optimistic) == (False, True)
    time.now += 60
    assert gear.overlapping
    gear.failed()
    assert not gear.overlapping


def test_groups_that_keep_ending_early_mean_a_minute_of_the_slow_gear():
    gear, time = gears()
    for early in (True, False, True):
        gear.ended(early=early)
    assert gear.fast
    gear.ended(early=True)
    assert not gear.fast
    time.now += 59
    assert not gear.fast
    time.now += 2
    assert gear.fast


def test_an_early_end_now_and_then_changes_nothing():
    gear, _ = gears()
    for _ in range(10):
        gear.ended(early=True)
        for _ in range(19):
            gear.ended(early=False)
    assert gear.fast


def test_groups_are_trusted_until_something_fails_and_again_after_a_minute():
    gear, time = gears()
    assert (gear.optimistic, gear.abreast) == (True, ABREAST)
    gear.collided()
    assert (gear.optimistic, gear.abreast) == (True, 1)
    time.now += 59
    gear.failed()
    assert (gear.optimistic, gear.abreast) == (False, 1)
    time.now += 59
    assert (gear.optimistic, gear.abreast) == (False, 1)
    time.now += 1
    assert (gear.optimistic, gear.abreast) == (True, ABREAST)


def test_so_many_groups_that_they_do_not_make_each_others_handlers_slow():
    gear, _ = gears()
    took(gear, 0.001, 100)
    assert gear.abreast == ABREAST
    took(gear, 0.0024, 100)
    assert gear.abreast == 2
    took(gear, 0.004, 100)
    assert gear.abreast == 1


def test_no_more_groups_than_handlers_at_once():
    gear = Gears(Time(), allowed=True, concurrency=2)
    assert gear.abreast == 2
