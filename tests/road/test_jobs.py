"""Jobs in processes of their own, under faults: each effect once, taken over in time, only the culprit charged."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from road.roads import Road, told, until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runtime.processes import Running

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(120)]
LEASE = 2.0  # As the road's settings say.
SWEEP = 1.0
SLACK = 3.0  # For two busy cores.


def yard(road: Road, *, ready: bool = True, **settings: str) -> Running:
    """A worker of jobs."""
    if ready:
        return road._start("road.apps.yard:app", "work", settings)
    from runtime.processes import Running as Process

    return road.processes.enter_context(
        Process("road.apps.yard:app", "--only", "work", **{**road.settings, **settings})
    )


def enqueue(road: Road, numbers: Iterable[int], *, act: str = "", job: str = "yard.move") -> None:
    """Rows as an author's enqueue leaves them."""
    bodies = json.dumps([json.dumps({"number": number, "act": act}) for number in numbers])
    road.postgres.execute(
        "INSERT INTO postroad.work (id, queue, kind, state, due, event_type, body, content_type)"
        f" SELECT nextval('postroad.work_id'), '{job}', 'job', 'ready', now(), '{job}', convert_to(body, 'UTF8'),"
        f" 'application/json' FROM json_array_elements_text('{bodies}') body",
        database=road.name,
    )


def done(road: Road) -> bool:
    return road.count("postroad.work") == 0


def started(road: Road, *, within: str = "true") -> bool:
    return road.count("postroad.work", f"state = 'running' AND {within}") > 0


# --- a worker that dies -------------------------------------------------------------------------------------------


def a_worker_is_killed(road: Road, without: str = "") -> None:
    """In mid-job, beside another that takes it over, measured."""
    first = yard(road)
    enqueue(road, [1], act="wait:600")
    until(lambda: started(road))
    yard(road, ROAD_WITHOUT=without)
    first.process.kill()
    died = time.monotonic()
    until(lambda: started(road, within="suspect = 1"), within_seconds=LEASE + SWEEP + SLACK)
    print(f"started again {time.monotonic() - died:.1f} s after the death: lease {LEASE} s, sweep {SWEEP} s")  # noqa: T201
    assert road.rows("SELECT attempt FROM postroad.work") == [("0",)]


def test_a_killed_workers_job_starts_again_within_lease_and_sweep(road: Road) -> None:
    a_worker_is_killed(road)


@pytest.mark.sabotage
def test_without_recovery_a_killed_workers_job_stays_where_it_was(road: Road) -> None:
    with pytest.raises(AssertionError):
        a_worker_is_killed(road, "recovery")
    assert started(road, within="suspect = 0")


def a_poisoned_claim(road: Road, without: str) -> tuple[Counter[int], list[tuple[str, ...]]]:
    """Worker after worker is killed by one job among a hundred good ones; what was done, and what each was charged."""
    enqueue(road, range(50))
    enqueue(road, [1000], act="die")
    enqueue(road, range(50, 100), act="wait:0.3")
    deaths = 0
    while not done(road):
        worker = yard(road, ready=False, ROAD_WITHOUT=without, POSTROAD_WORKER_LEASE_SECONDS="1")
        until(lambda worker=worker: done(road) or worker.process.poll() is not None)
        deaths += worker.process.poll() is not None
        worker.process.kill()
    assert deaths >= 3
    return road.seen(), road.rows("SELECT DISTINCT attempt FROM postroad.finished")


def test_of_a_poison_job_among_a_hundred_good_ones_only_it_is_charged(road: Road) -> None:
    seen, charged = a_poisoned_claim(road, "")
    assert seen == Counter(range(100))
    assert charged == [("1",)]
    assert road.rows("SELECT code, kind FROM postroad.quarantine") == [("PR507", "job")]


@pytest.mark.sabotage
def test_without_suspicion_the_neighbours_of_a_poison_job_are_charged(road: Road) -> None:
    _, charged = a_poisoned_claim(road, "suspicion")
    assert charged != [("1",)]


# --- a worker that is late ----------------------------------------------------------------------------------------


def a_worker_wakes_too_late(road: Road, without: str) -> Counter[int]:
    """It is stopped in a job that ignores cancellation, is overtaken, and goes on; how often the job took effect."""
    paused = yard(road, ROAD_WITHOUT=without)
    enqueue(road, [1], act="ignore:3")
    until(lambda: started(road))
    os.kill(paused.process.pid, signal.SIGSTOP)
    other = yard(road)
    until(lambda: done(road))
    other.wait_for("work_settled", result="ok")
    os.kill(paused.process.pid, signal.SIGCONT)
    if not without:
        paused.wait_for("late_write_refused", room="work", count=1)
    paused.wait_for("work_settled", kind="job")
    return road.seen()


def test_a_job_of_a_paused_worker_that_goes_on_too_late_changes_nothing_and_is_counted(road: Road) -> None:
    assert a_worker_wakes_too_late(road, "") == Counter([1])


@pytest.mark.sabotage
def test_without_the_fence_a_job_of_a_paused_worker_takes_effect_twice(road: Road) -> None:
    assert a_worker_wakes_too_late(road, "job_fence") == Counter([1, 1])


