"""What becomes of occurrences: late ones, overlapping ones, paused ones, and those of a clock that steps."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.clock import hours, minutes, seconds
from postroad.errors import UsageError
from postroad.schedules import decide
from postroad.schedules.cron import Cron
from postroad.schedules.policy import Act, Decision, Kind, Missed, Outcome, Overlap, Plan, Policy, Reason, State, Step
from postroad.schedules.timing import Every

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ZONE = ZoneInfo("UTC")


def plan(every: timedelta = hours(1), **policy: Any) -> Plan:
    return Plan(identity="s1", timing=Every(every), zone=ZONE, policy=Policy(**policy))


def told(step: Step) -> list[tuple[str, str, str | None]]:
    """Act, time of the day and reason of each decision about one occurrence."""
    return [
        (one.act.value, f"{one.occurrence.due:%H:%M}", one.reason and one.reason.value)
        for one in step.decisions
        if one.occurrence is not None
    ]


def after_run(of: Plan, state: State, now: datetime, outcome: Outcome = Outcome.SUCCEEDED) -> Step:
    return decide.ended(of, state, now, identity=state.running[0].identity, outcome=outcome)


# --- late ones --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "wanted"),
    [
        (Missed.LATEST, [("miss", "13:00", "superseded"), ("miss", "14:00", "superseded"), ("start", "15:00", None)]),
        (Missed.SKIP, [("miss", "13:00", "missed"), ("miss", "14:00", "missed"), ("miss", "15:00", "missed")]),
        (Missed.ALL, [("start", "13:00", None), ("queue", "14:00", None), ("queue", "15:00", None)]),
    ],
)
def test_after_an_outage_the_missed_run_policy_decides_and_each_is_recorded(missed, wanted) -> None:
    step = decide.tick(plan(missed=missed), State(cursor=NOON), NOON + minutes(210))
    assert sorted(told(step), key=lambda one: one[1]) == wanted
    assert step.state.cursor == NOON + hours(3)


def test_one_that_is_less_than_a_minute_late_has_not_been_missed() -> None:
    of = plan(missed=Missed.SKIP)
    assert told(decide.tick(of, State(cursor=NOON), NOON + hours(1) + decide.LATE)) == [("start", "13:00", None)]
    step = decide.tick(of, State(cursor=NOON), NOON + hours(1) + decide.LATE + seconds(1))
    assert told(step) == [("miss", "13:00", "missed")]


def test_the_latest_makes_way_for_one_that_is_on_time() -> None:
    step = decide.tick(plan(), State(cursor=NOON), NOON + hours(2) + seconds(5))
    assert told(step) == [("miss", "13:00", "superseded"), ("start", "14:00", None)]


def test_beyond_the_catch_up_window_nothing_runs() -> None:
    step = decide.tick(plan(catch_up=hours(2)), State(cursor=NOON), NOON + minutes(200) + hours(2))
    assert [one for one in told(step) if one[2] == "too_old"] == [
        ("miss", "13:00", "too_old"), ("miss", "14:00", "too_old"), ("miss", "15:00", "too_old"),
    ]  # fmt: skip
    assert told(step)[-1] == ("start", "17:00", None)


@pytest.mark.parametrize("missed", list(Missed))
@pytest.mark.parametrize("outage", [minutes(30), timedelta(days=2), timedelta(days=400)])
def test_every_due_time_of_an_outage_is_accounted_for_within_the_bound(missed, outage) -> None:
    of = plan(minutes(1), missed=missed, catch_up=timedelta(days=1000), limit=1000)
    now = NOON + outage + seconds(30)
    step = decide.tick(of, State(cursor=NOON), now)
    count = outage // minutes(1)
    assert sum(one.count for one in step.decisions) == count
    assert len(step.decisions) == min(count, of.policy.max_catch_up + 1)
    if count > of.policy.max_catch_up:
        summary = step.decisions[0]
        assert (summary.act, summary.reason, summary.first) == (Act.MISS, Reason.MAX_CATCH_UP, NOON + minutes(1))
        assert summary.last == NOON + minutes(1) * summary.count
    assert decide.tick(of, step.state, now).decisions == ()


def test_missed_ones_that_all_run_do_so_one_after_the_other_and_none_is_lost_to_the_overlap_policy() -> None:
    of = plan(missed=Missed.ALL, overlap=Overlap.SKIP)
    step, ran = decide.tick(of, State(cursor=NOON), NOON + minutes(210)), []
    while step.state.running:
        ran.append(f"{step.state.running[0].due:%H:%M}")
        now = NOON + minutes(211 + len(ran))
        step = decide.tick(of, after_run(of, step.state, now).state, now)
    assert ran == ["13:00", "14:00", "15:00"]


def test_one_that_cannot_start_within_its_deadline_does_not_start() -> None:
    of = plan(start_within=minutes(10))
    assert told(decide.tick(of, State(cursor=NOON), NOON + minutes(70))) == [("start", "13:00", None)]
    late = decide.tick(of, State(cursor=NOON), NOON + minutes(70) + seconds(1))
    assert told(late) == [("miss", "13:00", "start_within")]


def test_the_deadline_of_one_that_queues_is_looked_at_when_it_comes() -> None:
    of = plan(minutes(10), overlap=Overlap.QUEUE_ONE, start_within=minutes(4))
    state = decide.tick(of, State(cursor=NOON), NOON + minutes(10)).state
    state = decide.tick(of, state, NOON + minutes(20)).state
    at = decide.wakes_at(of, state)
    assert at == NOON + minutes(24) + timedelta(microseconds=1)
    assert told(decide.tick(of, state, at)) == [("miss", "12:20", "start_within")]


# --- overlapping ones -------------------------------------------------------------------------------------------------


def second_while_the_first_runs(overlap: Overlap, **policy: Any) -> Step:
    of = plan(overlap=overlap, **policy)
    first = decide.tick(of, State(cursor=NOON), NOON + hours(1))
    return decide.tick(of, first.state, NOON + hours(2))


@pytest.mark.parametrize(
    ("overlap", "wanted"),
    [
        (Overlap.SKIP, [("skip", "14:00", "overlap")]),
        (Overlap.QUEUE_ONE, [("queue", "14:00", None)]),
        (Overlap.QUEUE_ALL, [("queue", "14:00", None)]),
        (Overlap.ALLOW, [("start", "14:00", None)]),
        (Overlap.CANCEL_RUNNING, [("cancel", "13:00", "overlap"), ("queue", "14:00", None)]),
    ],
)
def test_a_second_one_meets_the_overlap_policy(overlap, wanted) -> None:
    assert told(second_while_the_first_runs(overlap)) == wanted


def test_of_one_place_in_the_queue_the_first_comer_has_it_and_of_a_cancelling_one_the_last() -> None:
    one = plan(overlap=Overlap.QUEUE_ONE)
    assert told(decide.tick(one, second_while_the_first_runs(Overlap.QUEUE_ONE).state, NOON + hours(3))) == [
        ("skip", "15:00", "overlap")
    ]
    cancel = plan(overlap=Overlap.CANCEL_RUNNING)
    third = decide.tick(cancel, second_while_the_first_runs(Overlap.CANCEL_RUNNING).state, NOON + hours(3))
    assert told(third) == [("skip", "14:00", "superseded"), ("queue", "15:00", None)]


def test_what_would_be_cancelled_at_once_is_not_started_whoever_asked_for_it() -> None:
    of = plan(overlap=Overlap.CANCEL_RUNNING)
    state = decide.trigger(State(cursor=NOON), NOON + minutes(59), overlap=Overlap.ALLOW).state
    state = decide.backfill(state, [NOON - hours(1)], NOON + minutes(59)).state
    assert told(decide.tick(of, state, NOON + hours(1))) == [
        ("queue", "11:00", None), ("skip", "12:59", "superseded"), ("start", "13:00", None),
    ]  # fmt: skip


def test_queues_and_runs_side_by_side_are_bounded_and_the_drop_is_recorded() -> None:
    queue = second_while_the_first_runs(Overlap.QUEUE_ALL, limit=1, max_catch_up=1)
    of = plan(overlap=Overlap.QUEUE_ALL, limit=1, max_catch_up=1)
    assert told(decide.tick(of, queue.state, NOON + hours(3))) == [("skip", "15:00", "queue_full")]
    assert told(second_while_the_first_runs(Overlap.ALLOW, limit=1)) == [("skip", "14:00", "limit")]


def test_what_queues_behind_nothing_is_looked_at_at_once() -> None:
    of, queued = plan(overlap=Overlap.QUEUE_ONE), second_while_the_first_runs(Overlap.QUEUE_ONE).state
    assert decide.wakes_at(of, queued) == NOON + hours(3)
    assert decide.wakes_at(of, replace(queued, running=())) == NOON + hours(2)


def test_a_changed_policy_holds_for_what_queues_already() -> None:
    queued = second_while_the_first_runs(Overlap.QUEUE_ONE).state
    assert told(decide.tick(plan(overlap=Overlap.ALLOW), queued, NOON + minutes(121))) == [("start", "14:00", None)]
    assert told(decide.tick(plan(overlap=Overlap.SKIP), queued, NOON + minutes(121))) == [("skip", "14:00", "overlap")]


def test_a_run_that_has_not_finished_in_its_time_is_cancelled_once() -> None:
    of = plan(finish_within=minutes(10))
    state = decide.tick(of, State(cursor=NOON), NOON + hours(1)).state
    assert decide.wakes_at(of, state) == NOON + minutes(70)
    step = decide.tick(of, state, NOON + minutes(70))
    assert told(step) == [("cancel", "13:00", "finish_within")]
    assert decide.tick(of, step.state, NOON + minutes(71)).decisions == ()


# --- pausing, triggering, backfilling ---------------------------------------------------------------------------------


def test_time_spent_paused_makes_neither_runs_nor_misses() -> None:
    of = plan(missed=Missed.ALL)
    paused = decide.pause(of, State(cursor=NOON), NOON + minutes(30)).state
    assert decide.wakes_at(of, paused) is None
    assert decide.tick(of, paused, NOON + hours(5)).decisions == ()
    resumed = decide.resume(paused, NOON + minutes(330)).state
    assert decide.tick(of, resumed, NOON + minutes(330)).decisions == ()
    assert decide.wakes_at(of, resumed) == NOON + hours(6)


def test_a_pause_between_due_time_and_jittered_start_loses_nothing() -> None:
    of = replace(plan(jitter=hours(1)), offsets={NOON + hours(1): minutes(20), NOON + hours(2): minutes(20)})
    waiting = decide.tick(of, State(cursor=NOON), NOON + hours(1))
    assert told(waiting) == [("wait", "13:00", None)]
    paused = decide.pause(of, waiting.state, NOON + minutes(70)).state
    assert decide.tick(of, paused, NOON + minutes(85)).decisions == ()
    before = decide.resume(paused, NOON + minutes(75)).state
    assert decide.wakes_at(of, before) == NOON + minutes(80)
    for missed in Missed:  # It was not late when the pause began, so it is not late when it ends.
        resumed = decide.resume(paused, NOON + minutes(300)).state
        one = replace(of, policy=replace(of.policy, missed=missed, start_within=minutes(1)))
        assert told(decide.tick(one, resumed, NOON + minutes(300))) == [("start", "13:00", None)]


def test_a_pause_keeps_what_was_due_before_it_and_how_late_that_was() -> None:
    of = plan(missed=Missed.SKIP)
    on_time = decide.pause(of, State(cursor=NOON), NOON + hours(1) + seconds(1))
    assert told(on_time) == [("wait", "13:00", None)]
    resumed = decide.resume(on_time.state, NOON + minutes(90)).state
    assert told(decide.tick(of, resumed, NOON + minutes(90))) == [("start", "13:00", None)]
    late = decide.pause(of, State(cursor=NOON), NOON + minutes(70))
    resumed = decide.resume(late.state, NOON + minutes(90)).state
    assert told(decide.tick(of, resumed, NOON + minutes(90))) == [("miss", "13:00", "missed")]


def test_pausing_and_resuming_twice_change_nothing() -> None:
    paused = decide.pause(plan(), State(cursor=NOON), NOON + minutes(1))
    assert decide.pause(plan(), paused.state, NOON + minutes(2)) == Step(paused.state)
    resumed = decide.resume(paused.state, NOON + minutes(3))
    assert decide.resume(resumed.state, NOON + minutes(4)) == Step(resumed.state)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_failures_and_time_outs_pause_a_schedule_that_asks_for_it_and_nothing_else_does(outcome) -> None:
    of = plan(pause_on_failure=True)
    state = decide.tick(of, State(cursor=NOON), NOON + hours(1)).state
    step = after_run(of, state, NOON + minutes(61), outcome)
    failed = outcome in {Outcome.FAILED, Outcome.TIMED_OUT}
    assert step.decisions == ((Decision(act=Act.PAUSE, reason=Reason.FAILED),) if failed else ())
    assert step.state.paused is failed
    assert not after_run(plan(), state, NOON + minutes(61), outcome).state.paused


def test_a_trigger_runs_while_paused_obeys_overlap_and_is_one_when_repeated() -> None:
    of = plan()
    paused = decide.pause(of, State(cursor=NOON), NOON + minutes(1)).state
    asked = decide.trigger(paused, NOON + minutes(5), request="r1").state
    assert decide.trigger(asked, NOON + minutes(6), request="r1").state == asked
    step = decide.tick(of, asked, NOON + minutes(5))
    assert told(step) == [("start", "12:05", None)]
    assert step.state.running[0].kind is Kind.MANUAL
    again = decide.trigger(step.state, NOON + minutes(7), request="r2").state
    assert told(decide.tick(of, again, NOON + minutes(7))) == [("skip", "12:07", "overlap")]
    own = decide.trigger(step.state, NOON + minutes(7), request="r2", overlap=Overlap.ALLOW).state
    assert told(decide.tick(of, own, NOON + minutes(7))) == [("start", "12:07", None)]


def test_a_backfill_takes_both_ends_keeps_due_times_and_has_no_deadline() -> None:
    of = plan(start_within=minutes(1), catch_up=hours(1), limit=1)
    found = decide.backfill_dues(of, NOON - hours(50), NOON - hours(47), most=10)
    assert found == [NOON - hours(50), NOON - hours(49), NOON - hours(48), NOON - hours(47)]
    asked = decide.backfill(State(cursor=NOON), found, NOON + minutes(1)).state
    assert decide.backfill(asked, found, NOON + minutes(2)).state == asked
    acts = [one.act for one in decide.tick(of, asked, NOON + minutes(1)).decisions]
    assert acts == [Act.START, Act.QUEUE, Act.QUEUE, Act.QUEUE]


def test_a_backfill_of_a_reversed_or_endless_range_is_refused() -> None:
    with pytest.raises(UsageError, match="before --from"):
        decide.backfill_dues(plan(), NOON, NOON - seconds(1), most=10)
    with pytest.raises(UsageError, match="more than 10"):
        decide.backfill_dues(plan(minutes(1)), NOON - hours(1), NOON, most=10)


# --- clocks and jitter ------------------------------------------------------------------------------------------------


def ticks_across_a_clock_set_back(of: Plan) -> Counter[datetime]:
    state, started = State(cursor=NOON), Counter[datetime]()
    for minute in (60, 61, 120, 50, 55, 60, 61, 119, 120, 121, 180):
        step = decide.tick(of, state, NOON + minutes(minute))
        started.update(one.due for one in step.state.running)
        state = replace(step.state, running=())
    return started


def test_a_clock_that_is_set_back_creates_nothing_twice() -> None:
    assert ticks_across_a_clock_set_back(plan()) == {NOON + hours(n): 1 for n in (1, 2, 3)}


@pytest.mark.sabotage
def test_sabotage_a_cursor_that_follows_the_clock_back_doubles_runs(monkeypatch) -> None:
    real = decide.tick

    def follows(of: Plan, state: State, now: datetime) -> Step:
        return real(of, replace(state, cursor=min(state.cursor, now - minutes(1))), now)

    monkeypatch.setattr(decide, "tick", follows)
    assert ticks_across_a_clock_set_back(plan()) != {NOON + hours(n): 1 for n in (1, 2, 3)}


def test_a_clock_that_jumps_ahead_goes_through_the_missed_run_policy_and_is_told() -> None:
    assert decide.jumped(NOON, NOON + hours(5), steady=hours(1)) == hours(4)
    assert decide.jumped(NOON, NOON + hours(5), steady=hours(2)) is None
    assert decide.jumped(NOON, NOON - hours(5), steady=hours(1)) is None
    step = decide.tick(plan(), State(cursor=NOON), NOON + minutes(330))
    assert [one[0] for one in told(step)] == ["miss"] * 4 + ["start"]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=8), st.integers(0, 10**6), st.integers(1, 10**6), st.one_of(st.none(), st.integers(1, 10**6)))
def test_jitter_is_below_its_bound_and_the_gap_to_the_next_one(identity, due, most, gap) -> None:
    at = NOON + minutes(due)
    space = None if gap is None else seconds(gap)
    drawn = decide.jitter(identity, at, most=seconds(most), gap=space)
    assert timedelta(0) <= drawn < min(seconds(most), space or seconds(most))
    assert drawn == decide.jitter(identity, at.astimezone(ZoneInfo("Asia/Tokyo")), most=seconds(most), gap=space)


def test_jitter_spreads_schedules_over_the_whole_of_it() -> None:
    drawn = [decide.jitter(f"s{n}", NOON, most=hours(1), gap=None) for n in range(400)]
    assert {one // minutes(6) for one in drawn} == set(range(10))


# --- all of it, at random ---------------------------------------------------------------------------------------------

POLICIES = st.builds(
    Policy,
    missed=st.sampled_from(Missed),
    overlap=st.sampled_from(Overlap),
    catch_up=st.sampled_from([minutes(0), minutes(30), hours(24)]),
    max_catch_up=st.integers(1, 5),
    limit=st.integers(1, 3),
    jitter=st.sampled_from([minutes(0), minutes(3), minutes(30)]),
    start_within=st.sampled_from([None, minutes(1), minutes(12)]),
    pause_on_failure=st.booleans(),
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(-400, 4000)),
        st.tuples(st.just("wake"), st.just(0)),
        st.tuples(st.just("end"), st.sampled_from([0, 1])),
        st.tuples(st.sampled_from(["pause", "resume"]), st.just(0)),
        st.tuples(st.sampled_from(["trigger", "backfill"]), st.integers(0, 5)),
    ),
    max_size=40,
)


class World:
    """A schedule to which anything happens, and what has become of its occurrences."""

    def __init__(self, policy: Policy) -> None:
        self.plan = Plan(identity="s1", timing=Every(minutes(5)), zone=ZONE, policy=policy)
        self.state, self.now = State(cursor=NOON), NOON
        self.ends: Counter[tuple[datetime, Kind]] = Counter()
        self.summed = self.while_paused = 0

    def happen(self, act: str, number: int) -> Step:
        if act == "pass":
            self.now += seconds(number)
        elif act == "wake":
            self.now = max(self.now, decide.wakes_at(self.plan, self.state) or self.now)
        elif act == "pause":
            return decide.pause(self.plan, self.state, self.now)
        elif act == "resume" and self.state.paused:
            # Neither runs nor misses: what came due while it was paused.
            until = max(self.now, self.state.cursor)
            self.while_paused += self.plan.timing.count(self.state.cursor, until, ZONE)
            return decide.resume(self.state, self.now)
        elif act == "trigger":
            self.now += timedelta(microseconds=1)  # A due time of its own, as the database's clock gives it.
            return decide.trigger(self.state, self.now, overlap=[None, *Overlap][number])
        elif act == "backfill":
            self.now += timedelta(microseconds=1)
            return decide.backfill(self.state, [self.now - hours(number)], self.now, overlap=[*Overlap][number % 5])
        elif act == "end" and self.state.running:
            outcome = Outcome.FAILED if number else Outcome.SUCCEEDED
            return after_run(self.plan, self.state, self.now, outcome)
        return Step(self.state)

    def keep(self, step: Step) -> None:
        started = set[tuple[datetime, Kind]]()
        for one in step.decisions:
            if one.act is Act.MISS and one.occurrence is None:
                self.summed += one.count
            if one.act in {Act.START, Act.SKIP, Act.MISS} and one.occurrence is not None:
                self.ends[one.occurrence.identity] += 1
            if one.act is Act.START and one.occurrence is not None:
                assert one.occurrence.starts_at <= self.now
                assert one.occurrence.kind is not Kind.SCHEDULED or not step.state.paused
                own = one.occurrence.overlap or self.plan.policy.overlap
                started.add(one.occurrence.identity)
                assert own is Overlap.ALLOW or (not self.state.running and len(started) == 1), "none overlaps"
            if one.act is Act.CANCEL and one.occurrence is not None:
                assert one.occurrence.identity not in started, "what is cancelled at once is never started"
        assert len(step.state.running) <= max(self.plan.policy.limit, len(self.state.running), 1)
        assert step.state.cursor >= self.state.cursor
        self.state = step.state


@settings(max_examples=200, deadline=None)
@given(POLICIES, ACTIONS)
def test_whatever_happens_each_due_time_has_one_end_and_every_bound_holds(policy, actions) -> None:
    world = World(policy)
    for act, number in actions:
        world.keep(world.happen(act, number))
        world.keep(decide.tick(world.plan, world.state, world.now))
        again = decide.tick(world.plan, world.state, world.now)
        assert again == Step(world.state), "repeated, it decides nothing"
    assert set(world.ends.values()) <= {1}, "none has two ends"
    waiting = sum(one.kind is Kind.SCHEDULED for one in world.state.waiting)
    ended = sum(kind is Kind.SCHEDULED for _, kind in world.ends)
    passed = world.plan.timing.count(NOON, world.state.cursor, ZONE)
    assert ended + waiting + world.summed + world.while_paused == passed, "none vanishes"


def test_planning_ten_thousand_schedules_costs_less_than_a_core_second_a_minute() -> None:
    zones = [ZoneInfo(name) for name in ("UTC", "America/New_York", "Europe/Berlin", "Pacific/Chatham")]
    plans = [
        Plan(
            identity=str(n), timing=Cron(f"{n % 7}-59/{1 + n % 3} {'*' if n % 2 else '0-23'} * * *"), zone=zones[n % 4]
        )
        for n in range(1_000)
    ]
    states = [State(cursor=NOON) for _ in plans]
    best = 1.0
    for minute in (1, 2, 3):
        now, began = NOON + minutes(minute), time.process_time()
        done = [decide.tick(of, state, now).state for of, state in zip(plans, states, strict=True)]
        states = [replace(state, running=()) for state in done]
        assert all(decide.wakes_at(of, state) for of, state in zip(plans, states, strict=True))
        best = min(best, time.process_time() - began)
    assert best < 0.1, "of a thousand"
