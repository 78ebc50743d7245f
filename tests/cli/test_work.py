"""The commands for rows of work, queues and jobs: what they print, change and refuse."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
from typing import Any
from unittest import mock

import asyncpg
import pytest

from cli.test_commands import document, one_line
from postroad.cli.commands import execute
from postroad.runtime.exits import Exit
from postroad.testing.servers import Postgres, free_port
from postroad.work.operate import STATES
from runtime import processes

SECRET = '{"day":"2026-05-04","note":"hush"}'


def postroad(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process: many are run here, and each start of Python takes longer than the command."""
    out, err = io.StringIO(), io.StringIO()
    kept = processes.environment(**settings)
    with (
        mock.patch.dict(os.environ, kept, clear=True), mock.patch.object(sys, "path", [str(processes.APPS), *sys.path]),
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
    ):  # fmt: skip
        code = execute(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


class Table:
    """The tables of one database, for the superuser; and commands as the runtime's role."""

    def __init__(self, postgres: Postgres, database: str, url: str) -> None:
        self._postgres, self._name = postgres, database.rpartition("/")[2]
        self.given = {"POSTROAD_DATABASE_URL": url, "LOGNAME": "ada"}

    def execute(self, text: str) -> list[Any]:
        return self._postgres.execute(text, database=self._name)

    def add(self, state: str = "ready", *, queue: str = "reports", kind: str = "job", **columns: str) -> int:
        given = {
            "queue": f"'{queue}'", "kind": f"'{kind}'", "state": f"'{state}'", "event_type": "'reports.render'",
            "body": f"'{SECRET}'", "content_type": "'application/json'",
            "headers": "'{\"correlation\": \"hush-hush\"}'",
            **columns,
        }  # fmt: skip
        text = f"INSERT INTO postroad.work (id, {', '.join(given)})"
        rows = self.execute(f"{text} VALUES (nextval('postroad.work_id'), {', '.join(given.values())}) RETURNING id")
        return int(rows[0][0])

    def into_quarantine(self, number: int, key: str = "NULL") -> int:
        """As `quarantine_claimed` writes it."""
        return int(
            self.execute(
                "INSERT INTO postroad.quarantine (kind, queue, key, digest, class, code, fingerprint, error_type,"
                " reason, event_type, body, content_type, attempt)"
                f" SELECT kind, queue, {key}, sha256(convert_to('work ' || id, 'UTF8')), 'quarantine', 'PR507', 'f',"
                f" 'E', 'spent', event_type, body, content_type, 3 FROM postroad.work WHERE id = {number};"
                f"DELETE FROM postroad.work WHERE id = {number};"
                "SELECT max(id) FROM postroad.quarantine"
            )[0][0]
        )

    def work(self, *words: str, code: int = 0) -> Any:
        return document(postroad(*words, "--json", **self.given), code)

    def text(self, *words: str) -> str:
        done = postroad(*words, **self.given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: str, said: tuple[str, ...], code: Exit = Exit.USAGE) -> None:
        done = postroad(*words, **self.given)
        one_line(done, code, *said)
        assert "hush" not in done.stderr

    def one(self, text: str) -> Any:
        return self.execute(f"SELECT row_to_json(found) FROM ({text}) AS found")[0][0]


@pytest.fixture
def table(postgres: Postgres, database: str, runtime_url: str) -> Table:
    return Table(postgres, database, runtime_url)


def value(found: Any) -> Any:
    return json.loads(found) if isinstance(found, str) else found


# --- work list and show ---------------------------------------------------------------------------------------------


def test_open_rows_are_listed_latest_first_counted_and_chosen(table: Table) -> None:
    first = table.add("running", progress="0.05", note="'half'", worker="'worker:1'")
    table.add("ready", queue="other", event_type="'other.job'")
    retry = table.add("scheduled", queue="billing.orders", kind="retry", event_type="'orders.order.placed'")
    found = table.work("work", "list")
    assert found["counts"] == {"ready": 1, "running": 1, "scheduled": 1}
    assert [row["id"] for row in found["rows"]] == [retry, retry - 1, first]
    assert found["rows"][2].items() >= {"kind": "job", "progress": 0.05, "note": "half", "worker": "worker:1"}.items()
    for choice, ids in (
        (("--queue", "billing.orders"), [retry]), (("--state", "running"), [first]),
        (("--job", "reports.render"), [first]), (("--job", "orders.order.placed"), []),
    ):  # fmt: skip
        chosen = table.work("work", "list", *choice)
        assert [row["id"] for row in chosen["rows"]] == ids
        assert sum(chosen["counts"].values()) == len(ids)
    limited = table.work("work", "list", "--limit", "1")
    assert (len(limited["rows"]), sum(limited["counts"].values())) == (1, 3)
    shown = table.text("work", "list")
    assert "1 ready, 1 running, 1 scheduled" in shown
    assert "5% half" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert "hush" not in shown + json.dumps(found)


def test_what_never_began_and_nobody_cancelled_is_not_told_otherwise(table: Table) -> None:
    number = table.add(kind="retry")
    absent = {"started_at": None, "cancel_at": None}
    assert table.work("work", "list")["rows"][0].items() >= absent.items()
    assert table.work("work", "show", str(number)).items() >= {**absent, "due": None}.items()
    assert "cancel asked" not in table.text("work", "list")


def test_a_row_is_shown_wherever_it_is_and_its_payload_only_when_asked_for(table: Table) -> None:
    history = '\'[{"attempt": 1, "class": "transient", "reason": "gateway away"}]\''
    number = table.add("running", progress="0.25", worker="'worker:1'", history=history, due="now()")
    found = table.work("work", "show", str(number))
    assert found.items() >= {"place": "work", "state": "running", "progress": 0.25, "size": len(SECRET)}.items()
    assert found["history"][0]["reason"] == "gateway away"
    shown = table.text("work", "show", str(number))
    assert "gateway away" in shown
    assert "hush" not in json.dumps(found) + shown
    asked = table.work("work", "show", str(number), "--payload")
    assert (asked["payload"], asked["headers"]) == (SECRET, {"correlation": "hush-hush"})
    assert SECRET in table.text("work", "show", str(number), "--payload")
    table.execute("UPDATE postroad.work SET body = '\\xff00'")
    assert table.work("work", "show", str(number), "--payload")["payload_base64"] == "/wA="

    kept = table.into_quarantine(number)
    found = table.work("work", "show", str(number))
    assert found.items() >= {"place": "quarantine", "state": "quarantined", "code": "PR507", "reason": "spent"}.items()
    assert found["quarantine_id"] == kept

    ended = table.add()
    table.work("work", "cancel", str(ended))
    found = table.work("work", "show", str(ended), "--payload")
    assert found.items() >= {"place": "finished", "state": "cancelled", "size": None}.items()
    assert "payload" not in found


def test_odd_texts_are_shown_escaped_and_what_is_no_text_is_refused(table: Table) -> None:
    number = table.add(key="E'a\\x1b[2J\\nb'", note="E'\\x1b]0;x\\x07'")
    shown = table.text("work", "show", str(number)) + table.text("work", "list")
    assert "key: a\\x1b[2J\\nb" in shown
    assert "\x1b" not in shown
    odd = ("--by", "a\udcff\n\x1bb", "--reason", "why")
    table.refused("work", "cancel", str(number), *odd, said=("is not text in UTF-8",))
    assert table.work("work", "cancel", str(number), "--by", "a\n\x1bb", "--reason", "why")["result"] == "done"


# --- cancel ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ready", "scheduled", "waiting"])
def test_a_job_that_does_not_run_is_cancelled_at_once_and_its_key_is_free(table: Table, state: str) -> None:
    number = table.add(state, key="'daily'")
    done = table.work("work", "cancel", str(number), "--reason", "wrong day")
    assert done == {"id": number, "queue": "reports", "result": "done", "by": "ada"}
    row = value(table.one("SELECT * FROM postroad.finished"))
    assert row.items() >= {"id": number, "outcome": "cancelled", "reason": "wrong day", "attempt": 0}.items()
    assert row["history"][0].items() >= {"class": "cancelled", "by": "ada", "reason": "wrong day"}.items()
    table.add(key="'daily'")


def test_a_running_job_is_asked_to_stop_once(table: Table) -> None:
    number = table.add("running", worker="'worker:1'", token="7")
    assert table.work("work", "cancel", str(number), "--by", "bob", "--reason", "why")["result"] == "asked"
    asked = value(table.one("SELECT state, token, cancel_at, cancelled_by, cancel_reason FROM postroad.work"))
    assert (asked["state"], asked["token"]) == ("running", 7)
    assert (asked["cancelled_by"], asked["cancel_reason"]) == ("bob", "why")
    again = table.work("work", "cancel", str(number), "--by", "eve", "--reason", "other")
    assert (again["result"], again["by"]) == ("asked", "bob")
    assert value(table.one("SELECT cancel_at, cancel_reason FROM postroad.work")) == {
        "cancel_at": asked["cancel_at"], "cancel_reason": "why",
    }  # fmt: skip
    assert table.text("work", "cancel", str(number)).endswith("its worker is asked to stop it, by bob\n")


def test_what_cannot_be_cancelled_is_one_line(table: Table) -> None:
    retry = table.add("scheduled", queue="billing.orders", kind="retry")
    table.refused("work", "cancel", str(retry), said=("a retry of consumer 'billing.orders'", "PR113"))
    table.refused("work", "cancel", "4711", said=("no row 4711", "postroad work list", "PR113"))
    ended = table.add()
    table.work("work", "cancel", str(ended))
    table.refused("work", "cancel", str(ended), said=("not open any more", "cancelled, in finished", "PR113"))
    assert table.execute("SELECT count(*) FROM postroad.work")[0][0] in {1, "1"}


# --- retry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["job", "retry"])
def test_a_scheduled_row_is_ready_now(table: Table, kind: str) -> None:
    number = table.add("scheduled", kind=kind, run_at="now() + interval '1 day'", attempt="2")
    done = table.work("work", "retry", str(number), "--by", "bob")
    assert done == {"id": number, "queue": "reports", "was": "scheduled", "number": number, "by": "bob"}
    row = value(table.one("SELECT state, attempt, run_at <= now() AS due_now, history FROM postroad.work"))
    assert (row["state"], row["attempt"], row["due_now"]) == ("ready", 2, True)
    assert row["history"][0].items() >= {"class": "hurried", "by": "bob"}.items()


@pytest.mark.parametrize("command", ["work", "quarantine"])
def test_a_quarantined_job_is_released_as_a_new_row(table: Table, command: str) -> None:
    number = table.add("running", key="'daily'")
    kept = table.into_quarantine(number, "'daily'")
    done = table.work(command, "retry", str(number if command == "work" else kept))
    row = value(
        table.one("SELECT id, kind, queue, key, state, attempt, due = run_at AS fresh, body FROM postroad.work")
    )
    assert row.items() >= {"kind": "job", "queue": "reports", "key": "daily", "state": "ready", "attempt": 0}.items()
    assert (done["number"], done["by"], row["fresh"]) == (row["id"], "ada", True)
    assert row["id"] != number
    assert value(table.one("SELECT resolution, resolved_by FROM postroad.quarantine")) == {
        "resolution": "retried", "resolved_by": "ada",
    }  # fmt: skip
    table.refused("work", "retry", str(number), said=("was resolved at", "PR112"))


def test_a_job_without_a_key_is_released_from_quarantine(table: Table) -> None:
    table.into_quarantine(number := table.add("running"))
    assert table.work("work", "retry", str(number))["was"] == "quarantined"


def test_what_cannot_be_retried_is_one_line(table: Table) -> None:
    for state in ("ready", "running", "waiting"):
        table.refused("work", "retry", str(table.add(state)), said=(f"is {state} already", "PR113"))
    table.refused("work", "retry", "4711", said=("no row 4711", "PR113"))
    table.work("work", "cancel", str(ended := table.add()))
    table.refused("work", "retry", str(ended), said=("is finished (cancelled)", "enqueue it anew", "PR113"))
    table.into_quarantine(number := table.add("running"), "'daily'")
    table.add(key="'daily'")
    table.refused("work", "retry", str(number), said=("same unique key is open in 'reports'", "PR112"))
    assert value(table.one("SELECT resolved_at FROM postroad.quarantine"))["resolved_at"] is None


# --- queues ---------------------------------------------------------------------------------------------------------


def test_a_queue_is_listed_paused_and_resumed_with_who_and_why(table: Table) -> None:
    table.add("ready", run_at="now() - interval '1 hour'")
    table.add("running")
    table.add("scheduled", queue="other")
    done = table.work("queue", "pause", "reports", "--by", "bob", "--reason", "printer is away")
    assert done.items() >= {"changed": True, "name": "reports", "paused_by": "bob", "ready": 1, "running": 1}.items()
    again = table.work("queue", "pause", "reports", "--by", "eve")
    assert (again["changed"], again["paused_by"], again["reason"]) == (False, "bob", "printer is away")
    table.work("queue", "pause", "empty")
    found = {one["name"]: one for one in table.work("queue", "list")}
    assert found.keys() == {"reports", "other", "empty"}
    assert found["reports"].items() >= {"ready": 1, "running": 1, "paused_by": "bob"}.items()
    assert 3600 <= found["reports"]["oldest_seconds"] < 4000
    assert found["other"].items() >= {"scheduled": 1, "oldest_seconds": None, "paused_at": None}.items()
    assert found["empty"].items() >= {"ready": 0, "paused_by": "ada"}.items()
    assert "printer" in table.text("queue", "list")
    assert "3 queues" in table.text("queue", "list")
    assert "(no row is in this queue)" in table.text("queue", "pause", "empty")
    assert "(no row" not in table.text("queue", "pause", "reports")
    done = table.work("queue", "resume", "reports", "--by", "eve")
    assert done.items() >= {"changed": True, "paused_at": None, "reason": "resumed by eve"}.items()
    assert table.work("queue", "resume", "reports")["changed"] is False
    assert "was not paused" in table.text("queue", "resume", "nobody")
    assert table.work("queue", "pause", "reports")["changed"] is True


# --- jobs list and enqueue -------------------------------------------------------------------------------------------


def test_the_jobs_of_an_app_are_listed_without_a_database() -> None:
    [count, render] = document(postroad("jobs", "list", "reports:app", "--json"))
    assert count.items() >= {"job": "reports.count", "queue": "reports.count", "threaded": True}.items()
    assert render == {
        "job": "reports.render", "queue": "reports", "concurrency": 8, "fleet": None, "max_runtime_seconds": 300.0,
        "attempts": 12, "max_age_seconds": 86_400.0, "threaded": False,
    }  # fmt: skip
    assert "2 jobs" in postroad("jobs", "list", "reports:app").stdout
    one_line(postroad("jobs", "list", "reports"), Exit.USAGE, "write 'reports:app'", "PR107")
    one_line(postroad("jobs", "list", "reports.py:app"), Exit.USAGE, "write 'reports:app'", "PR107")
    one_line(postroad("jobs", "list", "a b"), Exit.USAGE, "write package.module:name", "PR107")


def test_a_job_is_enqueued_from_json_as_in_code(table: Table, tmp_path: Any) -> None:
    words = ("jobs", "enqueue", "reports:app", "reports.render")
    done = table.work(*words, '{"day": "2026-05-04"}', "--priority", "-3", "--unique", "daily", "--by", "bob")
    assert done.items() >= {"written": True, "job": "reports.render", "queue": "reports", "unique": "daily"}.items()
    assert "payload" not in done
    row = value(table.one("SELECT *, convert_from(body, 'UTF8') AS text FROM postroad.work"))
    assert (row["id"], row["state"], row["priority"], row["key"]) == (done["id"], "ready", -3, "daily")
    assert row["text"] == '{"day":"2026-05-04","copies":1}'
    assert row["headers"] == {"by": "bob"}
    again = table.work(*words, '{"day": "2026-05-05"}', "--unique", "daily")
    assert again["written"] is False
    assert "id" not in again
    file = tmp_path / "request.json"
    file.write_text('{"day": "2026-05-06", "copies": 2}')
    later = table.work(*words, f"@{file}", "--run-at", "2126-05-04T02:15:00+02:00")
    assert later["run_at"] == "2126-05-04T00:15:00+00:00"
    assert value(table.one(f"SELECT state FROM postroad.work WHERE id = {later['id']}"))["state"] == "scheduled"
    assert "reports.count enqueued in reports.count as" in table.text(
        "jobs", "enqueue", "reports:app", "reports.count", "7"
    )


def test_a_request_is_read_from_standard_input(table: Table) -> None:
    words = [sys.executable, "-m", "postroad", "jobs", "enqueue", "reports:app", "reports.count", "-", "--json"]
    done = subprocess.run(
        words, input="7\n", env=processes.environment(**table.given), capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert document(done)["size"] == 1


def test_a_dry_run_checks_and_shows_and_writes_nothing(table: Table) -> None:
    words = ("jobs", "enqueue", "reports:app", "reports.render", '{"day": "2026-05-04"}', "--dry-run", "--json")
    done = document(postroad(*words))  # It needs no database.
    assert done.items() >= {"written": False, "queue": "reports", "size": 31}.items()
    assert "payload" not in done
    assert document(postroad(*words, "--payload"))["payload"] == '{"day":"2026-05-04","copies":1}'
    assert "would be enqueued in reports: job reports.render," in postroad(*words[:-1]).stdout
    assert document(postroad(*words, "--queue", "reports.count"))["queue"] == "reports.count"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("reports:app", "reports.nothing", "1"), ("no job 'reports.nothing'", "reports.count, reports.render")),
        (("orders:app", "reports.render", "1"), ("App 'orders' has no job", "none")),
        (("reports:none", "reports.render", "1"), ("is nothing, not an App",)),
        (("reports:app", "reports.render", "{number: 1}"), ("REQUEST is not JSON: ", "PR107")),
        (("reports:app", "reports.render", ""), ("REQUEST is not JSON: ",)),
        (("reports:app", "reports.render", '{"day": "hush"}'), ("day: date_from_datetime_parsing",)),
        (("reports:app", "reports.render", '{"copies": 0}'), ("day: missing", "copies: greater_than_equal")),
        (("reports:app", "reports.count", '"hush"'), ("a value: int_parsing",)),
        (("reports:app", "reports.count", "1", "--run-at", "2026-05-04T02:15"), ("a time with a zone; write", "PR107")),
        (("reports:app", "reports.count", "1", "--run-at", "soon"), ("--run-at 'soon' is not a time", "PR107")),
        (("reports:app", "reports.count", "1", "--priority", "32768"), ("--priority",)),
        (("reports:app", "reports.count", "1", "--priority", "high"), ("--priority",)),
        (
            ("reports:app", "reports.count", "1", "--queue", "reports.rendr"),
            ("no job of App 'reports' is declared in queue 'reports.rendr'; it has: reports, reports.count", "PR107"),
        ),
        (("reports:app", "reports.count", "@nowhere.json"), ("'nowhere.json' cannot be read (FileNotFoundError)",)),
        (("reports:app", "reports.count", "@."), ("cannot be read (IsADirectoryError)",)),
        (("reports:app", "reports.count"), ("REQUEST",)),
    ],
)  # fmt: skip
def test_a_wrong_enqueue_is_one_line(arguments: tuple[str, ...], said: tuple[str, ...]) -> None:
    done = postroad("jobs", "enqueue", *arguments, "--dry-run")
    one_line(done, Exit.USAGE, *said)
    assert "hush" not in done.stderr