def a_long_job(road: Road, act: str, without: str = "") -> Counter[int]:
    """It runs for several leases while another worker would take it over; how often it took effect."""
    short = {"POSTROAD_WORKER_LEASE_SECONDS": "1", "ROAD_WITHOUT": without}
    yard(road, **short)
    enqueue(road, [1], act=act)
    until(lambda: started(road))
    yard(road, **short)
    until(lambda: done(road) and road.count("seen") > 0)
    if without:
        until(lambda: road.count("seen") > 1)
    return road.seen()


@pytest.mark.parametrize("act", ["wait:10", "block:4"], ids=["that waits", "that blocks the loop"])
def test_a_job_much_longer_than_the_lease_is_never_doubled(road: Road, act: str) -> None:
    assert a_long_job(road, act) == Counter([1])
    assert road.rows("SELECT attempt FROM postroad.finished") == [("1",)]


@pytest.mark.sabotage
def test_without_renewal_and_fence_a_long_job_is_doubled(road: Road) -> None:
    assert a_long_job(road, "ignore:5", "renewal,job_fence")[1] > 1


# --- a worker that is told to stop --------------------------------------------------------------------------------


def a_worker_is_told_to_stop(road: Road, without: str = "") -> Running:
    """With two jobs in flight that end in time, and one that does not."""
    worker = yard(road, POSTROAD_GRACE_SECONDS="3", ROAD_WITHOUT=without)
    enqueue(road, [1], act="wait:1")
    enqueue(road, [2], act="wait:600")
    enqueue(road, [3], act="wait:1", job="yard.weigh")
    until(lambda: road.count("postroad.work", "state = 'running'") == 3)
    assert worker.stop() < 4
    return worker


LEFT = "SELECT state, attempt, suspect, token FROM postroad.work"
READY = [("ready", "0", "0", "")]


def test_told_to_stop_a_worker_finishes_what_it_can_and_gives_the_rest_back_uncharged(road: Road) -> None:
    worker = a_worker_is_told_to_stop(road)
    receipt = worker.wait_for("shutdown_receipt")
    assert (receipt["finished"], receipt["given_back"], receipt["abandoned"]) == (2, 1, 0)
    assert road.seen() == Counter([1, 3])
    assert road.rows(LEFT) == READY
    assert told(worker, "task_failed") == []


@pytest.mark.sabotage
def test_without_handing_it_back_the_job_in_flight_waits_for_its_workers_lease(road: Road) -> None:
    a_worker_is_told_to_stop(road, "handback")
    assert road.rows(LEFT) != READY


# --- many workers -------------------------------------------------------------------------------------------------

WORKERS = 10
CALM = {"POSTROAD_WORKER_LEASE_SECONDS": "20"}  # Twelve processes on two cores: no lease shall be lost for that.


def many_on_one_queue(road: Road, count: int, *, workers: int = WORKERS, without: str = "") -> Counter[int]:
    """Unique jobs, and how often each took effect."""
    for first in range(0, count, 1000):
        enqueue(road, range(first, min(first + 1000, count)))
    road.postgres.execute(
        "UPDATE postroad.work SET key = id::text, body = convert_to(json_build_object('number', id)::text, 'UTF8')",
        database=road.name,
    )
    started = [yard(road, ready=False, ROAD_WITHOUT=without, **CALM) for _ in range(workers)]
    until(lambda: done(road), within_seconds=200)
    assert sum(bool(told(worker, "work_claimed")) for worker in started) > 1
    return road.seen()


@pytest.mark.timeout(240)
def test_ten_workers_on_one_queue_have_each_of_ten_thousand_effects_once(road: Road) -> None:
    seen = many_on_one_queue(road, 10_000)
    assert len(seen) == 10_000
    assert set(seen.values()) == {1}
    assert road.rows("SELECT count(*), count(DISTINCT id), max(attempt) FROM postroad.finished") == [
        ("10000", "10000", "1")
    ]


@pytest.mark.sabotage
def test_where_a_claim_takes_nothing_and_nothing_is_fenced_effects_are_doubled(road: Road) -> None:
    assert max(many_on_one_queue(road, 300, workers=3, without="taking,job_fence").values()) > 1


def most_at_once(road: Road, without: str = "") -> int:
    """Of a queue with a limit for all processes, how many jobs ran at once, as far as they saw each other."""
    road.postgres.execute(
        "CREATE TABLE inside (number int); CREATE TABLE crowd (count int); GRANT ALL ON inside, crowd TO pr_runtime",
        database=road.name,
    )
    enqueue(road, range(150), job="yard.count")
    for _ in range(WORKERS):
        yard(road, ready=False, ROAD_WITHOUT=without, **CALM)
    until(lambda: done(road), within_seconds=100)
    assert road.count("crowd") == 150
    return int(road.rows("SELECT max(count) FROM crowd")[0][0])


def test_the_limit_of_a_fleet_holds_under_ten_processes(road: Road) -> None:
    assert most_at_once(road) <= 3


@pytest.mark.sabotage
def test_without_taking_turns_the_limit_of_a_fleet_is_exceeded(road: Road) -> None:
    assert most_at_once(road, "turns") > 3
