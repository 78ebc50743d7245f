"""Erasing the events of a person: tombstones of the same ids, wherever bytes are kept, and nothing else is touched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from cli.test_work import Table, postroad
from consume.bench import body
from postroad.clock import SYSTEM_CLOCK
from postroad.events.envelope import CONTENT_TYPE, decode
from postroad.events.redacted import is_redacted
from postroad.runtime.exits import Exit

if TYPE_CHECKING:
    from postroad.testing.servers import Postgres

ADA, BEN = "customer-ada", "customer-ben"
REDACT = ("events", "redact", "--key", ADA, "--reason", "asked for it")


@pytest.fixture
def table(postgres: Postgres, database: str, runtime_url: str) -> Table:
    return Table(postgres, database, runtime_url)


def quoted(data: bytes) -> str:
    return f"'\\x{data.hex()}'"


def logged(table: Table, key: str, *, days: int = 0, retention: int = 30) -> UUID:
    """An event of `key` in the log, of so many days ago."""
    identity = SYSTEM_CLOCK.new_id()
    table.execute(
        "INSERT INTO postroad.event (seq, id, type, version, key, occurred, recorded, correlation, retention, envelope)"
        f" VALUES (nextval('postroad.event_seq'), '{identity}', 'orders.order.placed', 1, '{key}', now(),"
        f" now() - interval '{days} days', 'story', {retention}, {quoted(body(key, key=key, identity=identity))})"
    )
    return identity


def envelopes(table: Table, what: str, column: str = "body") -> list[bytes]:
    rows = table.execute(f"SELECT encode({column}, 'hex') FROM postroad.{what}")
    return [bytes.fromhex(row[0]) for row in rows]


def place(table: Table, key: str, state: str = "ready") -> None:
    """A delivery of `key` in work and one in quarantine."""
    columns = {"body": quoted(body(key, key=key)), "content_type": f"'{CONTENT_TYPE}'", "headers": "'{}'"}
    table.add(state, kind="retry", queue="billing", **columns)
    kept = table.add(kind="delivery", queue="billing", **columns)
    table.into_quarantine(kept, key="gen_random_uuid()::text")


def test_every_copy_of_a_persons_events_becomes_a_tombstone_of_the_same_id(table: Table) -> None:
    ids = {logged(table, ADA), logged(table, ADA, days=40, retention=90), logged(table, ADA, retention=0)}
    logged(table, BEN)
    for key in (ADA, BEN):
        place(table, key)
    done = table.work(*REDACT, "--yes")
    assert done.items() >= {"log": 3, "work": 1, "quarantine": 1, "unsent": 0, "running": 0}.items()
    stones = [stone for stone in envelopes(table, "event", "envelope") if is_redacted(stone)]
    read = [decode(stone, content_type=CONTENT_TYPE, headers={}) for stone in stones]
    assert {UUID(each.id) for each in read} == ids
    assert {(each.type, each.version, each.key, len(each.data)) for each in read} == {
        ("orders.order.placed", 1, None, 0)
    }
    everything = [*envelopes(table, "event", "envelope"), *envelopes(table, "work"), *envelopes(table, "quarantine")]
    assert [ADA.encode() in each for each in everything] == [False] * 8
    assert sum(BEN.encode() in each for each in everything) == 3
    again = table.work(*REDACT, "--yes")
    assert (again["log"], again["work"], again["quarantine"]) == (0, 0, 0)


def test_what_lies_open_in_quarantine_is_resolved_and_what_waits_or_runs_is_told(table: Table) -> None:
    logged(table, ADA)
    table.execute(
        "INSERT INTO postroad.outbox (shard, place, seq, recorded, retention, route)"
        " SELECT 0, 1, seq, recorded, retention, 'orders.order.placed.v1' FROM postroad.event"
    )
    place(table, ADA, "running")
    shown = table.text(*REDACT, "--dry-run")
    assert "1 in the log, 1 in work, 1 in quarantine would be erased" in shown
    assert not any(is_redacted(each) for each in envelopes(table, "event", "envelope"))
    shown = table.text(*REDACT, "--yes")
    assert "1 wait to be sent and go as tombstones; 1 are running now" in shown
    assert table.execute("SELECT resolution, resolved_by FROM postroad.quarantine") == [("redacted", "ada")]


def test_the_audit_names_no_person(table: Table) -> None:
    logged(table, ADA)
    table.work(*REDACT, "--yes")
    [entry] = table.work("audit")
    assert (entry["act"], entry["items"], entry["reason"]) == ("event.redact", 1, "asked for it")
    assert entry["subject"].startswith("key sha256:")
    assert ADA not in json.dumps(entry)


def test_only_the_producer_that_is_named_is_touched_and_nothing_without_a_word(table: Table) -> None:
    logged(table, ADA)
    place(table, ADA)
    done = table.work(*REDACT, "--producer", "order", "--yes")
    assert (done["log"], done["work"], done["quarantine"]) == (0, 0, 0)
    refused = postroad(*REDACT, "--json", **table.given)
    assert (refused.returncode, refused.stdout) == (Exit.USAGE, "")
    assert "--yes" in refused.stderr
    table.refused("events", "redact", "--key", "", "--reason", "r", said=("--key", "PR107"))
    table.refused("events", "redact", "--key", ADA, "--reason", " ", said=("--reason", "PR107"))


# --- what was made of the events: commands of effects, requests of jobs --------------------------------------------


def effect(table: Table, state: str, key: str, command: str | None) -> None:
    kept = "NULL" if command is None else quoted(command.encode())
    table.execute(
        "INSERT INTO postroad.effect (name, key, fingerprint, provider_key, state, run, command)"
        f" VALUES ('charge', '{key}', 'v1:f', 'p', '{state}', 7, {kept})"
    )


def commands(table: Table) -> dict[str, bool]:
    """Whether each effect's command is still there."""
    return {key: kept == "t" for key, kept in table.execute("SELECT key, command IS NOT NULL FROM postroad.effect")}


