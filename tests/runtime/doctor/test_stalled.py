"""The doctor on effects without an outcome and on schedules that make no runs, in a real database; its judgements."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace

import asyncpg
import pytest

from cli.test_work import postroad
from effects.bench import charges
from postroad.clock import hours, minutes, seconds
from postroad.runtime.doctor import Limits, Subject, stalled
from postroad.runtime.doctor.stalled import bound, judge_effects, judge_planners
from runtime.doctor.patients import severity
from schedules.planbench import schedule

NAMES = (
    "effects.person", "effects.unknown", "effects.key-window", "schedules.paused", "schedules.planner",
    "schedules.late", "schedules.retired",
)  # fmt: skip


def effect(sql, state, *, age="1 hour", left="NULL", name="charge", waiting="{}"):
    """An effect whose request left so long ago, and whose key the provider remembers for `left`."""
    until = left if left == "NULL" else f"now() + interval '{left}'"
    rows = sql(
        "INSERT INTO postroad.effect (name, key, fingerprint, provider_key, state, attempt, run, sent_at, valid_until,"
        f" waiting, finished_at) VALUES ('{name}', gen_random_uuid()::text, 'v1:f', 'p', '{state}', 1, 7,"
        f" now() - interval '{age}', {until}, '{waiting}', {'now()' if state == 'succeeded' else 'NULL'}) RETURNING id"
    )
    return rows[0][0]


def planned(sql, name="reports.daily", app="reports", *, next_at="now() + interval '1 hour'", **columns):
    """A schedule as it stands; its id."""
    more = "".join(f", {column}" for column in columns)
    values = "".join(f", {value}" for value in columns.values())
    rows = sql(
        f"INSERT INTO postroad.schedule (name, app, definition, release, cursor, next_at{more})"
        f" VALUES ('{name}', '{app}', '{{}}', 1, now(), {next_at}{values}) RETURNING id"
    )
    return rows[0][0]


def led(sql, app="reports", *, until="now() + interval '15 s'"):
    """Some process holds the scheduler's lease of `app`."""
    sql(
        "INSERT INTO postroad.lease (name, holder, expires_at, ttl)"
        f" VALUES ('scheduler:{app}', gen_random_uuid(), {until}, interval '15 s')"
    )


def occurrence(sql, number, state, *, age="10 minutes", work="NULL"):
    sql(
        "INSERT INTO postroad.occurrence (schedule, due, kind, key, state, start_at, revision, work_id)"
        f" VALUES ('{number}', now() - interval '{age}', 'manual', gen_random_uuid()::text, '{state}',"
        f" now() - interval '{age}', 1, {work})"
    )


def test_where_nothing_stands_still_all_is_well(examine, sql):
    effect(sql, "succeeded", age="3 days")
    effect(sql, "unknown", age="3 s")
    effect(sql, "not_found", age="3 days")
    planned(sql)
    led(sql)
    found = examine(limits=Limits())
    assert {name: severity(found[name]) for name in NAMES} == dict.fromkeys(NAMES, "ok")


# --- effects --------------------------------------------------------------------------------------------------------


def test_effects_that_wait_for_a_person_are_counted_with_their_age_and_what_waits_for_them(examine, sql):
    first = effect(sql, "manual", age="5 hours", waiting="{7,8}")
    effect(sql, "manual", age="1 hour", waiting="{9}")
    found = examine()
    (finding,) = found["effects.person"]
    told = f"charge: 2, the oldest (effect {first}) for 5 hours, rows of work that wait for it: 3"
    assert (finding.severity, finding.found) == ("warning", told)
    assert "stands still" in finding.lost
    assert "postroad effects resolve" in finding.remedy
    assert severity(found["effects.unknown"]) == "ok"


@pytest.mark.parametrize("state", ["sent", "unknown", "reconciling"])
def test_outcomes_that_are_unknown_for_longer_than_look_ups_take_are_told(examine, sql, state):
    number = effect(sql, state, age="16 minutes")
    (finding,) = examine()["effects.unknown"]
    told = f"charge: 1, the oldest (effect {number}) for 16 minutes; no App given here declares it"
    assert (finding.severity, finding.found) == ("warning", told)


def test_how_long_an_outcome_may_be_unknown_is_what_its_effect_declares():
    charge = charges(timeout=seconds(30), settle=hours(1), answers=2)
    assert bound(charge) == timedelta(hours=1, seconds=30) + 2 * (charge.looks.most + seconds(30))

    def judged(age):
        row = {"name": charge.name, "manual": False, "count": 1, "one": 1, "seconds": age.total_seconds(),
               "remembered": None, "waiting": 0}  # fmt: skip
        return judge_effects([row], {charge.name: charge}, Limits())[1]

    assert judged(minutes(59)).severity == "ok"
    assert judged(minutes(70)).severity == "warning"
    assert judged(minutes(70)).found.endswith("this App declares it")


