"""The doctor on what goes on in a real database, of which each test breaks one thing; and its pure judgements."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from postroad.clock import hours
from postroad.consume import consumer_of
from postroad.runtime.doctor import Limits
from postroad.runtime.doctor.upkeep import judge_commit, judge_inbox, judge_unserved, judge_waiting, span
from postroad.testing.servers import PostgresServer
from runtime.doctor.patients import AT_ONCE, book, holding, severity
from runtime.processes import postroad

WRITES = ("BEGIN", "SELECT pg_current_xact_id()")


# --- partitions -----------------------------------------------------------------------------------------------------


def test_a_missing_partition_is_warned_of(examine, sql):
    ((tomorrow,),) = sql("SELECT to_char(now() AT TIME ZONE 'UTC' + interval '1 day', 'YYYYMMDD')")
    sql(f"DROP TABLE postroad.event_7_{tomorrow}")
    (finding,) = examine()["partitions.ahead"]
    assert (finding.severity, finding.found) == ("warning", "1 days ahead")


def test_partitions_of_a_week_ahead_are_well(examine):
    assert severity(examine(limits=Limits(days_ahead=3))["partitions.ahead"]) == "ok"


STAGE = (
    "INSERT INTO postroad.event (seq, id, type, version, occurred, recorded, correlation, retention, envelope)"
    " VALUES (1, gen_random_uuid(), 'a.b.c', 1, now(), now() + interval '300 days', 'c', 7, '')"
)


def test_rows_in_a_default_partition_are_warned_of(examine, sql):
    sql(STAGE)
    (finding,) = examine()["partitions.default"]
    assert finding.severity == "warning"
    assert "event_7_rest" in finding.found


# --- transactions ---------------------------------------------------------------------------------------------------


def test_a_transaction_held_open_is_named_with_its_application(examine, runtime_url):
    with holding(runtime_url, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"):
        found = examine()["vacuum.horizon"]
    assert any(one.severity == "warning" and "'forgotten'" in one.found for one in found)


def test_a_young_transaction_is_well(examine, runtime_url):
    with holding(runtime_url, *WRITES):
        found = examine(limits=Limits())
    assert severity(found["vacuum.horizon"]) == "ok"


@pytest.mark.heavy
def test_a_transaction_that_has_written_holds_the_dispatch_floor_back_from_any_database(examine, own_postgres):
    url, other = _installed(own_postgres)
    assert severity(examine(url)["dispatch.floor"]) == "ok"
    with holding(own_postgres.url("postgres", "pr_runtime"), *WRITES):
        (finding,) = examine(url)["dispatch.floor"]
        assert finding.severity == "warning"
        assert "'forgotten'" in finding.found
        assert severity(examine(url, limits=Limits())["dispatch.floor"]) == "ok"
    # Of another role's session the age is hidden, and said so.
    with holding(own_postgres.url("postgres"), *WRITES):
        (finding,) = examine(url)["dispatch.floor"]
        assert finding.severity == "not checked"
        assert "pg_read_all_stats" in finding.found
    assert other


@pytest.mark.heavy
def test_prepared_transactions_and_replication_slots_hold_vacuum_back(examine):
    with PostgresServer(settings={"max_prepared_transactions": "2", "wal_level": "logical"}) as server:
        server.add_role("pr_runtime")
        server.add_role("pr_author")
        url, name = _installed(server)
        with holding(server.url(name), *WRITES, "PREPARE TRANSACTION 'left'"):
            found = examine(url)
        assert any("prepared transaction left" in one.found for one in found["vacuum.horizon"])
        assert "prepared transaction left" in found["dispatch.floor"][0].found
        server.execute("ROLLBACK PREPARED 'left'", database=name)
        assert severity(examine(url)["vacuum.horizon"]) == "ok"


def _installed(server: PostgresServer) -> tuple[str, str]:
    """A database on a server of its own, migrated; the runtime role's URL, and its name."""
    name = f"doctor_{uuid4().hex[:8]}"
    url = server.create_database(name)
    given = {"POSTROAD_RUNTIME_ROLE": "pr_runtime", "POSTROAD_AUTHOR_ROLE": "pr_author"}
    assert postroad("migrate", POSTROAD_DATABASE_URL=url, **given).returncode == 0
    return server.url(name, "pr_runtime"), name


# --- durability -----------------------------------------------------------------------------------------------------


def test_a_role_whose_commits_do_not_wait_is_warned_of(examine, sql, database):
    name = database.rpartition("/")[2]
    sql(f'ALTER ROLE pr_runtime IN DATABASE "{name}" SET synchronous_commit = off')
    (finding,) = examine()["durability.commit"]
    assert finding.severity == "warning"
    assert "off" in finding.found


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_may_lose_its_files_is_an_error(setting):
    row = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", setting: "off"}
    assert judge_commit(row).severity == "error"