# --- every command --------------------------------------------------------------------------------------------------

COMMANDS = [
    ("work", "list"), ("work", "show", "1"), ("work", "cancel", "1"), ("work", "retry", "1"), ("queue", "list"),
    ("queue", "pause", "q"), ("queue", "resume", "q"), ("jobs", "enqueue", "reports:app", "reports.count", "1"),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_without_settings_a_schema_or_a_database_each_is_one_line(
    command: tuple[str, ...], empty_database: str
) -> None:
    one_line(postroad(*command), Exit.SETTINGS, "POSTROAD_DATABASE_URL", "PR201")
    one_line(postroad(*command, POSTROAD_DATABASE_URL=empty_database), Exit.SCHEMA, "postroad migrate", "PR202")
    away = postroad(*command, POSTROAD_DATABASE_URL=f"postgresql://u:hush@127.0.0.1:{free_port()}/x")
    one_line(away, Exit.UNAVAILABLE, "PR301")
    assert "hush" not in away.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("work", "list", "--state", "done"), ["--state", *STATES]),
        (("work", "list", "--limit", "0"), ["--limit"]),
        (("work", "show", "x"), ["ID"]), (("work", "show", "0"), ["ID"]), (("work", "cancel"), ["ID"]),
        (("work", "cancel", str(2**63)), ["ID"]), (("work", "retry", "-1"), ["-1"]), (("queue", "pause"), ["NAME"]),
        (("queue", "fly"), ["fly"]), (("queue", "list", "--no"), ["--no"]), (("jobs", "enqueue"), ["MODULE:APP"]),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line(arguments: tuple[str, ...], words: list[str]) -> None:
    one_line(postroad(*arguments), Exit.USAGE, *words)


@pytest.mark.parametrize("name", ["", "Reports", "a b", "x" * 201, "q\x01", "é"])
@pytest.mark.parametrize("act", ["pause", "resume"])
def test_what_is_no_name_of_a_queue_is_one_line(table: Table, act: str, name: str) -> None:
    table.refused("queue", act, name, said=("no name of a queue", "postroad queue list", "PR107"))


def test_help_speaks_the_words_of_the_field() -> None:
    for command, word in {"work": "tasks", "queue": "pausing", "jobs": "tasks"}.items():
        assert word in postroad(command, "--help").stdout


def test_a_row_that_its_worker_holds_is_waited_for_and_then_told(table: Table, database: str) -> None:
    number = table.add("running")

    async def held() -> None:
        connection = await asyncpg.connect(database)
        async with connection.transaction():
            await connection.execute("SELECT FROM postroad.work FOR SHARE")
            done = await asyncio.to_thread(postroad, "work", "cancel", str(number), **table.given)
        await connection.close()
        one_line(done, Exit.UNAVAILABLE, "held by the transaction", "try again", "PR304")

    asyncio.run(held())
