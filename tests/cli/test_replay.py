"""`postroad replay`: what it counts, starts, tells and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.test_commands import document, one_line
from cli.test_events import logged
from cli.test_work import Table, postroad
from postroad.runtime.exits import Exit

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

PLACED, BILLING = "orders.order.placed", "billing.orders"
ALL = ("replay", "start", "--all", "--to", BILLING)
DO = (*ALL, "--reason", "lost", "--yes")


@pytest.fixture
def table(postgres: Postgres, database: str, runtime_url: str) -> Table:
    """A database with a consumer that subscribes to one type, over PostgreSQL alone."""
    made = Table(postgres, database, runtime_url)
    made.given["POSTROAD_BROKER_URL"] = "postgres:"
    made.execute(f"INSERT INTO postroad.subscription VALUES ('{BILLING}', '{PLACED}')")
    return made


def test_a_dry_run_says_how_many_how_old_what_is_gone_and_what_would_be_ignored(table: Table) -> None:
    table.execute("UPDATE postroad.installation SET created_at = now() - interval '10 days'")
    first, _ = logged(table, "a", days=2), logged(table, "b")
    table.execute(f"INSERT INTO postroad.inbox VALUES ('{BILLING}', '{first}', 'handled')")
    table.execute(f"INSERT INTO postroad.inbox_mark VALUES ('{BILLING}', now() - interval '1 day')")
    found = table.work(*ALL, "--dry-run")
    assert (found["count"], found["redacted"], found["handled"], found["past"]) == (2, 0, 1, 0)
    assert 2 * 86400 - 60 < found["oldest_seconds"] < 2 * 86400 + 600
    assert [(one["type"], one["count"]) for one in found["types"]] == [(PLACED, 2)]
    assert [(one["kept_days"], one["count"]) for one in found["dropped"]] == [(7, 3)]
    logged(table, "c", days=3)
    shown = table.text(*ALL, "--dry-run")
    assert "replay to billing.orders: 3 events, staged from" in shown
    assert "gone: 3 days" in shown
    assert "1 of them would be ignored as handled, 1 quarantined" in shown
    assert table.work("replay", "list") == []


def test_the_consumers_own_database_is_asked_where_it_is_named(table: Table, postgres: Postgres) -> None:
    table.given["POSTROAD_BROKER_URL"] = "amqp://nowhere"
    event = logged(table, "a")
    words = (*ALL, "--type", PLACED, "--dry-run")
    assert "not known here; give --consumer-database" in table.text(*words)
    assert table.work(*words)["handled"] is None
    url = table.given["POSTROAD_DATABASE_URL"]
    table.execute(f"INSERT INTO postroad.inbox VALUES ('{BILLING}', '{event}', 'handled')")
    assert table.work(*words, "--consumer-database", url)["handled"] == 1
    table.refused(
        *words, "--consumer-database", url, "--consumer-schema", "other", said=("schema", "PR202"), code=Exit.SCHEMA
    )


def test_started_shown_stopped_resumed_and_recorded(table: Table) -> None:
    event = logged(table, "secret-key")
    made = table.work(*DO, "--rate", "50/s", "--hold", "--key", "secret-key")
    assert (made["number"], made["state"], made["total"], made["rate"], made["by"]) == (1, "stopped", 1, 50.0, "ada")
    assert "replay 1 is stopped: 0 of 1 sent to billing.orders, at 50/s" in table.text("replay", "show", "1")
    assert "replay 1 runs" in table.text("replay", "resume", "1", "--rate", "20")
    assert table.work("replay", "show", "1")["rate"] == 20.0
    assert "replay 1 is stopped" in table.text("replay", "stop", "1", "--reason", "enough")
    listed = table.text("replay", "list")
    assert listed.startswith("1 replay\n")
    assert "lost" in listed
    [found] = table.work("replay", "list")
    assert (found["id"], found["chosen"]["keys"], found["target"]) == (made["id"], ["secret-key"], BILLING)
    acts = table.work("audit", "--act", "replay.")
    assert [(act["act"], act["subject"], act["reason"]) for act in acts] == [
        ("replay.stop", "1", "enough"), ("replay.resume", "1", None), ("replay.start", "1", "lost"),
    ]  # fmt: skip
    assert "secret-key" not in table.text("audit")
    assert str(event) not in listed


def test_a_consumer_is_let_run_a_replay_again(table: Table) -> None:
    event = logged(table, "a")
    table.work(*DO, "--hold")
    words = ("replay", "rehandle", "1", "--consumer", BILLING, "--reason", "rebuilt")
    table.refused(*words, "--yes", said=("no mark of consumer", "PR115"))
    table.execute(f"INSERT INTO postroad.inbox VALUES ('{BILLING}', '{event}', 'handled')")
    assert "1 of its events have a mark now" in table.text(*words, "--dry-run")
    done = table.work(*words, "--yes")
    assert (done["handled"], done["new"]) == (1, True)
    assert table.work("replay", "rehandle", done["replay"], *words[3:], "--yes")["new"] is False
    assert [act["act"] for act in table.work("audit", "--act", "replay.rehandle")] == ["replay.rehandle"]


def test_what_cannot_be_is_one_line(table: Table) -> None:
    logged(table, "a")
    for words, said in [
        (("replay", "start", "--to", BILLING), "say which events"),
        (("replay", "start", "--all"), "say who gets them"),
        ((*ALL, "--to-all"), "say who gets them"),
        ((*ALL, "--yes"), "--reason"),
        ((*ALL, "--id", "seven", "--dry-run"), "not the id of an event"),
        ((*ALL, "--since", "yesterday", "--dry-run"), "--since"),
        ((*ALL, "--version", "2147483648", "--dry-run"), "--version"),
        ((*ALL, "--key", "\udcff", "--dry-run"), "is not text in UTF-8"),
        ((*DO, "--id", "ffffffff-ffff-7fff-bfff-ffffffffffff"), "the log holds no event that was asked for"),
        (
            ("replay", "rehandle", "9" * 20, "--consumer", BILLING, "--reason", "r"),
            "neither the number of a replay nor its id",
        ),
        ((*ALL, "--since", "1h", "--until", "2h", "--dry-run"), "--until '2h' is not after --since '1h'"),
        ((*ALL, "--occurred-since", "1h", "--occurred-until", "1d"), "is not after --occurred-since '1h'"),
        ((*DO, "--rate", "0"), "not a rate"),
        ((*DO, "--key", "nobody"), "the log holds no event that was asked for"),
        ((*ALL, "--type", "orders.order.lost", "--dry-run"), "does not subscribe to orders.order.lost"),
        (("replay", "start", "--all", "--to", "typo", "--dry-run"), "subscribes to nothing here"),
        (("replay", "show", "7"), "there is no replay 7"),
        (("replay", "stop", "7"), "there is no replay 7"),
        (
            ("replay", "rehandle", "x", "--consumer", BILLING, "--reason", "r"),
            "neither the number of a replay nor its id",
        ),
    ]:
        table.refused(*words, said=(said,))
    table.work(*DO)
    table.refused("replay", "resume", "1", said=("replay 1 is running: there is nothing to resume", "PR115"))
    asked = postroad(*ALL, "--reason", "r", **table.given)
    assert (asked.returncode, "1 event" in asked.stdout, "--yes" in asked.stderr) == (Exit.USAGE, True, True)
    given = {**table.given, "POSTROAD_BROKER_URL": "amqp://nowhere"}
    one_line(postroad(*ALL, "--dry-run", **given), Exit.USAGE, "give --type, or POSTROAD_MANAGEMENT_URL")


def test_what_is_erased_is_neither_ignored_nor_quarantined(table: Table) -> None:
    event = logged(table, "a", days=2)
    logged(table, "b", days=2)
    table.execute(f"INSERT INTO postroad.inbox VALUES ('{BILLING}', '{event}', 'handled')")
    table.execute(f"INSERT INTO postroad.inbox_mark VALUES ('{BILLING}', now() - interval '1 day')")
    for key in ("a", "b"):
        table.work("events", "redact", "--key", key, "--reason", "asked", "--yes")
    found = table.work(*ALL, "--dry-run")
    assert (found["count"], found["redacted"], found["handled"], found["past"]) == (2, 2, 0, 0)


def test_a_persons_key_is_erased_from_a_replay_that_is_not_done(table: Table) -> None:
    logged(table, "ada")
    logged(table, "ben")
    table.work(*DO, "--hold", "--key", "ada", "--key", "ben")
    words = ("events", "redact", "--key", "ada", "--reason", "asked")
    assert table.work(*words, "--dry-run")["replays"] == 1
    assert table.work("replay", "list")[0]["chosen"]["keys"] == ["ada", "ben"]
    assert table.work(*words, "--yes")["replays"] == 1
    assert table.work("replay", "list")[0]["chosen"]["keys"] == ["ben"]
    table.work("events", "redact", "--key", "ben", "--reason", "asked", "--yes")
    assert table.work("replay", "list")[0]["chosen"]["keys"] == []


def test_following_ends_with_the_replay(table: Table) -> None:
    logged(table, "a")
    table.work(*DO, "--hold")
    assert document(postroad("replay", "show", "1", "--follow", "--json", **table.given))["state"] == "stopped"
