"""Whatever will not go on is in one place: each kind is grouped, listed, shown with its history, retried, discarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.test_events import logged
from cli.test_quarantine import count, fill
from cli.test_work import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.testing.servers import Postgres

HISTORY = '\'[{"attempt": 1, "class": "transient", "reason": "gateway away"}]\''
SCHEDULE = "8c5c1f0e-0000-4000-8000-000000000001"
DUE = "2026-03-02T00:01:00+00:00"


@pytest.fixture
def table(postgres: Postgres, database: str, runtime_url: str) -> Table:
    return Table(postgres, database, runtime_url)


def delivery(table: Table) -> None:
    fill(table, 1, fingerprint="delivery", history=HISTORY)


def dead_letter(table: Table) -> None:
    fill(table, 1, fingerprint="dead-letter", kind="'dead-letter'", code="'PR512'", history=HISTORY)


def job(table: Table) -> None:
    fill(table, 1, fingerprint="job", kind="'job'", queue="reports", event_type="'reports.render'", key="NULL",
         headers='\'{"priority": 3}\'', history=HISTORY)  # fmt: skip


def occurrence(table: Table) -> None:
    """The job of a schedule's occurrence: the scheduler has noted already that it failed."""
    table.execute(
        "INSERT INTO postroad.schedule (id, name, app, definition, release, cursor)"
        f" VALUES ('{SCHEDULE}', 'reports.daily', 'reports', '{{}}', 1, now());"
        "INSERT INTO postroad.occurrence (schedule, due, kind, key, state, reason, start_at, revision, queue, ended_at)"
        f" VALUES ('{SCHEDULE}', '{DUE}', 'scheduled', 'sched:{SCHEDULE}:{DUE}', 'failed', 'no fit [PR505]', now(), 1,"
        " 'reports', now())"
    )
    fill(table, 1, fingerprint="occurrence", kind="'job'", queue="reports", event_type="'reports.render'",
         key=f"'sched:{SCHEDULE}:{DUE}'", headers='\'{"priority": 0}\'', history=HISTORY)  # fmt: skip


def event(table: Table) -> None:
    identity = logged(table, "k")
    [(seq, recorded)] = table.execute("SELECT seq, recorded FROM postroad.event")
    fill(table, 1, fingerprint="event", kind="'event'", queue="orders.events", key=f"'{identity}'", code="'PR302'",
         exchange="'orders.events'", seq=seq, recorded=f"'{recorded}'", retention="30", history=HISTORY)  # fmt: skip


def in_work(table: Table) -> bool:
    return count(table, "work", "state = 'ready' AND attempt = 0 AND history @> '[{\"class\": \"released\"}]'") == 1


def in_outbox(table: Table) -> bool:
    return count(table, "outbox AS waits JOIN postroad.event USING (seq)", "waits.attempts = 0") == 1


def runs_again(table: Table) -> bool:
    started = count(table, "occurrence AS one JOIN postroad.work ON work.id = one.work_id", "one.state = 'started'")
    return started == 1 and in_work(table)


KINDS = pytest.mark.parametrize(
    ("make", "kind", "goes"),
    [
        (delivery, "delivery", in_work), (dead_letter, "dead-letter", in_work), (job, "job", in_work),
        (occurrence, "job", runs_again), (event, "event", in_outbox),
    ],
    ids=["delivery", "dead-letter", "job", "occurrence", "event"],
)  # fmt: skip


@KINDS
def test_each_kind_is_grouped_listed_and_shown_with_its_history_and_goes_on_when_retried(
    table: Table, make: Callable[[Table], None], kind: str, goes: Callable[[Table], bool]
) -> None:
    make(table)
    (group,) = table.work("quarantine", "groups")
    assert group["count"] == 1
    chosen = ("--group", group["fingerprint"])
    (row,) = table.work("quarantine", "list", *chosen)
    assert row["kind"] == kind
    assert kind in table.text("quarantine", "list")
    shown = table.work("quarantine", "show", str(row["id"]))
    assert [entry["reason"] for entry in shown["history"]] == ["gateway away"]
    assert table.work("quarantine", "retry", *chosen, "--yes").items() >= {"done": 1, "left": 0}.items()
    assert goes(table)
    assert table.work("quarantine", "retry", *chosen, "--yes")["done"] == 0
    assert goes(table), "twice is once"
    assert table.work("quarantine", "show", str(row["id"]))["resolution"] == "retried"
    assert [one["act"] for one in table.work("audit")] == ["quarantine.retry"]