def a_ledger(table: Table) -> None:
    for state in ("intended", "sent", "unknown", "reconciling", "not_found", "manual"):
        effect(table, state, state, json.dumps({"to": {"customers": [ADA]}, "text": "hush"}))
    effect(table, "manual", ADA, '{"text": "hush"}')
    effect(table, "manual", "hers", json.dumps({"to": BEN, "text": f"about {ADA} and others"}))
    effect(table, "succeeded", "known", None)


def test_commands_that_no_look_up_needs_leave_the_ledger_and_those_in_doubt_stay_until_there_is_an_outcome(
    table: Table,
) -> None:
    a_ledger(table)
    shown = table.text(*REDACT, "--dry-run")
    assert "4 effects: the command would be erased; 3 in doubt: the command stays until there is an outcome" in shown
    assert sum(commands(table).values()) == 8
    done = table.work(*REDACT, "--yes")
    assert (done["effects"], done["in_doubt"]) == (4, 3)
    kept = {key for key, there in commands(table).items() if there}
    assert kept == {"sent", "unknown", "reconciling", "hers"}
    table.execute("UPDATE postroad.effect SET state = 'manual' WHERE state IN ('sent', 'unknown', 'reconciling')")
    assert table.work(*REDACT, "--yes")["effects"] == 3
    assert {key for key, there in commands(table).items() if there} == {"hers"}
    assert table.work("audit", "--act", "event.redact")[-1]["after"]["effects"] == 4


@pytest.mark.sabotage
def test_without_the_ledgers_part_its_commands_would_outlive_the_erasure(table: Table, monkeypatch) -> None:
    monkeypatch.setattr("postroad.runtime.erasure.effects.erase", _nothing)
    a_ledger(table)
    table.work(*REDACT, "--yes")
    assert sum(commands(table).values()) == 8


def _nothing(_schema, _key, *, dry_run, **_):
    yield from ()
    return 0, 0


@pytest.mark.parametrize("key", [ADA, 'o"brien', "zoë \\ co", "O'Neill 'é\""])
def test_a_key_is_found_however_json_writes_it(table: Table, key: str) -> None:
    request = {"day": "2026-05-04", "of": [{"customer": key}]}
    for text in (json.dumps(request), json.dumps(request, ensure_ascii=False)):
        table.add(body=quoted(text.encode()))
    done = table.work("events", "redact", "--key", key, "--reason", "r", "--dry-run")
    assert done["jobs"] == 2


def test_jobs_that_name_the_key_are_told_and_stay_unless_it_is_said_that_they_end(table: Table) -> None:
    hers = quoted(json.dumps({"customer": ADA}).encode())
    waits, runs = table.add(body=hers), table.add("running", body=hers, worker="'worker:1'", token="7")
    bens = table.add(body=quoted(json.dumps({"customer": BEN, "note": f"not {ADA}"}).encode()))
    kept = table.into_quarantine(table.add(body=hers))
    shown = table.text(*REDACT, "--yes")
    assert "3 jobs with the key in the request: left as they are (--jobs cancels and erases them)" in shown
    assert table.execute("SELECT count(*) FROM postroad.work") == [("3",)]
    would = table.text(*REDACT, "--jobs", "--dry-run")
    assert "3 jobs with the key in the request: would be cancelled and erased; 1 are running now" in would
    done = table.work(*REDACT, "--jobs", "--yes")
    assert (done["jobs"], done["running"]) == (3, 1)
    rows = table.execute("SELECT id, cancel_at IS NOT NULL, convert_from(body, 'UTF8') FROM postroad.work ORDER BY id")
    assert rows[0] == (str(runs), "t", '{"redacted":true}')
    assert [row[:2] for row in rows[1:]] == [(str(bens), "f")]
    assert table.execute("SELECT id, outcome, reason FROM postroad.finished") == [
        (str(waits), "cancelled", "asked for it")
    ]
    assert table.execute(
        f"SELECT resolution, resolved_by, convert_from(body, 'UTF8') FROM postroad.quarantine WHERE id = {kept}"
    ) == [("redacted", "ada", '{"redacted":true}')]
    assert table.work(*REDACT, "--jobs", "--yes")["jobs"] == 0
    assert table.work("audit", "--act", "event.redact")[-1]["after"]["jobs"] == 0


def test_with_a_producer_neither_effects_nor_jobs_are_touched(table: Table) -> None:
    a_ledger(table)
    table.add(body=quoted(json.dumps({"customer": ADA}).encode()))
    done = table.work(*REDACT, "--producer", "orders", "--yes")
    assert (done["effects"], done["in_doubt"], done["jobs"]) == (0, 0, 0)
    table.refused(*REDACT, "--producer", "orders", "--jobs", said=("--jobs", "PR107"))
