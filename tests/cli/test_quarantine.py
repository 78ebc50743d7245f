"""The commands for quarantine: groups by fault, one row, and what is released or given up of many."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from cli.test_work import SECRET, Table, postroad
from postroad.clock import seconds
from postroad.runtime import quarantine_acts
from postroad.runtime.exits import Exit
from postroad.runtime.operations import database_settings
from postroad.testing.process import wait_until
from postroad.work.kept import Chosen
from runtime.processes import environment

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres


@pytest.fixture
def table(postgres: Postgres, database: str, runtime_url: str) -> Table:
    return Table(postgres, database, runtime_url)


def fill(table: Table, number: int, *, fingerprint: str = "f", queue: str = "billing", **given: str) -> None:
    """`number` deliveries of the same fault, of ten keys by turns, each with an identity of its own."""
    columns = {
        "kind": "'delivery'", "queue": f"'{queue}'", "digest": "''", "class": "'quarantine'", "code": "'PR505'",
        "key": "gen_random_uuid()::text", "fingerprint": f"'{fingerprint}'", "error_type": "'KeyError'",
        "reason": "'no fit'", "event_type": "'orders.order.placed'", "body": f"'{SECRET}'", "content_type": "'x'",
        "routing_key": "'k' || n % 10", "quarantined_at": "now() - interval '1 hour'", **given,
    }  # fmt: skip
    table.execute(
        f"INSERT INTO postroad.quarantine ({', '.join(columns)})"
        f" SELECT {', '.join(columns.values())} FROM generate_series(1, {number}) AS n"
    )


def count(table: Table, what: str, where: str = "true") -> int:
    return int(table.execute(f"SELECT count(*) FROM postroad.{what} WHERE {where}")[0][0])


def test_groups_are_by_fault_oldest_first_and_chosen(table: Table) -> None:
    fill(table, 3, fingerprint="late", quarantined_at="now()")
    fill(table, 2, fingerprint="old", queue="mail", code="'PR503'", reason="'hidden ' || n")
    fill(table, 1, fingerprint="old", queue="ship", code="'PR503'")
    old, late = table.work("quarantine", "groups")
    assert (old["fingerprint"], old["count"], old["queues"]) == ("old", 3, ["mail", "ship"])
    assert (late["fingerprint"], late["count"], late["failure"], late["error_type"]) == (
        "late", 3, "quarantine", "KeyError",
    )  # fmt: skip
    assert [one["fingerprint"] for one in table.work("dlq", "groups", "--code", "PR503")] == ["old"]
    assert [one["fingerprint"] for one in table.work("dlq", "groups", "--since", "30m")] == ["late"]
    assert len(table.work("quarantine", "list", "--group", "old", "--queue", "mail")) == 2
    assert table.work("quarantine", "list", "--type", "none") == []
    shown = table.text("quarantine", "groups")
    assert "2 groups, 6 rows" in shown
    assert "hush" not in shown


def test_a_row_is_shown_with_its_history_and_its_payload_only_when_asked_for(table: Table) -> None:
    fill(table, 1, history='\'[{"attempt": 1, "reason": "gateway away"}]\'')
    number = str(table.work("quarantine", "list")[0]["id"])
    found = table.work("quarantine", "show", number)
    assert (found["code"], found["history"][0]["reason"], found["resolution"]) == ("PR505", "gateway away", None)
    shown = table.text("quarantine", "show", number)
    assert "gateway away" in shown
    assert "hush" not in shown + str(found)
    assert table.work("quarantine", "show", number, "--payload")["payload"] == SECRET
    table.refused("quarantine", "show", "4711", said=("no row 4711", "PR112"))


def test_a_dry_run_counts_and_changes_nothing(table: Table) -> None:
    fill(table, 3)
    found = table.work("quarantine", "retry", "--group", "f", "--dry-run")
    assert (found["count"], found["queues"][0]["queue"], found["unreleasable"]) == (3, "billing", 0)
    assert found["oldest_seconds"] > 3000
    assert "release: 3 rows" in table.text("quarantine", "retry", "--all", "--dry-run")
    assert count(table, "quarantine", "resolved_at IS NULL") == 3
    assert table.work("audit") == []


def test_a_group_is_released_once_and_the_rest_stays(table: Table) -> None:
    fill(table, 3)
    fill(table, 2, fingerprint="other")
    done = table.work("quarantine", "retry", "--group", "f", "--yes")
    assert done == {"chosen": 3, "done": 3, "left": 0, "stopped": False}
    again = table.work("quarantine", "retry", "--group", "f", "--yes")
    assert again == {"chosen": 0, "done": 0, "left": 0, "stopped": False}
    assert (count(table, "work"), count(table, "inbox", "outcome = 'quarantined'")) == (3, 3)
    assert count(table, "quarantine", "resolved_at IS NULL") == 2
    [entry] = table.work("audit")
    assert (entry["act"], entry["subject"], entry["items"], entry["by"]) == ("quarantine.retry", "f", 3, "ada")


def test_what_cannot_be_released_stays_and_is_told(table: Table) -> None:
    fill(table, 2)
    first = table.work("quarantine", "list")[-1]["id"]
    table.execute(f"UPDATE postroad.quarantine SET key = NULL, digest = 'x' WHERE id = {first}")
    assert table.work("quarantine", "retry", "--all", "--dry-run")["unreleasable"] == 1
    assert table.work("quarantine", "retry", "--all", "--yes").items() >= {"done": 1, "left": 1}.items()


def test_many_are_not_touched_without_a_choice_a_word_or_a_right_rate(table: Table) -> None:
    fill(table, 2)
    table.refused("quarantine", "retry", said=("--group", "--all", "PR107"))
    done = postroad("quarantine", "retry", "--all", "--json", **table.given)
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert "--yes" in done.stderr
    table.refused("quarantine", "retry", "--all", "--yes", "--rate", "fast", said=("500/s", "PR107"))
    table.refused("quarantine", "retry", "--class", "typo", "--yes", said=("'typo' is no class", "transient", "PR107"))
    reversed_ = ("--since", "1h", "--until", "2h")
    table.refused("quarantine", "groups", *reversed_, said=("--until '2h' is not after --since '1h'", "PR107"))
    assert table.text("quarantine", "retry", "--group", "none", "--dry-run").strip() == "release: 0 rows"
    table.refused("quarantine", "discard", "4711", "--reason", "x", said=("4711", "PR112"))
    assert count(table, "quarantine", "resolved_at IS NULL") == 2


def test_what_is_discarded_is_resolved_with_its_reason_and_not_released(table: Table) -> None:
    fill(table, 2)
    fill(table, 1, fingerprint="other")
    number = str(table.work("quarantine", "list", "--group", "other")[0]["id"])
    assert table.work("quarantine", "discard", number, "--reason", "a test")["done"] == 1
    assert table.work("quarantine", "discard", "--group", "f", "--reason", "old", "--yes")["done"] == 2
    table.refused("quarantine", "discard", "--all", "--reason", " ", "--yes", said=("--reason", "PR107"))
    table.refused("quarantine", "retry", number, said=("resolved", "PR112"))
    found = table.work("quarantine", "show", number)
    assert (found["resolution"], found["resolved_by"], found["history"][-1]["reason"]) == ("discarded", "ada", "a test")
    assert [(one["act"], one["items"], one["reason"]) for one in table.work("audit")] == [
        ("quarantine.discard", 2, "old"), ("quarantine.discard", 1, "a test"),
    ]  # fmt: skip
    assert count(table, "work") == 0


# --- many -----------------------------------------------------------------------------------------------------------

ORDER = """
    SELECT count(*) FROM postroad.work AS earlier JOIN postroad.work AS later
    ON earlier.routing_key = later.routing_key AND earlier.id < later.id AND (
        earlier.run_at > later.run_at OR earlier.headers ->> 'n' > later.headers ->> 'n')