@pytest.mark.heavy
def test_a_standby_that_is_not_waited_for_is_warned_of(examine, own_postgres):
    url, _ = _installed(own_postgres)
    assert severity(examine(url)["durability.standby"]) == "ok"
    with holding(own_postgres.url("postgres"), replication="true"):
        (finding,) = examine(url)["durability.standby"]
        assert finding.severity == "warning"
        assert "1 connected, asynchronous" in finding.found
        own_postgres.execute("ALTER SYSTEM SET synchronous_standby_names = 'forgotten'")
        own_postgres.execute("ALTER ROLE pr_runtime SET synchronous_commit = local; SELECT pg_reload_conf()")
        assert _settled(examine, url).found == "synchronous_commit is local: no standby is waited for"


def _settled(examine, url):
    """What is found once the server has read its configuration again."""
    for _ in range(100):
        (finding,) = examine(url)["durability.standby"]
        if "asynchronous" not in finding.found:
            return finding
    raise AssertionError(finding)


# --- windows and what waits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "expected"), [(hours(168), "ok"), (hours(24), "error"), (hours(1), "error")])
def test_inbox_marks_must_outlive_the_retry_budget(window, expected):
    finding = judge_inbox(window, [consumer_of(book)])
    assert finding.severity == expected
    assert expected == "ok" or "'orders.book'" in finding.found


WAITS = (
    "INSERT INTO postroad.outbox (shard, place, seq, recorded, retention, route, attempts, reason) VALUES"
    " (3, 1, 1, now() - interval '1 hour', 7, 'a.b.c.v1', {attempts}, {reason})"
)


def test_events_that_wait_too_long_are_warned_of(examine, sql):
    sql(WAITS.format(attempts=0, reason="NULL"))
    (finding,) = examine(limits=Limits())["outbox.waiting"]
    assert (finding.severity, finding.found) == ("warning", "1, the oldest for 60 minutes")
    assert severity(examine(limits=Limits(waiting_age=timedelta(hours=2)))["outbox.waiting"]) == "ok"


def test_refused_events_are_told_with_route_attempts_and_reason(examine, sql):
    sql(WAITS.format(attempts=3, reason="'no queue'"))
    (finding,) = examine()["outbox.refused"]
    assert (finding.severity, finding.found) == ("warning", "1 on a.b.c.v1, up to 3 attempts: no queue")


# --- work of which nothing runs -------------------------------------------------------------------------------------

READY = """
INSERT INTO postroad.work (id, queue, kind, state, body, content_type, worker, token, run_at) VALUES
    ((SELECT coalesce(max(id), 0) + 1 FROM postroad.work), '{queue}', '{kind}', '{state}', '', 'x', {worker}, {token},
     now() - interval '{age} s')
"""


def ready(sql, queue, *, age, kind="job", state="ready"):
    held = ("'worker:1'", "7") if state == "running" else ("NULL", "NULL")
    sql(READY.format(queue=queue, kind=kind, state=state, age=age, worker=held[0], token=held[1]))


def test_a_queue_that_nobody_serves_is_named(examine, sql):
    assert severity(examine()["work.waiting"]) == "ok"
    ready(sql, "x.orphan", age=148)
    (finding,) = examine(limits=Limits())["work.waiting"]
    assert finding.severity == "warning"
    assert finding.found.startswith("queue x.orphan: 1 ready for 2 minutes, nothing runs it; no App given here")
    assert "App(jobs=...)" in finding.remedy
    sql("INSERT INTO postroad.queue (name, paused_at) VALUES ('x.orphan', now())")
    (finding,) = examine(limits=Limits())["work.waiting"]
    assert finding.found.endswith("it is paused")


def test_what_is_young_or_runs_or_is_a_delivery_is_no_orphan(examine, sql):
    ready(sql, "x.young", age=20)
    ready(sql, "x.busy", age=500)
    ready(sql, "x.busy", age=500, state="running")
    ready(sql, "x.far:deliveries", age=500, kind="delivery")
    assert severity(examine(limits=Limits())["work.waiting"]) == "ok"


def test_a_queue_of_the_app_itself_may_wait_longer():
    def judged(age, declared):
        rows = [{"queue": "a.b", "ready": 2, "seconds": age, "paused": False}]
        return severity(judge_unserved(rows, declared, Limits()))

    ours = frozenset({"a.b"})
    assert [judged(61, frozenset()), judged(61, ours), judged(301, ours)] == ["warning", "ok", "warning"]


def test_an_outbox_of_many_is_counted_up_to_a_bound():
    assert judge_waiting(100_001, 1.0, AT_ONCE).found == "more than 100000, the oldest for 1 seconds"


def test_what_lies_in_quarantine_is_warned_of(examine, sql):
    sql(
        "INSERT INTO postroad.quarantine (kind, queue, digest, class, code, fingerprint, error_type, reason, body,"
        " content_type, quarantined_at) VALUES ('delivery', 'q', '', 'quarantine', 'PR505', 'f', 'E', 'r', '', 't',"
        " now() - interval '3 days')"
    )
    (finding,) = examine()["quarantine.open"]
    assert (finding.severity, finding.found) == ("warning", "1, the oldest for 3 days")
    sql("UPDATE postroad.quarantine SET resolved_at = now()")
    assert severity(examine()["quarantine.open"]) == "ok"


@pytest.mark.parametrize(("age", "said"), [(5, "5 seconds"), (300, "5 minutes"), (7200, "2 hours"), (1e6, "12 days")])
def test_ages_are_said_as_people_say_them(age, said):
    assert span(age) == said
