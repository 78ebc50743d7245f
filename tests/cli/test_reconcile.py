"""``postroad reconcile``: what its commands print, change and refuse, and how they end."""

from __future__ import annotations

import pytest

from cli.test_commands import document, one_line
from cli.test_work import Table, postroad
from postroad.runtime.exits import Exit

APP = "ledgers:app"
ONLY = ("--only", "ledgers.applied")


@pytest.fixture
def table(postgres, database, runtime_url) -> Table:
    table = Table(postgres, database, runtime_url)
    for name in ("booked", "applied"):
        table.execute(f'CREATE TABLE {name} (key text COLLATE "C" PRIMARY KEY, amount int)')
        table.execute(f"GRANT ALL ON {name} TO pr_runtime")
        table.execute(f"INSERT INTO {name} SELECT 'k' || n, n FROM generate_series(1, 9) AS n")
    return table


def tamper(table: Table) -> None:
    table.execute("DELETE FROM applied WHERE key = 'k2'")
    table.execute("UPDATE applied SET amount = -1 WHERE key = 'k3'")
    table.execute("INSERT INTO applied VALUES ('k33', 7)")


def run(table: Table, *arguments: str, code: int = 0, **given: str):
    return document(postroad("reconcile", *arguments, "--json", **table.given, **given), code)


def test_what_agrees_is_told_and_ends_well(table):
    (found,) = run(table, "run", APP, *ONLY)
    assert (found["end"], found["compared"], found["missing"], found["pending"]) == ("complete", 9, 0, 0)
    done = postroad("reconcile", "run", APP, *ONLY, **table.given)
    assert (done.returncode, done.stdout) == (0, "ledgers.applied: 9 keys compared, no drift\n")


def test_drift_is_found_listed_repaired_and_gone(table):
    tamper(table)
    (found,) = run(table, "run", APP, *ONLY, code=1)
    assert (found["missing"], found["extra"], found["mismatched"]) == (1, 1, 1)
    rows = run(table, "drift", "ledgers.applied")
    assert [(row["key"], row["kind"]) for row in rows] == [("k2", "missing"), ("k3", "mismatched"), ("k33", "extra")]
    assert "expected" not in rows[0]
    told = run(table, "drift", "--fingerprints", "--kind", "mismatched")
    assert [(row["expected"], row["found"]) for row in told] == [("3", "-1")]
    plan = run(table, "repair", APP, "ledgers.applied", "--dry-run")
    assert (plan["dry_run"], [(one["kind"], one["count"]) for one in plan["kinds"]]) == (
        True, [("extra", 1), ("mismatched", 1), ("missing", 1)],
    )  # fmt: skip
    assert table.execute("SELECT count(*) FROM applied") == [("9",)]
    done = run(table, "repair", APP, "ledgers.applied", "--yes", "--reason", "by mistake")
    assert (done["chosen"], done["done"], done["failed"]) == (3, 3, 0)
    assert table.execute("SELECT by, act, reason FROM postroad.audit") == [("ada", "drift.repair", "by mistake")]
    (found,) = run(table, "run", APP, *ONLY)
    assert found["missing"] == found["extra"] == found["mismatched"] == 0
    assert {row["resolution"] for row in run(table, "drift", "--state", "resolved")} == {"repaired"}


def test_the_texts_say_what_is_wrong_since_when_and_what_will_be_done(table):
    tamper(table)
    done = postroad("reconcile", "run", APP, *ONLY, **table.given)
    assert "10 keys compared, 1 missing, 1 extra, 1 mismatched, the oldest since 20" in done.stdout
    listed = postroad("reconcile", "drift", **table.given).stdout
    assert listed.startswith("3 keys open\n")
    asked = postroad("reconcile", "repair", APP, "ledgers.applied", **table.given)
    assert "repair: 3 keys: 1 extra (the oldest for " in asked.stdout
    assert "there is nobody to ask; say --yes" in asked.stderr
    assert table.execute("SELECT count(*) FROM postroad.audit") == [("0",)]
    done = postroad("reconcile", "repair", APP, "ledgers.applied", "--yes", "--limit", "2", **table.given)
    assert "this run repairs 2" in done.stdout
    assert "repaired 2 of 3 keys" in done.stdout


