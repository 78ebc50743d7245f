"""Outages, overlaps, pauses and backfills as other schedulers' public suites have them, on the manual clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroad.errors import UsageError
from postroad.schedules import decide, overlap
from postroad.schedules.policy import Act, Overlap
from postroad.schedules.simulate import outcome, play
from postroad.schedules.timing import dues
from schedules.cases import cases

CASES = cases("policy-cases")
PAGE = Path(__file__).parents[2] / "docs" / "schedules-cases.md"

AS_THEY_SAY = (
    "tp-catchup-paused", "tp-overlap-buffer-one", "tp-overlap-buffer-all", "tp-overlap-cancel", "tp-trigger-overlap",
    "tp-backfill", "tp-backfill-inclusive", "tp-jitter-refresh", "tp-jitter-pause-unpause", "tp-buf-cancel-idle",
    "tp-buf-mixed", "k8-in-deadline", "k8-active-suspended", "ap-unpause-misfire", "qz-do-nothing", "qz-ignore",
    "sd-persistent", "dk-leader",
)  # fmt: skip
"""Played, and compared with all that they expect of runs, skips, misses and what comes next."""

IN_OUR_WORDS: dict[str, dict[str, Any]] = {
    # The source expects it in words, or in a field of its own; here it is in ours.
    "ce-two-missed": {
        "runs": [{"scheduled": "2022-12-05T07:30:00Z", "started": "2022-12-05T08:00:00Z"}],
        "next": "2022-12-06T07:30:00Z",
    },
    "k8-active-deadline": {
        "cancelled": [{"at": "2016-05-19T10:10:00Z", "scheduled": "2016-05-19T10:00:00Z", "reason": "finish_within"}],
    },
    "af-catchup-false": {"runs": [{"scheduled": "2025-01-05T00:00:00Z", "started": "2025-01-05T06:00:00Z"}]},
    "br-sleep-duplicate": {"runs": [{"scheduled": "2025-06-29T03:00:00Z", "started": "2025-06-29T03:05:00Z"}]},
}
DECIDED_OTHERWISE: dict[str, dict[str, Any]] = {
    # Quartz forgets the due time; it stays here.
    "qz-fire-once": {
        "runs": [{"scheduled": "2024-01-01T03:00:00Z", "started": "2024-01-01T03:10:00Z"}],
        "next": "2024-01-01T04:00:00Z",
    },
    # Temporal starts the earliest of what is pending under skip; here it is the latest.
    "tp-buf-skip-idle": {"start_now": [7], "buffer": [], "skipped_count": 2},
}
BY_ITSELF = {"tp-jitter-stable", "sd-delay-starves", "k8-two-missed"}
"""Each has a test of its own below."""
NOT_OURS = {
    "tp-start-end": "schedule.start",
    "ap-crash-abandoned": "crash",
    "rb-two-owners": "lock_acquired",
}
"""Of other rooms, or of a policy that does not exist here; the page says why."""


def compared(name: str) -> dict[str, Any]:
    return {key: value for key, value in CASES[name]["expect"].items() if key != "source_behaviour_runs"}


@pytest.mark.parametrize("name", AS_THEY_SAY)
def test_a_timeline_comes_to_what_its_source_says(name: str) -> None:
    got = outcome(CASES[name])
    assert {key: got[key] for key in compared(name)} == compared(name)


@pytest.mark.parametrize(("name", "wanted"), [*IN_OUR_WORDS.items(), *DECIDED_OTHERWISE.items()])
def test_a_timeline_comes_to_what_was_decided(name: str, wanted: dict[str, Any]) -> None:
    got = outcome(CASES[name])
    assert {key: got[key] for key in wanted} == wanted


@pytest.mark.parametrize(("name", "named"), NOT_OURS.items())
def test_a_timeline_of_a_policy_that_does_not_exist_here_is_refused_by_its_field(name: str, named: str) -> None:
    with pytest.raises(UsageError) as refused:
        outcome(CASES[name])
    assert named in refused.value.message


def test_jitter_depends_on_schedule_and_due_time_alone() -> None:
    drawn = [(one["seed"], one["offset_s"]) for one in outcome(CASES["tp-jitter-stable"])["offsets"]]
    assert [seed for seed, _ in drawn] == ["a", "a", "b"]
    assert drawn[0] == drawn[1]
    assert drawn[0][1] != drawn[2][1]
    assert all(0 <= offset < 3600 for _, offset in drawn)


def starts_across_restarts() -> set[datetime]:
    played = play(CASES["sd-delay-starves"])
    waits = [one.occurrence for _, one in played.decisions if one.act is Act.WAIT and one.occurrence is not None]
    assert [one.due for one in waits] == [datetime.fromisoformat("2024-01-07T00:00:00Z")]
    plan, due = played.timeline.plan, waits[0].due
    again = due + decide.jitter(plan.identity, due, most=plan.policy.jitter, gap=timedelta(days=7))
    assert due <= again < due + timedelta(days=7)
    return {waits[0].starts_at, again}


def test_a_long_delay_is_not_drawn_again_at_a_restart() -> None:
    assert len(starts_across_restarts()) == 1


@pytest.mark.sabotage
def test_sabotage_a_delay_that_is_drawn_moves_at_each_restart(monkeypatch) -> None:
    drawn = iter(range(1, 100))
    monkeypatch.setattr(decide, "jitter", lambda *_, **__: timedelta(hours=next(drawn)))
    assert len(starts_across_restarts()) > 1


def test_what_was_not_met_is_what_the_policies_start_from() -> None:
    case = CASES["k8-two-missed"]
    as_latest = {**case, "policy": {"missed": "run_latest"}}
    played = play(as_latest)
    decided = sorted(one.occurrence.due for _, one in played.decisions if one.occurrence is not None)
    unmet = [datetime.fromisoformat(at) for at in case["expect"]["unmet"]]
    assert decided == unmet
    plan = played.timeline.plan
    assert list(dues(plan.timing, plan.zone, after=played.timeline.begins, until=played.now)) == unmet


@pytest.mark.sabotage
def test_sabotage_without_the_overlap_policy_runs_overlap(monkeypatch) -> None:
    for policy in Overlap:
        monkeypatch.setitem(overlap._BY_POLICY, policy, overlap._allow)
    for name in ("tp-overlap-buffer-one", "tp-overlap-cancel", "tp-trigger-overlap", "tp-buf-mixed"):
        with pytest.raises(AssertionError):
            test_a_timeline_comes_to_what_its_source_says(name)


def test_every_case_is_played_or_listed_with_its_reason_on_the_page() -> None:
    listed = [*AS_THEY_SAY, *IN_OUR_WORDS, *DECIDED_OTHERWISE, *BY_ITSELF, *NOT_OURS]
    assert sorted(listed) == sorted(CASES)
    page = PAGE.read_text("utf-8")
    assert [name for name in (*DECIDED_OTHERWISE, *NOT_OURS, *IN_OUR_WORDS) if f"`{name}`" not in page] == []
