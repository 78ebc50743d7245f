"""``postroad effects``: what is listed and shown, and what a person may say about an outcome that nobody knows."""

from __future__ import annotations

import pytest

from cli.test_commands import document, one_line
from cli.test_work import Table, postroad
from postroad.runtime.exits import Exit

COMMAND = '{"payment": "hush"}'


@pytest.fixture
def table(postgres, database, runtime_url) -> Table:
    return Table(postgres, database, runtime_url)


def add(table: Table, state: str, key: str) -> int:
    finished = "clock_timestamp()" if state in {"succeeded", "rejected"} else "NULL"
    return int(
        table.execute(
            "INSERT INTO postroad.effect (name, key, fingerprint, provider_key, state, attempt, run, command, sent_at,"
            f" settles_at, finished_at, reason) VALUES ('charge', '{key}', 'v1:f', 'p', '{state}', 1, 7, '{COMMAND}',"
            f" clock_timestamp(), clock_timestamp(), {finished}, 'timeout') RETURNING id"
        )[0][0]
    )


def acts(table: Table) -> list[tuple[str, ...]]:
    return table.execute(
        "SELECT by, act, subject, reason, before->>'state', after->>'state' FROM postroad.audit ORDER BY id"
    )


def test_effects_without_an_outcome_are_listed_latest_first_and_all_on_request(table):
    known, first, second = add(table, "succeeded", "a"), add(table, "manual", "b"), add(table, "unknown", "c")
    assert [row["id"] for row in table.work("effects", "list")] == [second, first]
    assert [row["id"] for row in table.work("effects", "list", "--all")] == [second, first, known]
    assert [row["key"] for row in table.work("effects", "list", "--state", "succeeded")] == ["a"]
    assert table.work("effects", "list", "--name", "other") == []
    text = table.text("effects", "list", "--all")
    assert text.startswith("3 effects\n")
    assert "hush" not in text


def test_one_is_shown_with_what_was_done_about_it_and_without_its_command(table):
    number = add(table, "manual", "b")
    table.work("effects", "look-up", str(number), "--reason", "they are back")
    shown = table.work("effects", "show", str(number))
    assert shown.items() >= {"id": number, "state": "unknown", "provider_key": "p", "waiting": 0}.items()
    assert [(act["act"], act["by"], act["reason"]) for act in shown["audit"]] == [
        ("effect.ask", "ada", "they are back")
    ]
    assert "command" not in shown
    assert "effect.ask by ada: state=unknown (they are back)" in table.text("effects", "show", str(number))


@pytest.mark.parametrize(
    ("words", "state", "outcome"),
    [
        (("done", "--ref", "r-1"), "succeeded", "r-1"),
        (("refused", "--code", "no-cover"), "rejected", "no-cover"),
        (("absent",), "not_found", None),
    ],
)
def test_a_person_says_what_became_of_it_and_that_is_recorded(table, words, state, outcome):
    number = add(table, "manual", "b")
    done = table.work("effects", "resolve", str(number), "--as", *words, "--by", "grace", "--reason", "asked them")
    assert done == {"id": number, "name": "charge", "was": "manual", "state": state, "by": "grace"}
    row = table.one(f"SELECT state, outcome, command IS NULL AS gone FROM postroad.effect WHERE id = {number}")
    row = row if isinstance(row, dict) else __import__("json").loads(row)
    assert row == {"state": state, "outcome": outcome, "gone": state != "not_found"}
    assert acts(table) == [("grace", "effect.resolve", f"effect {number}", "asked them", "manual", state)]


@pytest.mark.parametrize("state", ["intended", "sent", "succeeded", "rejected", "not_found"])
def test_what_is_not_in_doubt_is_left_alone(table, state):
    number = add(table, state, "b")
    for words in (("look-up", str(number)), ("resolve", str(number), "--as", "absent")):
        table.refused("effects", *words, said=("PR114", f"effect {number} is {state}"))
    assert acts(table) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "99"), ("PR114", "there is no effect 99; see `postroad effects list --all`")),
        (("resolve", "99", "--as", "absent"), ("PR114",)),
        (("resolve", "1", "--as", "refused"), ("PR107", "--as refused needs --code")),
        (("resolve", "1", "--as", "absent", "--ref", "x"), ("PR107", "--ref goes with --as done")),
        (("resolve", "1", "--as", "done", "--code", "x"), ("PR107",)),
        (("resolve", "1", "--as", "lost"), ("lost",)),
        (("resolve", "1"), ("--as",)),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(table, words, said):
    done = postroad("effects", *words, **table.given)
    one_line(done, Exit.USAGE, *said)


def test_a_document_is_one_even_where_there_is_nothing(table):
    assert document(postroad("effects", "list", "--json", **table.given)) == []
