"""The doctor on how the schema is built, dead rows, renewals and windows; each test breaks one thing."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from postroad.reconcile import handled
from postroad.runtime.doctor import Limits
from postroad.runtime.doctor.structure import QUERIES, judge_dead_rows, judge_windows
from postroad.sql.migrations.shape import shape
from reconcile.airport import see
from runtime.doctor.patients import severity

WELL = ("schema.build", "schema.indexes", "vacuum.dead-rows", "leases.renewal")


def test_a_fresh_database_is_built_as_the_migrations_make_it(examine):
    found = examine()
    assert {name: severity(found[name]) for name in WELL} == dict.fromkeys(WELL, "ok")


async def test_what_is_read_from_the_migrations_is_what_they_make(database):
    sql, made = await asyncpg.connect(database), shape("postroad")
    columns = {
        (row["name"], row["column"]): row["type"]
        for row in await sql.fetch(QUERIES.text("columns", "postroad"), "postroad")
    }
    assert {(table, column): kind for table, each in made.tables.items() for column, kind in each.items()} == columns
    indexes = await sql.fetch(QUERIES.text("indexes", "postroad"), "postroad")
    assert made.indexes == {row["name"]: row["of"] for row in indexes}
    functions = await sql.fetch(QUERIES.text("functions", "postroad"), "postroad")
    assert made.functions == {row["name"]: row["body"] for row in functions}
    await sql.close()


@pytest.mark.parametrize(
    ("change", "check", "how", "said"),
    [
        ("ALTER TABLE postroad.outbox DROP COLUMN reason", "schema.build", "error", "outbox.reason is"),
        ("ALTER TABLE postroad.drift ALTER repairs TYPE bigint", "schema.build", "error", "is bigint, not integer"),
        ("ALTER TABLE postroad.work ADD COLUMN mine int", "schema.build", "note", "not Postroad's: work.mine"),
        ("DROP FUNCTION postroad.expire_rest(text, integer)", "schema.build", "error", "function expire_rest is"),
        (
            ("CREATE OR REPLACE FUNCTION postroad.kept_days(parent text) RETURNS integer LANGUAGE sql IMMUTABLE"
            " SET search_path = pg_catalog, pg_temp AS 'SELECT 1'"), "schema.build", "error", "kept_days was changed",
        ),
        ("DROP INDEX postroad.outbox_waiting", "schema.indexes", "error", "missing: outbox_waiting"),
        ("CREATE INDEX mine ON postroad.inbox (at)", "schema.indexes", "note", "not Postroad's: mine on inbox"),
        ("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'postroad.work_ready'::regclass",
         "schema.indexes", "error", "not valid: work_ready"),
        (("INSERT INTO postroad.lease (name, holder, expires_at, ttl) VALUES ('reports', gen_random_uuid(),"
         " now() + interval '5 s', '60 s')"), "leases.renewal", "warning", "not renewed in time: reports"),
        (("INSERT INTO postroad.lease (name, holder, expires_at, ttl) VALUES ('worker:1', gen_random_uuid(),"
         " now() - interval '5 m', '30 s'); INSERT INTO postroad.work (id, queue, kind, state, worker, token, body,"
         " content_type) VALUES (1, 'q', 'job', 'running', 'worker:1', 1, '', 'x')"),
         "leases.renewal", "warning", "nobody takes over: worker:1 for"),
        (("INSERT INTO postroad.lease (name, holder, expires_at, ttl) VALUES ('shard:03', gen_random_uuid(),"
         " now() - interval '5 m', '10 s'); INSERT INTO postroad.outbox (shard, place, seq, recorded, retention, route)"
         " VALUES (3, 1, 1, now(), 7, 'a.b.c.v1')"), "leases.renewal", "warning", "nobody takes over: shard:03"),
    ],
)  # fmt: skip
def test_what_was_changed_is_told(examine, sql, change, check, how, said):
    sql(change)
    (finding,) = examine()[check]
    assert (finding.severity, said in finding.found) == (how, True), finding.found


def test_a_dead_worker_under_whom_nothing_runs_is_well(examine, sql):
    sql("INSERT INTO postroad.lease (name, holder, expires_at, ttl) VALUES ('worker:1', gen_random_uuid(),"
        " now() - interval '5 m', '30 s')")  # fmt: skip
    assert severity(examine()["leases.renewal"]) == "ok"


@pytest.mark.parametrize(("live", "dead", "how"), [(10, 99, "ok"), (500, 200, "ok"), (10, 200, "warning")])
def test_dead_rows_that_outnumber_the_living_are_warned_of(live, dead, how):
    row = {"name": "outbox", "live": live, "dead": dead, "seconds": 7200.0}
    (finding,) = judge_dead_rows([row], Limits(dead_rows=100))
    assert finding.severity == how
    assert how == "ok" or finding.found == "outbox: 200 dead, 10 live, vacuumed 2 hours ago"


def test_an_inbox_that_is_compared_further_back_than_its_marks_is_an_error():
    assert judge_windows(timedelta(days=7), [handled(see)]).severity == "ok"
    finding = judge_windows(timedelta(days=2), [handled(see)])
    assert finding.severity == "error"
    assert finding.found == "marks are kept for 2 days, but reconcile.seen.handled goes back 7 days"
