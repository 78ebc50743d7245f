"""The built-in reconciliations: each finds what it is for, and nothing in a database that is well."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from postroad.clock import seconds
from postroad.reconcile.built_in import built_in
from postroad.reconcile.checking import check
from reconcile.airport import see

STAGE = """
INSERT INTO outbox (shard, place, seq, recorded, retention, route, target, attempts, reason) VALUES
    (1, 1, 1, now() - interval '1 hour', 7, 'a.b.c.v1', NULL, 0, NULL),
    (1, 2, 2, now() - interval '2 hours', 7, 'a.b.c.v1', NULL, 0, NULL),
    (1, 3, 3, now(), 7, 'a.b.d.v1', NULL, 3, 'returned: no queue'),
    (1, 4, 4, now(), 7, 'a.b.d.v1', 'billing', 2, 'unconfirmed'),
    (1, 5, 5, now(), 7, 'a.b.e.v1', NULL, 0, NULL)
"""
RUNNING = """
INSERT INTO lease (name, holder, expires_at, ttl) VALUES
    ('worker:lives', gen_random_uuid(), now() + interval '1 hour', '30 s'),
    ('worker:dead', gen_random_uuid(), now() - interval '1 second', '30 s');
INSERT INTO work (id, queue, kind, state, worker, token, body, content_type) VALUES
    (1, 'reports', 'job', 'running', 'worker:lives', 1, '', 'x'),
    (2, 'reports', 'job', 'running', 'worker:dead', 2, '', 'x'),
    (3, 'mail', 'job', 'running', 'worker:gone', 3, '', 'x'), (4, 'mail', 'job', 'ready', NULL, NULL, '', 'x')
"""
REPLAYED = """
INSERT INTO replay (id, chosen, rate, state, cursor, last, oldest, newest, total, by, reason)
    SELECT id, '{}', 500, 'running', 1, 9, now() - interval '2 days', now(), 9, 'ada', 'lost'
    FROM unnest(ARRAY['00e40000-0000-7000-8000-000000000001', '00e40000-0000-7000-8000-000000000002']::uuid[]) AS id;
UPDATE replay SET changed_at = now() - interval '6 minutes' WHERE number = 2;
INSERT INTO outbox (shard, place, seq, recorded, retention, route, target, replay) SELECT
    1, number, number, now() - interval '2 days', 7, 'a.b.c.v1', 'consumer-' || number, id FROM replay
"""
EFFECTS = """
INSERT INTO effect (name, key, fingerprint, provider_key, state, run, finished_at) VALUES
    ('charge', 'a', 'f', 'p', 'unknown', 1, NULL), ('charge', 'b', 'f', 'p', 'manual', 1, NULL),
    ('charge', 'c', 'f', 'p', 'succeeded', 1, now()), ('charge', 'd', 'f', 'p', 'sent', 1, NULL)
"""


def of(name: str, *, strays=None):
    (found,) = [one for one in built_in((), owned=(), strays=strays) if one.name == f"postroad.{name}"]
    return replace(found, settle=seconds(0))


async def keys(sql, ground, name: str, **given) -> list[tuple[str, str]]:
    await check(ground, of(name, **given))
    rows = await sql.fetch("SELECT key, found FROM drift WHERE state = 'open' ORDER BY key")
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("name", ["outbox", "work", "effects", "schedules"])
async def test_a_database_that_is_well_has_none(sql, ground, name):
    assert await keys(sql, ground, name) == []


async def test_events_that_were_refused_or_that_nobody_sends_are_found_by_route_and_reason(sql, ground):
    await sql.execute(STAGE)
    found = await keys(sql, ground, "outbox")
    assert [key for key, _ in found] == [
        "a.b.c.v1 (not sent)", "a.b.d.v1 (returned: no queue)", "a.b.d.v1 for billing (unconfirmed)",
    ]  # fmt: skip
    assert found[0][1].startswith("2 events, the oldest of 20")


async def test_events_of_a_replay_wait_since_it_last_moved_and_not_since_they_were_staged(sql, ground):
    await sql.execute(REPLAYED)
    assert [key for key, _ in await keys(sql, ground, "outbox")] == ["a.b.c.v1 for consumer-2 (not sent)"]


async def test_work_without_a_living_owner_is_found(sql, ground):
    await sql.execute(RUNNING)
    assert [found for _, found in await keys(sql, ground, "work")] == [
        "job of queue reports, worker worker:dead", "job of queue mail, worker worker:gone",
    ]  # fmt: skip


async def test_effects_left_unknown_are_found(sql, ground):
    await sql.execute(EFFECTS)
    assert [found for _, found in await keys(sql, ground, "effects")] == ["charge: unknown", "charge: manual"]


async def test_what_stands_for_nobody_is_found(sql, ground):
    strays = [("queue old.mail", "has no consumer"), ("binding a -> b", "nobody declares it")]
    assert await keys(sql, ground, "topology", strays=lambda: strays) == sorted(strays)


def test_a_consumer_of_a_log_that_is_here_has_one_and_any_other_has_none():
    from postroad.consume import consumer_of

    seen = consumer_of(see)
    assert "reconcile.seen.handled" in [one.name for one in built_in([seen], owned=["flights"], strays=None)]
    assert "reconcile.seen.handled" not in [one.name for one in built_in([seen], owned=[], strays=None)]


# --- occurrences against what the schedule should have made -----------------------------------------------------------


async def planned(sql, *, lacking: int = 0):
    """A schedule of each minute that has come to a cursor, and its occurrences but for some."""
    cursor = datetime.now(UTC).replace(second=0, microsecond=0)
    (schedule,) = await sql.fetch(
        "INSERT INTO schedule (name, app, definition, release, cursor, created_at, changed_at)"
        " VALUES ('reports.minutely', 'reports', $1::jsonb, 1, $2, $3, $3) RETURNING id",
        DEFINITION, cursor, cursor - timedelta(minutes=10, seconds=30),
    )  # fmt: skip
    dues = [cursor - timedelta(minutes=back) for back in range(11)]
    for due in dues[lacking:]:
        await sql.execute(
            "INSERT INTO occurrence (schedule, due, kind, key, state, start_at, revision)"
            " VALUES ($1, $2, 'scheduled', $3, 'succeeded', $2, 1)",
            schedule["id"], due, f"sched:{schedule['id']}:{due.isoformat()}",
        )  # fmt: skip
    return dues


def definition() -> str:
    import json

    from postroad.clock import minutes
    from postroad.schedules.registry import _definition
    from postroad.schedules.schedule import Schedule
    from reconcile.airport import Request, nightly

    each = Schedule("reports.minutely", job=nightly, every=minutes(1), args=lambda due: Request())
    return json.dumps(_definition(each))


DEFINITION = definition()


async def test_occurrences_that_a_schedule_should_have_made_and_has_not_are_found(sql, ground):
    dues = await planned(sql, lacking=2)
    found = [key for key, _ in await keys(sql, ground, "schedules")]
    assert found == [f"reports.minutely {due:%Y-%m-%dT%H:%M:%S.%fZ}" for due in sorted(dues[:2])]


async def test_where_each_has_its_row_there_is_none(sql, ground):
    await planned(sql)
    found = await check(ground, of("schedules"))
    assert (found.drift, found.compared) == (0, 11)


async def test_what_a_person_did_since_explains_what_is_left_out(sql, ground):
    await planned(sql, lacking=2)
    await sql.execute(
        "INSERT INTO audit (by, act, subject, items) VALUES ('ada', 'schedule.resume', 'reports.minutely', 1)"
    )
    assert await keys(sql, ground, "schedules") == []