@KINDS
def test_each_kind_is_given_up_for_a_reason_and_then_for_good(
    table: Table, make: Callable[[Table], None], kind: str, goes: Callable[[Table], bool]
) -> None:
    make(table)
    number = str(table.work("quarantine", "list")[0]["id"])
    table.refused("quarantine", "discard", number, said=("--reason",))
    assert table.work("quarantine", "discard", number, "--reason", f"a {kind} of a test")["done"] == 1
    assert not goes(table)
    table.refused("quarantine", "retry", number, said=("resolved", "PR112"))
    shown = table.work("quarantine", "show", number)
    assert (shown["resolution"], shown["history"][-1]["reason"]) == ("discarded", f"a {kind} of a test")
    (entry,) = table.work("audit")
    assert (entry["act"], entry["subject"], entry["reason"]) == ("quarantine.discard", number, f"a {kind} of a test")


def test_a_choice_of_all_kinds_is_one_act(table: Table) -> None:
    for make in (delivery, dead_letter, job, event):
        make(table)
    occurrence(table)
    found = table.work("quarantine", "retry", "--all", "--dry-run")
    assert {each["queue"]: each["count"] for each in found["queues"]} == {
        "billing": 2,
        "orders.events": 1,
        "reports": 2,
    }
    assert table.work("quarantine", "retry", "--all", "--yes", "--rate", "500/s")["done"] == 5
    assert (count(table, "work"), count(table, "outbox"), count(table, "occurrence", "state = 'started'")) == (4, 1, 1)
    assert count(table, "quarantine", "resolved_at IS NULL") == 0


# --- effects --------------------------------------------------------------------------------------------------------


def left_to_a_person(table: Table, number: int, name: str = "payments.charge") -> None:
    table.execute(
        "INSERT INTO postroad.effect (name, key, fingerprint, provider_key, state, attempt, run, reason, intended_at)"
        f" SELECT '{name}', 'p' || n, 'f', 'k', 'manual', 1, n, 'there is no look-up', now() - interval '1 hour'"
        f" FROM generate_series(1, {number}) AS n"
    )


def test_effects_that_nobody_knows_about_are_a_group_and_are_looked_up_when_retried(table: Table) -> None:
    left_to_a_person(table, 3)
    left_to_a_person(table, 1, "mail.send")
    delivery(table)
    found = {group["fingerprint"]: group for group in table.work("quarantine", "groups")}
    assert found.keys() == {"effect:payments.charge", "effect:mail.send", "delivery"}
    group = found["effect:payments.charge"]
    assert (group["count"], group["queues"], group["reason"]) == (3, ["payments.charge"], "there is no look-up")
    chosen = ("--group", "effect:payments.charge")
    assert [one["count"] for one in table.work("quarantine", "groups", *chosen)] == [3]
    assert [one["count"] for one in table.work("quarantine", "groups", "--queue", "mail.send")] == [1]
    assert table.work("quarantine", "retry", *chosen, "--dry-run")["count"] == 3
    assert table.work("quarantine", "retry", *chosen, "--yes", "--rate", "100/s")["done"] == 3
    assert table.work("quarantine", "retry", *chosen, "--yes")["done"] == 0
    assert count(table, "effect", "state = 'unknown' AND next_check_at <= now()") == 3
    assert [one["act"] for one in table.work("audit")] == ["effect.ask"] * 3
    assert count(table, "quarantine", "resolved_at IS NULL") == 1


def test_an_effect_is_not_given_up_and_what_to_say_instead_is_told(table: Table) -> None:
    left_to_a_person(table, 1)
    chosen = ("--group", "effect:payments.charge")
    table.refused("quarantine", "discard", *chosen, "--reason", "old", "--yes", said=("effects resolve", "PR107"))
    table.refused("quarantine", "list", *chosen, said=("effects list", "PR107"))
    assert table.work("quarantine", "retry", "--all", "--yes")["done"] == 0, "only by their own group"
    assert count(table, "effect", "state = 'manual'") == 1
