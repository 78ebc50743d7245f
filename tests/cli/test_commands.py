"""The commands: what they print, as text and as one JSON document, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroad.runtime.exits import Exit
from postroad.sql.migrations import CODE_NUMBER
from postroad.testing.servers import Postgres, free_port
from runtime.processes import environment, postroad


def document(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    """The one JSON document on standard output."""
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def one_line(done: subprocess.CompletedProcess[str], code: Exit, *words: str) -> None:
    """One line on standard error, nothing on standard output."""
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("postroad: ")
    for word in words:
        assert word in done.stderr


# --- the whole ------------------------------------------------------------------------------------------------------


def test_the_version() -> None:
    done = postroad("--version")
    assert (done.returncode, done.stdout.strip()) == (0, "0.1.0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["relay", "idempotent consumer", "dead letters"]), (("run",), ["relay", "--only", "work (jobs and"]),
        (("quarantine",), ["dead letters", "poison"]), (("dlq", "list"), ["dead letters"]),
        (("migrate",), ["--sql", "--runtime-role"]), (("maintain",), ["partitions"]),
        (("doctor",), ["changes nothing"]),
        (("topology",), ["apply", "verify", "show"]), (("catalog",), ["show"]), (("demo",), ["--csv", "--chaos"]),
    ],
)  # fmt: skip
def test_help_speaks_the_words_of_the_field(arguments: tuple[str, ...], words: list[str]) -> None:
    done = postroad(*arguments, "--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.replace("│", " ").split())
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fly",), ["fly", "--help"]), (("run",), ["MODULE:APP"]), (("migrate", "--no"), ["--no"]),
        (("quarantine", "list", "--limit", "x"), ["--limit"]), (("topology", "show", "a:b", "c"), ["c"]),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line(arguments: tuple[str, ...], words: list[str]) -> None:
    one_line(postroad(*arguments), Exit.USAGE, *words)


@pytest.mark.parametrize("arguments", [(), ("topology",), ("quarantine",)])
def test_a_command_that_is_missing_is_answered_by_the_help_alone(arguments: tuple[str, ...]) -> None:
    done = postroad(*arguments)
    assert done.returncode == Exit.USAGE
    assert "Usage: " in done.stdout + done.stderr
    assert "NoArgs" not in done.stdout + done.stderr


@pytest.mark.parametrize(("lines", "place"), [("x = 1\n\ndef f(:\n", "syn.py:3"), ("if x:\nx\n", "syn.py:2")])
def test_a_module_that_python_cannot_read_is_named_with_its_line(tmp_path: Path, lines: str, place: str) -> None:
    (tmp_path / "syn.py").write_text(lines)
    done = postroad("run", "syn:app", PYTHONPATH=str(tmp_path))
    one_line(done, Exit.USAGE, "module 'syn' cannot be imported", f"Error in {place}", "PR107")


def test_the_command_line_imports_neither_drivers_nor_servers_before_it_needs_them() -> None:
    heavy = "{'asyncpg', 'pika', 'uvloop', 'postroad.demo.command', 'postroad.runtime.app'}"
    code = f"import sys, postroad.cli.commands as c; c.build(); print(sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_internal_error_is_one_line_and_its_traceback_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys; from postroad.runtime import operations; import postroad.cli as cli\n"
        "def broken(): raise ValueError('secret')\n"
        "operations.database_settings = broken; sys.argv = ['postroad', 'maintain']; cli.main()"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, check=False)
    one_line(done, Exit.INTERNAL, "internal error", "ValueError", "POSTROAD_DEBUG=1")
    assert "secret" not in done.stderr
    done = subprocess.run(run, env=environment(POSTROAD_DEBUG="1"), capture_output=True, text=True, check=False)
    assert done.returncode == Exit.INTERNAL
    assert "Traceback" in done.stderr


# --- the schema -----------------------------------------------------------------------------------------------------


def test_migrate_says_what_it_applied_and_is_safe_to_repeat(empty_database: str) -> None:
    given = {"POSTROAD_DATABASE_URL": empty_database, "POSTROAD_SCHEMA": "road"}
    every = list(range(1, CODE_NUMBER + 1))
    assert document(postroad("migrate", "--json", **given)) == {"schema": "road", "applied": every}
    assert document(postroad("migrate", "--json", **given)) == {"schema": "road", "applied": []}
    assert postroad("migrate", **given).stdout == "schema road: up to date\n"


def test_migrate_prints_sql_that_does_the_same(postgres: Postgres, empty_database: str, runtime_url: str) -> None:
    done = postroad("migrate", "--sql", POSTROAD_RUNTIME_ROLE="pr_runtime", POSTROAD_AUTHOR_ROLE="pr_author")
    assert done.returncode == 0
    name = empty_database.rpartition("/")[2]
    postgres.execute(done.stdout, database=name)
    url = postgres.url(name, "pr_runtime")
    findings = document(postroad("doctor", "--json", POSTROAD_DATABASE_URL=url))["findings"]
    assert {one["name"]: one["severity"] for one in findings}["database.rights"] == "ok"


def test_migrate_prints_its_sql_as_a_json_document_too() -> None:
    plain = postroad("migrate", "--sql", "--author-role", "pr_author", POSTROAD_SCHEMA="road").stdout
    shown = document(postroad("migrate", "--sql", "--json", "--author-role", "pr_author", POSTROAD_SCHEMA="road"))
    assert shown == {"schema": "road", "sql": plain.rstrip("\n")}


def test_migrate_as_a_role_that_may_not_is_one_line(postgres: Postgres, empty_database: str, author_url: str) -> None:
    url = postgres.url(empty_database.rpartition("/")[2], "pr_author")
    one_line(postroad("migrate", POSTROAD_DATABASE_URL=url), Exit.REFUSED, "owns", "PR303")


def test_migrate_for_a_role_that_does_not_exist_is_one_line(empty_database: str) -> None:
    done = postroad("migrate", "--runtime-role", "nobody_here", POSTROAD_DATABASE_URL=empty_database)
    one_line(done, Exit.USAGE, "role 'nobody_here' does not exist", "create it")
    done = postroad(
        "migrate", "--runtime-role", "pr_runtime", "--author-role", "no_author", POSTROAD_DATABASE_URL=empty_database
    )
    one_line(done, Exit.USAGE, "role 'no_author' does not exist")
    assert "pr_runtime" not in done.stderr


def test_maintain_makes_partitions_ahead(database: str) -> None:
    done = document(postroad("maintain", "--json", POSTROAD_DATABASE_URL=database))
    assert done["days_ahead"] >= 14
    assert document(postroad("maintain", "--json", POSTROAD_DATABASE_URL=database))["made"] == 0


def test_maintain_says_what_it_dropped_and_what_it_kept_and_why(
    postgres: Postgres, database: str, runtime_url: str
) -> None:
    name = database.rpartition("/")[2]
    days = "(now() AT TIME ZONE 'UTC')::date - "
    for ago in (8, 9):
        postgres.execute(f"SELECT postroad.make_partition('event_7', {days}{ago})", database=name)
    postgres.execute(
        "INSERT INTO postroad.outbox (shard, place, seq, recorded, retention, route)"
        f" VALUES (0, 1, 1, ({days}8)::timestamp AT TIME ZONE 'UTC', 7, 'a.b.done.v1');"
        "INSERT INTO postroad.inbox VALUES ('c', gen_random_uuid(), 'handled', NULL, now() - interval '9 days'),"
        " ('c', gen_random_uuid(), 'handled', NULL, now() - interval '6 days');"
        "INSERT INTO postroad.lease (name, expires_at, ttl) SELECT n, now() - interval '25 hours', '10 s'"
        " FROM unnest(ARRAY['worker:a', 'worker:b', 'dispatcher:c', 'shard:00']) AS n;"
        "INSERT INTO postroad.work (id, queue, kind, state, worker, body, content_type)"
        " VALUES (1, 'q', 'retry', 'running', 'worker:b', '', '')",
        database=name,
    )
    given = {"POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_INBOX_DAYS": "7"}
    done = document(postroad("maintain", "--json", **given))
    today = datetime.now(UTC).date()
    assert done["dropped"] == [f"event_7_{today - timedelta(days=9):%Y%m%d}"]
    assert done["needed"] == [{"name": f"event_7_{today - timedelta(days=8):%Y%m%d}", "why": "outbox"}]
    assert (done["held"], done["events"], done["marks"], done["leases"]) == ([], 0, 1, 2)
    assert datetime.fromisoformat(done["marks_before"]) < datetime.now(UTC) - timedelta(days=7)
    shown = postroad("maintain", **given).stdout.splitlines()
    assert shown[1] == "expired: 0 partitions dropped"
    assert "waits to be sent" in shown[2]
    assert "0 inbox marks before" in shown[3]
    left = postgres.execute("SELECT name FROM postroad.lease ORDER BY 1", database=name)
    assert [row[0] for row in left] == ["shard:00", "worker:b"]


@pytest.mark.parametrize("command", [("maintain",), ("quarantine", "list"), ("migrate",)])
def test_settings_that_are_missing_are_one_line(command: tuple[str, ...]) -> None:
    one_line(postroad(*command), Exit.SETTINGS, "POSTROAD_DATABASE_URL", "PR201")


@pytest.mark.parametrize("command", [("maintain",), ("quarantine", "list"), ("migrate",)])
def test_a_database_that_is_away_is_one_line(command: tuple[str, ...]) -> None:
    url = f"postgresql://u:hush@127.0.0.1:{free_port()}/x"
    done = postroad(*command, POSTROAD_DATABASE_URL=url)
    one_line(done, Exit.UNAVAILABLE, "POSTROAD_DATABASE_URL", "PR301")
    assert "hush" not in done.stderr


@pytest.mark.parametrize("command", [("maintain",), ("quarantine", "list")])
def test_a_schema_that_is_missing_is_one_line(command: tuple[str, ...], empty_database: str) -> None:
    one_line(postroad(*command, POSTROAD_DATABASE_URL=empty_database), Exit.SCHEMA, "postroad migrate", "PR202")


# --- quarantine -----------------------------------------------------------------------------------------------------


def test_the_quarantine_is_listed_without_bodies(postgres: Postgres, database: str, runtime_url: str) -> None:
    postgres.execute(
        "INSERT INTO postroad.quarantine (kind, queue, key, digest, class, code, fingerprint, error_type, reason,"
        " event_type, body, content_type)"
        " SELECT 'delivery', q, k, '\\x00', 'quarantine', 'PR505', 'f', 'E', 'no fit [x]', 'a.b.c',"
        " 'hush', 'application/json' FROM (VALUES ('one', 'k1'), ('one', 'k2'), ('two', 'k3')) AS v (q, k)",
        database=database.rpartition("/")[2],
    )
    given = {"POSTROAD_DATABASE_URL": runtime_url}
    rows = document(postroad("quarantine", "list", "--json", **given))
    assert {(row["queue"], row["key"]) for row in rows} == {("one", "k1"), ("one", "k2"), ("two", "k3")}
    assert all(row["code"] == "PR505" and row["size"] == 4 for row in rows)
    assert "hush" not in json.dumps(rows)
    assert len(document(postroad("dlq", "list", "--json", "--queue", "one", "--limit", "1", **given))) == 1
    assert document(postroad("dlq", "list", "--json", "--queue", "none", **given)) == []
    shown = postroad("quarantine", "list", **given)
    assert "3 in quarantine" in shown.stdout
    assert shown.stdout.splitlines().count("    no fit [x]") == 3, "the reason stands on a line of its own"
    assert "hush" not in shown.stdout


KEPT = (
    "INSERT INTO postroad.quarantine (kind, queue, key, digest, class, code, fingerprint, error_type, reason, body,"
    " content_type) VALUES ('delivery', 'one', {key}, '', 'quarantine', 'PR503', 'f', 'E', 'r', 'hush', 'x')"
    " RETURNING id"
)


def test_a_row_is_released_and_says_where_it_went(postgres: Postgres, database: str, runtime_url: str) -> None:
    name, given = database.rpartition("/")[2], {"POSTROAD_DATABASE_URL": runtime_url}
    first, second = (postgres.execute(KEPT.format(key="gen_random_uuid()"), database=name)[0][0] for _ in range(2))
    done = document(postroad("quarantine", "retry", str(first), "--by", "ada", "--json", **given))
    assert done.items() >= {"id": int(first), "kind": "delivery", "queue": "one", "to": "work", "by": "ada"}.items()
    shown = postroad("dlq", "retry", str(second), **given, LOGNAME="bob").stdout
    assert shown.startswith(f"row {second} of one: released to the work as ")
    assert shown.endswith("by bob\n")
    assert document(postroad("quarantine", "list", "--json", **given)) == []
    rows = postgres.execute("SELECT resolution, resolved_by FROM postroad.quarantine ORDER BY id", database=name)
    assert [tuple(row) for row in rows] == [("retried", "ada"), ("retried", "bob")]


def test_a_row_that_cannot_be_released_is_one_line(postgres: Postgres, database: str, runtime_url: str) -> None:
    given = {"POSTROAD_DATABASE_URL": runtime_url}
    row = postgres.execute(KEPT.format(key="NULL"), database=database.rpartition("/")[2])[0][0]
    one_line(postroad("quarantine", "retry", str(row), **given), Exit.USAGE, "no message key", "PR112")
    one_line(postroad("quarantine", "retry", "4711", **given), Exit.USAGE, "no row 4711", "PR112")
    one_line(postroad("quarantine", "retry", "x", **given), Exit.USAGE, "'[ID]'")


# --- topology and catalog -------------------------------------------------------------------------------------------


def test_the_topology_is_shown_without_a_broker() -> None:
    shown = document(postroad("topology", "show", "orders:app", "--json"))
    assert {queue["name"] for queue in shown["queues"]} == {"orders.book", "orders.book.dlq"}
    assert "| " in postroad("topology", "show", "orders:app", "--markdown").stdout
    assert "orders.events" in postroad("topology", "show", "orders:app").stdout


def test_the_topology_is_applied_and_verified(vhost: str) -> None:
    given = {"POSTROAD_BROKER_URL": vhost}
    lacking = document(postroad("topology", "verify", "orders:app", "--json", **given), Exit.FINDINGS)
    assert {one["name"] for one in lacking["differences"]} >= {"orders.events", "orders.book"}
    assert document(postroad("topology", "apply", "orders:app", "--json", **given))["applied"]["queues"] == 2
    assert document(postroad("topology", "apply", "orders:app", "--json", **given))["applied"]["queues"] == 2
    verified = document(postroad("topology", "verify", "orders:app", "--json", **given))
    assert verified["differences"] == []
    assert verified["note"].startswith("not checked")


def test_a_broker_that_is_away_is_one_line() -> None:
    url = f"amqp://guest:hush@127.0.0.1:{free_port()}/"
    done = postroad("topology", "apply", "orders:app", POSTROAD_BROKER_URL=url)
    one_line(done, Exit.UNAVAILABLE, "PR302")
    assert "hush" not in done.stderr


def test_the_catalog_shows_events_and_subscriptions() -> None:
    content = document(postroad("catalog", "show", "orders:app", "--json"))
    assert [(event["type"], event["version"]) for event in content["events"]] == [("orders.order.booked", 1)]
    assert [reads["type"] for reads in content["subscriptions"]] == ["orders.order.booked"]
    text = postroad("catalog", "show", "orders:app").stdout
    assert "orders.order.booked v1" in text
    assert "The order's number" in text


# --- doctor ---------------------------------------------------------------------------------------------------------


def test_the_doctor_finds_nothing_wrong_with_a_sound_installation(runtime_url: str, vhost: str) -> None:
    given = {
        "POSTROAD_DATABASE_URL": runtime_url, "POSTROAD_BROKER_URL": vhost, "POSTROAD_AUTHOR_ROLE": "pr_author",
    }  # fmt: skip
    document(postroad("topology", "apply", "orders:app", "--json", **given))
    report = document(postroad("doctor", "orders:app", "--json", **given))
    judged = {one["name"]: one["severity"] for one in report["findings"]}
    assert report["ok"]
    assert "error" not in judged.values()
    assert judged.items() >= {
        "database": "ok", "database.version": "ok", "database.role": "ok", "schema": "ok", "database.rights": "ok",
        "database.author": "ok", "direct": "ok", "broker": "ok", "broker.version": "ok", "broker.user": "note",
        "topology": "ok", "queue.dead-letters": "ok", "topology.bindings": "not checked",
        "queue.delivery-limit": "not checked", "broker.rights": "not checked",
    }.items()  # fmt: skip
    shown = postroad("doctor", "orders:app", **given)
    assert shown.returncode == 0
    assert "0 errors" in shown.stdout
    assert "POSTROAD_MANAGEMENT_URL is not set" in shown.stdout


def test_the_doctor_names_each_error_with_its_cost_and_remedy(author_url: str, vhost: str) -> None:
    given = {
        "POSTROAD_DATABASE_URL": author_url, "POSTROAD_BROKER_URL": vhost, "POSTROAD_PORT": "tcp://10.0.0.1:80",
        "POSTROAD_DIRECT_URL": f"postgresql://u@127.0.0.1:{free_port()}/x",
    }  # fmt: skip
    report = document(postroad("doctor", "orders:app", "--json", **given), Exit.FINDINGS)
    assert not report["ok"]
    errors = {one["name"] for one in report["findings"] if one["severity"] == "error"}
    assert errors == {"database.rights", "direct", "topology"}
    told = [one for one in report["findings"] if one["severity"] in {"error", "warning", "note"}]
    assert all(one["found"] and one["lost"] and one["remedy"] for one in told)
    assert "settings" in {one["name"] for one in told if one["severity"] == "warning"}
    shown = postroad("doctor", "orders:app", **given)
    assert shown.returncode == Exit.FINDINGS
    assert "lost: " in shown.stdout
    assert "do:   " in shown.stdout


def test_the_doctor_of_a_database_that_is_away_ends_with_one_and_no_traceback() -> None:
    url = f"postgresql://u:hush@127.0.0.1:{free_port()}/x"
    done = postroad("doctor", "--json", POSTROAD_DATABASE_URL=url)
    report = document(done, Exit.FINDINGS)
    assert {one["name"] for one in report["findings"] if one["severity"] == "error"} == {"database", "direct"}
    assert "hush" not in done.stdout + done.stderr