def test_a_repair_that_fails_is_told_without_its_text(table):
    tamper(table)
    run(table, "run", APP, *ONLY, code=1)
    failed = run(table, "repair", APP, "ledgers.applied", "--yes", code=1, LEDGERS_FAIL="k3")
    assert (failed["done"], failed["failed"]) == (2, 1)
    (row,) = run(table, "drift")
    assert row["failure"].startswith("ValueError")
    assert "hush" not in row["failure"]


def test_a_list_names_the_declared_and_the_built_in_ones(table):
    names = [one["name"] for one in run(table, "list", APP)]
    assert names == ["ledgers.applied", "postroad.effects", "postroad.outbox", "postroad.schedules", "postroad.work"]
    run(table, "run", APP, *ONLY)
    (one,) = [one for one in run(table, "list", APP) if one["row"]]
    assert (one["name"], one["row"]["compared"], one["repairs"], one["limit"]) == ("ledgers.applied", 9, True, 1000)
    text = postroad("reconcile", "list", APP, **table.given).stdout
    assert text.startswith("5 reconciliations\n")
    assert "never" in text


def test_without_an_app_the_built_in_ones_run(table):
    found = run(table, "run", "--settle", "0")
    assert [(one["name"], one["missing"] + one["extra"]) for one in found] == [
        ("postroad.outbox", 0), ("postroad.work", 0), ("postroad.effects", 0), ("postroad.schedules", 0),
    ]  # fmt: skip


def test_a_persons_key_is_erased_with_her_events(table):
    tamper(table)
    run(table, "run", APP, *ONLY, code=1)
    words = ("events", "redact", "--key", "k2", "--reason", "asked for it", "--json")
    assert document(postroad(*words, "--dry-run", **table.given))["drift"] == 1
    assert [row["key"] for row in run(table, "drift")] == ["k2", "k3", "k33"]
    assert document(postroad(*words, "--yes", **table.given))["drift"] == 1
    assert [row["key"] for row in run(table, "drift")] == ["k3", "k33"]


def test_what_stands_on_the_transport_for_nobody_is_found(table):
    table.execute(
        "INSERT INTO postroad.subscription (consumer, event_type) VALUES ('orders.book', 'orders.order.lost')"
    )
    given = ("run", "orders:app", "--only", "postroad.topology")
    (found,) = run(table, *given, code=1, POSTROAD_BROKER_URL="postgres:")
    assert found["extra"] == 1
    (row,) = run(table, "drift", "--fingerprints")
    assert "orders.order.lost" in row["key"]
    names = [one["name"] for one in run(table, "list", "orders:app", POSTROAD_BROKER_URL="postgres:")]
    assert "orders.book.handled" in names


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", APP, "--only", "nobody"), Exit.USAGE, ("PR107", "no reconciliation 'nobody'", "reconcile list")),
        (("run", "ledgers:nothing"), Exit.USAGE, ("PR107", "is nothing, not an App")),
        (("run", "ledgers:app_broken", "--only", "ledgers.broken"), Exit.USAGE, ("raised UndefinedTableError",)),
        (("repair", APP, "postroad.work", "--yes"), Exit.USAGE, ("PR107", "declares no repair; give it repair=")),
        (("run", APP, "--settle", "-1"), Exit.USAGE, ("--settle",)),
        (("run", APP, "--settle", "inf"), Exit.USAGE, ("--settle",)),
        (("drift", "--kind", "wrong"), Exit.USAGE, ("wrong",)),
        (("drift", "nobody"), Exit.USAGE, ("PR107", "no reconciliation 'nobody' has run here")),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(table, words, code, said):
    one_line(postroad("reconcile", *words, "--json", **table.given), code, *said)


def test_a_stream_that_breaks_shows_no_value(table):
    done = postroad("reconcile", "run", "ledgers:app_broken", "--only", "ledgers.broken", **table.given)
    assert "what was compared so far is kept" in done.stderr