def test_a_key_that_the_provider_forgets_soon_is_told_while_it_can_still_be_looked_up(examine, sql):
    effect(sql, "unknown", age="1 s", left="40 minutes")
    effect(sql, "unknown", age="1 s", left="3 hours", name="other")
    effect(sql, "succeeded", left="40 minutes", name="known")
    effect(sql, "manual", left="40 minutes", name="given-up")
    (finding,) = examine(limits=Limits())["effects.key-window"]
    told = "charge: the provider forgets the first key in 40 minutes"
    assert (finding.severity, finding.found) == ("warning", told)
    assert "postroad effects look-up" in finding.remedy


# --- schedules ------------------------------------------------------------------------------------------------------


def test_a_schedule_that_a_failure_has_paused_is_warned_of_and_a_persons_pause_is_noted(examine, sql):
    led(sql)
    paused = {"paused_at": "now() - interval '5 hours'", "failures": "3", "pause_reason": "'a run has failed'"}
    planned(sql, **paused, paused_by="'postroad'")
    planned(sql, "reports.weekly", paused_at="now()", paused_by="'ada'")
    failed, by_hand = examine(limits=Limits())["schedules.paused"]
    assert (failed.severity, by_hand.severity) == ("warning", "note")
    assert failed.found == "reports.daily, for 5 hours, by postroad: a run has failed"
    assert "postroad schedule resume" in failed.remedy


def test_an_app_whose_schedules_nobody_plans_is_named_once_something_is_overdue(examine, sql):
    planned(sql)
    (finding,) = examine(limits=Limits())["schedules.planner"]
    assert (finding.severity, finding.found) == (
        "note", "no process plans the schedules of App reports (1); nothing is overdue yet",
    )  # fmt: skip
    planned(sql, "reports.hourly", next_at="now() - interval '4 hours'")
    led(sql, until="now() - interval '1 s'")
    found = examine(limits=Limits())
    (finding,) = found["schedules.planner"]
    assert (finding.severity, finding.found) == (
        "warning", "no process plans the schedules of App reports (2); reports.hourly is overdue for 4 hours",
    )  # fmt: skip
    assert severity(found["schedules.late"]) == "ok"


def test_a_cursor_that_lags_under_a_process_that_plans_is_late(examine, sql):
    led(sql)
    planned(sql, next_at="now() - interval '10 minutes'")
    planned(sql, "reports.young", next_at="now() - interval '10 s'")
    found = examine(limits=Limits())
    (finding,) = found["schedules.late"]
    assert (finding.severity, finding.found) == ("warning", "App reports: reports.daily is overdue for 10 minutes")
    assert severity(found["schedules.planner"]) == "ok"


def test_a_schedule_that_is_to_be_looked_at_now_is_as_late_as_what_waits_of_it(examine, sql):
    led(sql)
    number = planned(sql, next_at="'epoch'")
    assert severity(examine(limits=Limits())["schedules.late"]) == "ok"
    occurrence(sql, number, "pending")
    assert severity(examine(limits=Limits())["schedules.late"]) == "warning"


def test_what_waits_of_a_schedule_that_is_gone_is_told_and_what_runs_is_not(examine, sql):
    number = planned(sql, next_at="NULL", retired_at="now()")
    work = "INSERT INTO postroad.work (id, queue, kind, state, body, content_type, worker, token) VALUES"
    sql(f"{work} (8, 'q', 'job', 'running', '', 'x', 'worker:1', 7), (9, 'q', 'job', 'ready', '', 'x', NULL, NULL)")
    occurrence(sql, number, "started", work="8")
    assert severity(examine(limits=Limits())["schedules.retired"]) == "ok"
    occurrence(sql, number, "started", age="11 minutes", work="9")
    found = examine(limits=Limits())
    (finding,) = found["schedules.retired"]
    assert (finding.severity, finding.found) == ("warning", "reports.daily: 1, the oldest for 11 minutes")
    assert severity(found["schedules.planner"]) == "ok"  # What is retired needs nobody.


def test_schedules_that_the_app_declares_and_the_database_never_heard_of_are_noted():
    (finding, _) = judge_planners([], {"reports.weekly", "reports.daily"}, Limits())
    assert finding.severity == "note"
    assert finding.found == "declared here, and not in the database: reports.daily, reports.weekly"


async def test_declared_schedules_are_compared_with_those_that_stand(sql, runtime_url):
    planned(sql)
    app = SimpleNamespace(effects=(), schedules=(schedule(), schedule("reports.weekly")))
    connection = await asyncpg.connect(runtime_url)
    try:
        found = await stalled.stalled(connection, "postroad", Subject(app, lambda _: 0), Limits())
    finally:
        await connection.close()
    assert [one.found for one in found if "declared here" in one.found] == [
        "declared here, and not in the database: reports.weekly"
    ]


def test_the_command_tells_each_with_its_cost_and_its_remedy(sql, runtime_url):
    effect(sql, "manual")
    done = postroad("doctor", "--json", POSTROAD_DATABASE_URL=runtime_url, POSTROAD_BROKER_URL="postgres:")
    document = json.loads(done.stdout)
    (finding,) = [one for one in document["findings"] if one["name"] == "effects.person"]
    assert finding["severity"] == "warning"
    assert all(finding[name] for name in ("found", "lost", "remedy"))
    assert {one["name"] for one in document["findings"]} >= set(NAMES)
