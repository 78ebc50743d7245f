"""Declared and stored schedules: the newest release that started holds, and what operators said outlives it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from postroad.clock import hours, seconds
from postroad.errors import UsageError
from postroad.schedules import operate, registry
from postroad.schedules.policy import Missed, Overlap
from postroad.schedules.registry import Release, register
from postroad.schedules.sheet import Known
from schedules.planbench import APP, SCHEMA, START, at, begin_at, occurrences, office, schedule, states, tick


def release(*schedules: Any, app: str = APP, tz: str = "2025b") -> Release:
    return Release.of(app, schedules, tz_version=tz)


async def audited(sql: Any, act: str) -> list[tuple[str, Any, Any]]:
    rows = await sql.fetch(
        "SELECT subject, before::text AS before, after::text AS after FROM audit WHERE act = $1 ORDER BY id", act
    )
    return [(row["subject"], *(json.loads(row[name] or "null") for name in ("before", "after"))) for row in rows]


async def test_what_is_declared_is_stored_and_declaring_it_again_changes_nothing(here, sql) -> None:
    first = await here.run(register(SCHEMA, release(schedule(), schedule("reports.other"))))
    assert (first.number, first.new, first.changed, first.retired) == (1, 2, 0, 0)
    before = await sql.fetch("SELECT * FROM schedule ORDER BY name")
    again = await here.run(register(SCHEMA, release(schedule("reports.other"), schedule())))
    assert (again.number, again.new, again.changed, again.retired) == (1, 0, 0, 0)
    assert again.known.keys() == first.known.keys() == {row["id"] for row in before}
    assert await sql.fetch("SELECT * FROM schedule ORDER BY name") == before
    assert await audited(sql, "schedule.declare") == [
        (APP, None, {"release": 1, "names": ["reports.daily", "reports.other"]})
    ]


async def test_a_new_schedule_has_nothing_due_before_it_was_declared(here, sql) -> None:
    held = await office(here, schedule())
    await tick(here, held, await sql.fetchval("SELECT clock_timestamp()"))
    assert await states(sql) == []


async def test_a_change_of_policy_keeps_what_is_due_and_a_change_of_times_begins_now(here, sql) -> None:
    await office(here, schedule())
    await begin_at(sql)
    await here.run(register(SCHEMA, release(schedule(overlap=Overlap.ALLOW))))
    row = await sql.fetchrow("SELECT cursor, revision FROM schedule")
    assert tuple(row) == (START, 2)
    await here.run(register(SCHEMA, release(schedule(overlap=Overlap.ALLOW, zone="Europe/Paris"))))
    assert await sql.fetchval("SELECT cursor > now() - interval '1 minute' FROM schedule")
    changes = await audited(sql, "schedule.change")
    assert changes[0] == ("reports.daily", {"overlap": "skip"}, {"release": 2, "overlap": "allow"})
    assert changes[1] == ("reports.daily", {"zone": "UTC"}, {"release": 3, "zone": "Europe/Paris"})


async def test_an_update_between_due_and_jittered_start_loses_no_run(here, sql) -> None:
    held = await office(here, schedule(cron="0 * * * *", jitter=seconds(3000)))
    await begin_at(sql)
    await tick(here, held, at("02 01:00"))
    [waits] = await occurrences(sql)
    assert (waits["state"], waits["start_at"] > at("02 01:00")) == ("pending", True)
    found = await here.run(register(SCHEMA, release(schedule(cron="30 4 * * *", jitter=seconds(3000)))))
    held = replace(held, release=found.number, known=found.known)
    await tick(here, held, waits["start_at"])
    assert (await occurrences(sql))[0]["state"] == "started"


NOON = {"at": at("02 12:00")}
LATER = {"at": at("03 12:00")}


async def changed(here: Any, sql: Any, now: str, **options: Any) -> list[tuple[str, str, str | None]]:
    """What becomes of something due at noon, by a declaration that was changed before anybody planned it."""
    held = await office(here, schedule(**NOON))
    await begin_at(sql)
    found = await here.run(register(SCHEMA, release(schedule(**LATER, **options))))
    await tick(here, replace(held, release=found.number, known=found.known), at(now))
    return await states(sql)


async def test_what_was_overdue_by_the_old_times_is_not_lost_when_they_change(here, sql) -> None:
    assert await changed(here, sql, "02 12:00:30") == [("02 12:00", "started", None)]
    [one] = await occurrences(sql)
    assert (one["revision"], await sql.fetchval("SELECT revision FROM schedule")) == (1, 2)
    await here.run(register(SCHEMA, release(schedule(**LATER))))
    assert len(await states(sql)) == 1, "a repeat finds nothing"


@pytest.mark.sabotage
async def test_a_cursor_that_is_only_moved_would_lose_it(here, sql, monkeypatch) -> None:
    def forgetful(schema, leaving, now):
        yield from ()

    monkeypatch.setattr(registry, "_keep_due", forgetful)
    assert await changed(here, sql, "02 12:00:30") == []


@pytest.mark.parametrize(
    ("missed", "wanted"), [(Missed.LATEST, ("started", None)), (Missed.SKIP, ("missed", "missed"))]
)
async def test_the_new_declaration_decides_what_becomes_of_it(here, sql, missed, wanted) -> None:
    assert await changed(here, sql, "02 14:00", missed=missed) == [("02 12:00", *wanted)]


async def test_of_many_overdue_old_times_the_older_are_counted_in_the_audit(here, sql) -> None:
    await office(here, schedule(max_catch_up=2, every=hours(1)))
    await sql.execute(
        "UPDATE schedule SET cursor = date_trunc('hour', clock_timestamp()) - interval '5 hours', next_at = 'epoch'"
    )
    await here.run(register(SCHEMA, release(schedule(max_catch_up=2, every=hours(2)))))
    assert [state for _, state, _ in await states(sql)] == ["pending", "pending"]
    [(_, _, told)] = await audited(sql, "schedule.miss")
    assert told["count"] in {3, 4}, "the hour may have changed meanwhile"


async def test_what_was_overdue_when_a_schedule_is_retired_is_cancelled_with_the_reason(here, sql) -> None:
    await office(here, schedule(**NOON), schedule("reports.other"))
    await begin_at(sql, name="reports.daily")
    await here.run(register(SCHEMA, release(schedule("reports.other"))))
    assert await states(sql) == [("02 12:00", "cancelled", "retired")]


async def test_a_paused_schedule_whose_times_change_had_nothing_due(here, sql) -> None:
    await office(here, schedule(**NOON))
    await begin_at(sql)
    await sql.execute("UPDATE schedule SET paused_at = $1", START)
    await here.run(register(SCHEMA, release(schedule(**LATER))))
    assert await states(sql) == []


async def test_what_is_not_declared_any_more_is_retired_with_what_waits_of_it(here, sql) -> None:
    held = await office(here, schedule(overlap=Overlap.QUEUE_ONE), schedule("reports.other"))
    await begin_at(sql)
    for minute in (1, 2):
        await tick(here, held, at(f"02 00:0{minute}"))
    await sql.execute("UPDATE schedule SET cursor = clock_timestamp()")
    done = await here.run(register(SCHEMA, release(schedule("reports.other"))))
    assert done.retired == 1
    assert await states(sql) == [("02 00:01", "started", None), ("02 00:02", "cancelled", "retired")]
    assert await sql.fetchval("SELECT count(*) FROM work WHERE key LIKE 'sched:%'") == 2, "what runs goes on"
    assert await audited(sql, "schedule.retire") == [("reports.daily", None, {"release": 2})]
    back = await here.run(register(SCHEMA, release(schedule(), schedule("reports.other"))))
    assert (back.new, await sql.fetchval("SELECT count(*) FROM schedule WHERE retired_at IS NULL")) == (1, 2)


async def test_a_pause_survives_deploys(here, sql) -> None:
    await office(here, schedule())
    await here.run(operate.pause(SCHEMA, "reports.daily", by="ada", reason="audit week"))
    await here.run(register(SCHEMA, release(schedule(cron="0 * * * *"))))
    await here.run(register(SCHEMA, release(schedule("reports.other"))))
    await here.run(register(SCHEMA, release(schedule())))
    assert await sql.fetchrow("SELECT paused_by, pause_reason FROM schedule WHERE name = 'reports.daily'") == (
        "ada", "audit week",
    )  # fmt: skip


# --- which release ------------------------------------------------------------------------------------------------

OLD, NEW = release(schedule()), release(schedule(cron="0 * * * *"))


async def present(here: Any, which: Release, who: str = "one") -> Any:
    lease = await here.keeper.acquire(f"{which.presence}{who}", ttl=seconds(30), on_lost=lambda _: None)
    await here.run(register(SCHEMA, which))
    return lease


async def cron(sql: Any) -> str:
    return json.loads(await sql.fetchval("SELECT definition::text FROM schedule"))["timing"]["cron"]


async def test_an_old_process_that_starts_again_during_a_deploy_does_not_undo_it(here, sql) -> None:
    await present(here, OLD)
    await present(here, NEW)
    assert (await here.run(register(SCHEMA, OLD))).number == 0
    assert await cron(sql) == "0 * * * *"


@pytest.mark.sabotage
async def test_if_the_last_start_won_the_old_process_would_undo_the_deploy(here, sql, monkeypatch) -> None:
    def nobody(schema, prefix):
        yield from ()
        return 0

    monkeypatch.setattr(registry, "living", nobody)
    await present(here, OLD)
    await present(here, NEW)
    assert (await here.run(register(SCHEMA, OLD))).number == 3
    assert await cron(sql) == "* * * * *"


async def test_after_a_rollback_the_old_release_is_the_newest_again(here, sql) -> None:
    await present(here, OLD)
    gone = await present(here, NEW)
    await here.keeper.release_many([gone])
    assert (await here.run(register(SCHEMA, OLD))).number == 3
    assert await cron(sql) == "* * * * *"


async def test_two_apps_of_one_schema_do_not_take_each_others_schedules(here, sql) -> None:
    await office(here, schedule())
    with pytest.raises(
        UsageError, match=r"'reports.daily' is declared by App 'reports' in this schema.*rename one.*PR104"
    ):
        await here.run(register(SCHEMA, release(schedule(), app="billing")))
    await here.run(register(SCHEMA, release(schedule("billing.daily"), app="billing")))
    assert await sql.fetchval("SELECT count(*) FROM schedule WHERE retired_at IS NULL") == 2


# --- zone data ----------------------------------------------------------------------------------------------------


async def zones_change(here: Any, sql: Any) -> list[tuple[str, str]]:
    """Due daily at 02:15 in a zone: by the old data an hour ahead of UTC, by the new in UTC. What has run."""
    held = await office(here, schedule(cron="15 2 * * *", zone="Africa/Lagos"))
    await begin_at(sql)
    await tick(here, held, at("02 01:15"))
    await sql.execute("DELETE FROM work")
    found = await here.run(register(SCHEMA, release(schedule(cron="15 2 * * *", zone="Africa/Lagos"), tz="2026a")))
    [(number, known)] = found.known.items()
    plan = schedule(cron="15 2 * * *", zone="UTC").plan(str(number))  # As the zone is by the new data.
    held = replace(held, release=found.number, known={number: Known(known.schedule, plan)}, tz_version="2026a")
    for moment in ("02 03:00", "03 01:30", "03 02:15"):
        await tick(here, held, at(moment))
    return [(f"{row['due']:%d %H:%M}", row["tz_version"]) for row in await occurrences(sql)]


async def test_new_zone_data_moves_future_occurrences_only(here, sql) -> None:
    assert await zones_change(here, sql) == [("02 01:15", "2025b"), ("03 02:15", "2026a")]
    assert await audited(sql, "schedule.rezone") == [
        (APP, {"tz_version": "2025b", "names": ["reports.daily"]}, {"tz_version": "2026a"})
    ]


@pytest.mark.sabotage
async def test_from_the_old_cursor_on_a_day_would_run_twice(here, sql, monkeypatch) -> None:
    def unmoved(schema, release, standing):
        yield from ()

    monkeypatch.setattr(registry, "_rezone", unmoved)
    assert [due for due, _ in await zones_change(here, sql)] == ["02 01:15", "02 02:15", "03 02:15"]


async def test_zone_data_that_changes_while_something_is_overdue_loses_nothing(here, sql) -> None:
    await office(here, schedule(cron="15 2 * * *"))
    await begin_at(sql)
    await sql.execute("UPDATE schedule SET next_at = $1", at("02 02:15"))
    found = await here.run(register(SCHEMA, release(schedule(cron="15 2 * * *"), tz="2026a")))
    held = await office(here, schedule(cron="15 2 * * *"), name="scheduler:again", tz="2026a")
    await tick(here, held, at("02 03:00"))
    assert (found.number, await states(sql)) == (1, [("02 02:15", "started", None)])
