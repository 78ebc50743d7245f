"""Every act of an operator leaves a row in the audit, with the act or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from cli.test_commands import document
from cli.test_work import Table, postroad, value
from postroad.runtime import operations, work_acts
from postroad.runtime.exits import Exit
from postroad.testing.servers import Postgres, free_port
from runtime.test_run import declare_classic

if TYPE_CHECKING:
    from postroad.testing.servers import Rabbit

DAY = '{"day":"2026-05-04"}'


@pytest.fixture
def table(postgres: Postgres, database: str, runtime_url: str) -> Table:
    return Table(postgres, database, runtime_url)


def acts(table: Table, *chosen: str) -> list[tuple[str, str, str, int]]:
    return [(one["by"], one["act"], one["subject"], one["items"]) for one in table.work("audit", *chosen)]


def test_pauses_are_recorded_once_with_their_reason_and_what_was_before(table: Table) -> None:
    table.work("queue", "pause", "reports", "--reason", "provider is down")
    table.work("queue", "pause", "reports", "--reason", "again")
    table.work("queue", "resume", "reports", "--by", "ben")
    table.work("queue", "resume", "reports")
    resumed, paused = table.work("audit")
    assert (paused["act"], paused["by"], paused["reason"]) == ("queue.pause", "ada", "provider is down")
    assert (resumed["act"], resumed["by"]) == ("queue.resume", "ben")
    assert resumed["before"]["paused_by"] == "ada"


def test_acts_on_work_and_quarantine_are_recorded(table: Table) -> None:
    cancelled, hurried, kept = table.add(), table.add("scheduled"), table.add()
    quarantined = table.into_quarantine(kept)
    table.work("work", "cancel", str(cancelled), "--reason", "stuck")
    table.work("work", "retry", str(hurried))
    table.work("quarantine", "retry", str(quarantined))
    assert acts(table) == [
        ("ada", "quarantine.retry", str(quarantined), 1), ("ada", "work.retry", str(hurried), 1),
        ("ada", "work.cancel", str(cancelled), 1),
    ]  # fmt: skip


def test_a_refused_act_leaves_no_row(table: Table) -> None:
    table.refused("work", "cancel", "4711", said=("PR113",))
    table.refused("quarantine", "retry", "4711", said=("PR112",))
    assert acts(table) == []


def test_a_job_enqueued_by_hand_is_recorded_without_its_request(table: Table) -> None:
    done = table.work("jobs", "enqueue", "reports:app", "reports.render", DAY, "--unique", "k")
    table.work("jobs", "enqueue", "reports:app", "reports.render", DAY, "--unique", "k")
    table.work("jobs", "enqueue", "reports:app", "reports.render", DAY, "--dry-run")
    assert acts(table) == [("ada", "job.enqueue", "reports.render", 1)]
    assert table.work("audit")[0]["after"] == {"queue": done["queue"], "id": done["id"]}
    assert DAY not in table.text("audit")


def test_a_fence_is_recorded_and_acts_are_chosen_and_shown(table: Table) -> None:
    table.execute("INSERT INTO postroad.lease (name, expires_at, ttl) VALUES ('user:reports', now(), '30s')")
    table.work("lease", "fence", "reports", "--reason", "hangs", "--by", "ada")
    table.work("queue", "pause", "mail")
    assert acts(table, "--act", "lease.") == [("ada", "lease.fence", "user:reports", 1)]
    assert acts(table, "--subject", "mail", "--since", "1h") == [("ada", "queue.pause", "mail", 1)]
    assert acts(table, "--by", "eve") == []
    shown = table.text("audit")
    assert "2 acts" in shown
    assert "because: hangs" in shown
    table.refused("audit", "--since", "yesterday", said=("--since", "zone", "PR107"))


def test_subscriptions_are_recorded_where_they_change(table: Table) -> None:
    given = {**table.given, "POSTROAD_BROKER_URL": "postgres:"}
    for _ in range(2):
        document(postroad("topology", "apply", "road.apps.board:app", "--json", **given))
    entries = table.work("audit")
    assert {one["subject"] for one in entries} == {"board.moves", "board.weights"}
    assert all((one["act"], one["items"]) == ("subscription.change", len(one["after"]["added"])) for one in entries)
    document(postroad("topology", "retire", "board.moves", "--json", **given))
    assert table.work("audit")[0].items() >= {"act": "subscription.retire", "subject": "board.moves"}.items()


def test_what_is_declared_on_a_broker_is_recorded_with_what_it_lacked(table: Table, vhost: str) -> None:
    """AMQP shows no bindings: that nothing changed the second time cannot be seen, and is recorded too."""
    given = {**table.given, "POSTROAD_BROKER_URL": vhost}
    for _ in range(2):
        document(postroad("topology", "apply", "orders:app", "--json", **given))
    again, first = table.work("audit")
    assert {"exchange orders.events", "queue orders.book"} <= set(first["before"]["lacking"])
    assert (again["by"], again["act"], again["before"]) == ("ada", "topology.apply", {"lacking": []})
    assert again["subject"].endswith(f"virtual host '{vhost.rpartition('/')[2]}'")


def test_a_declaration_that_is_refused_half_way_is_recorded(table: Table, rabbit: Rabbit, vhost: str) -> None:
    declare_classic(rabbit, vhost.rpartition("/")[2], "orders.book")
    done = postroad("topology", "apply", "orders:app", **table.given, POSTROAD_BROKER_URL=vhost)
    assert done.returncode == Exit.TOPOLOGY
    assert [one["after"] for one in table.work("audit")] == [{"result": "PR205"}]


def test_a_deploy_goes_on_where_the_audit_cannot_be_written(vhost: str) -> None:
    url = f"postgresql://pr_runtime:hush@127.0.0.1:{free_port()}/none"
    done = postroad("topology", "apply", "orders:app", POSTROAD_BROKER_URL=vhost, POSTROAD_DATABASE_URL=url)
    assert done.returncode == 0
    assert "not in the audit: " in done.stderr
    assert "PR301" in done.stderr
    assert "hush" not in done.stderr


@pytest.mark.sabotage
def test_sabotage_an_unrecorded_declaration_leaves_no_row(table: Table, vhost: str) -> None:
    given = {**table.given, "POSTROAD_BROKER_URL": vhost}
    with mock.patch.object(operations, "_recorded_after", mock.AsyncMock(return_value=None)):
        document(postroad("topology", "apply", "orders:app", "--json", **given))
    assert table.work("audit") == []


@pytest.mark.sabotage
def test_an_act_whose_record_fails_is_not_done(table: Table) -> None:
    """The record is part of the transaction: were it written after it, the queue would be paused here."""
    with mock.patch.object(work_acts, "record", side_effect=RuntimeError):
        assert postroad("queue", "pause", "mail", **table.given).returncode == 70
    assert value(table.execute("SELECT count(*) FROM postroad.queue")[0][0]) == 0
