"""Transaction control in raw text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.sql.guard import refused


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("COMMIT", "COMMIT"),
        (" commit ;", "COMMIT"),
        ("BEGIN", "BEGIN"),
        ("begin isolation level serializable", "BEGIN"),
        ("START TRANSACTION", "START"),
        ("END", "END"),
        ("abort;", "ABORT"),
        ("ROLLBACK", "ROLLBACK"),
        ("ROLLBACK WORK", "ROLLBACK"),
        ("ROLLBACK AND CHAIN", "ROLLBACK"),
        ("ROLLBACK PREPARED 'to'", "ROLLBACK"),
        ("COMMIT PREPARED 'x'", "COMMIT"),
        ("PREPARE TRANSACTION 'x'", "PREPARE TRANSACTION"),
        ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET TRANSACTION"),
        ("set local transaction read only", "SET TRANSACTION"),
        ("-- note\n/* a /* nested */ comment */ COMMIT", "COMMIT"),
        ("/**/COMMIT", "COMMIT"),
        (";;COMMIT", "COMMIT"),
        ("SELECT 1; COMMIT", "COMMIT"),
        ("SELECT ';'; COMMIT", "COMMIT"),
        ("SELECT E'\\''; COMMIT --'", "COMMIT"),
        ("SELECT 'it''s'; ROLLBACK", "ROLLBACK"),
        ('SELECT 1 AS "a""b;"; END', "END"),
        ("SELECT $x$ ; $x$; COMMIT", "COMMIT"),
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; END; COMMIT", "COMMIT"),
    ],
)
def test_transaction_control_is_found(text, shown):
    assert refused(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-- COMMIT",
        "/* COMMIT",
        "SELECT 'COMMIT'",
        "SELECT 1 -- ; COMMIT",
        "SELECT '; COMMIT; '",
        "SELECT $$; COMMIT; $$",
        "SELECT $a$; $b$; COMMIT; $a$",
        'SELECT 1 AS "; COMMIT"',
        "SELECT E'\\'; COMMIT'",
        "SELECT $1; SELECT $2",
        "SAVEPOINT x",
        "RELEASE SAVEPOINT x",
        "ROLLBACK TO x",
        "ROLLBACK WORK TO SAVEPOINT x",
        "rollback transaction to x",
        "PREPARE x AS SELECT 1",
        "SET LOCAL lock_timeout = '1s'",
        "SET search_path = transaction",
        "DO $$ BEGIN PERFORM 1; END $$",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 1 END; END",
        "SELECT CASE WHEN true THEN 1 END",
        "INSERT INTO begin VALUES (1)",
        "UPDATE t SET a = %s",
    ],
)
def test_what_is_none_passes(text):
    assert refused(text) is None


@given(st.text())
def test_any_text_is_judged(text):
    assert refused(text) is None or refused(text).isupper()


@given(st.text(alphabet="ab;'\"$-/*\\ \n", max_size=40))
def test_a_comment_before_it_hides_nothing(text):
    assert refused(f"/* {text.replace('*', '').replace('/', '')} */ COMMIT") == "COMMIT"


def test_a_long_text_is_judged_as_well():
    assert refused("SELECT 1;" * 5000 + "COMMIT") == "COMMIT"