"""


async def assert_at_the_rate(table: Table, *, number: int, rate: float) -> None:
    settings = database_settings(table.given)
    last = (await quarantine_acts.preview(settings, Chosen(fingerprint="f"))).last
    done = await quarantine_acts.retry(settings, Chosen(fingerprint="f"), last=last, by="ada", rate=rate)
    assert done.done == number
    span = "extract(epoch FROM max(resolved_at) - min(resolved_at))"
    [(taken,)] = table.execute(f"SELECT {span} FROM postroad.quarantine")
    assert_paced(number - rate / 5, seconds_taken=float(taken), rate=rate)


def assert_paced(rows: float, *, seconds_taken: float, rate: float) -> None:
    """Within a tenth; a short run may also end a second late, as long as a busy machine may stand still."""
    ideal = rows / rate
    stall = 1.0 if ideal < 15 else 0.0
    assert ideal * 0.9 <= seconds_taken <= ideal * 1.1 + stall


async def test_a_group_is_released_at_the_rate_and_in_the_order_of_its_keys(table: Table) -> None:
    fill(table, 1000, headers="jsonb_build_object('n', to_char(n, 'FM00000'))")
    await assert_at_the_rate(table, number=1000, rate=250)
    assert table.execute(ORDER) == [("0",)]


@pytest.mark.sabotage
async def test_sabotage_without_the_pause_the_rate_is_not_kept(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: object) -> None:
        return None

    monkeypatch.setattr(quarantine_acts, "_pause", none)
    fill(table, 200)
    with pytest.raises(AssertionError):
        await assert_at_the_rate(table, number=200, rate=100)


@pytest.mark.heavy
def test_a_stopped_release_ends_within_a_second_and_goes_on_with_the_rest(table: Table) -> None:
    fill(table, 600)
    words = ("quarantine", "retry", "--group", "f", "--yes", "--rate", "50/s", "--json")
    with subprocess.Popen(
        [sys.executable, "-m", "postroad", *words], env=environment(**table.given), stdout=subprocess.PIPE, text=True
    ) as running:
        assert wait_until(lambda: count(table, "work") >= 20, within=seconds(60), every=seconds(0.05))
        asked = time.time()
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=30)
    assert running.returncode == 130
    [(latest,)] = table.execute("SELECT extract(epoch FROM max(resolved_at)) FROM postroad.quarantine")
    assert float(latest) - asked < 1
    released = count(table, "work")
    assert '"stopped": true' in said
    assert 20 <= released < 600
    assert table.work("quarantine", "retry", "--group", "f", "--yes")["done"] == 600 - released
    assert count(table, "work") == 600
    assert sum(one["items"] for one in table.work("audit")) == 600
    assert count(table, "work", "key IN (SELECT key FROM postroad.work GROUP BY key HAVING count(*) > 1)") == 0


async def test_two_who_release_the_same_group_at_once_release_it_once(table: Table) -> None:
    fill(table, 300)
    settings, chosen = database_settings(table.given), Chosen(fingerprint="f")
    last = (await quarantine_acts.preview(settings, chosen)).last
    both = await asyncio.gather(
        quarantine_acts.retry(settings, chosen, last=last, by="ada", rate=900),
        quarantine_acts.retry(settings, chosen, last=last, by="ben", rate=900),
    )
    assert sum(done.done for done in both) == 300
    assert count(table, "work") == 300


async def test_what_fails_again_meanwhile_is_not_released_again(table: Table) -> None:
    """It comes back as a new row of the same group: an act that took it too would never end."""
    fill(table, 3)
    settings, chosen = database_settings(table.given), Chosen(fingerprint="f")
    last = (await quarantine_acts.preview(settings, chosen)).last
    fill(table, 2)
    assert (await quarantine_acts.retry(settings, chosen, last=last, by="ada")).done == 3
    assert count(table, "quarantine", "resolved_at IS NULL") == 2
