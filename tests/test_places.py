"""Where an error came from: the author's innermost line, whoever's code it was raised in."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import TypeAdapter, ValidationError

from postroad.failures import Rules, classify
from postroad.places import place
from postroad.retry import Backoff

NONE = Rules()


def caught(error: type[BaseException], act) -> BaseException:
    with pytest.raises(error) as found:
        act()
    return found.value


def test_it_is_function_file_and_line():
    def boom():
        return {}["secret"]

    line = boom.__code__.co_firstlineno + 1
    shown = place(caught(KeyError, boom))
    assert shown == f"test_it_is_function_file_and_line.<locals>.boom (test_places.py:{line})"


@pytest.mark.parametrize(
    ("error", "act"),
    [
        (json.JSONDecodeError, lambda: json.loads("{")),
        (ValidationError, lambda: TypeAdapter(int).validate_python("x")),
        (TypeError, lambda: Backoff(first=1)),
    ],
    ids=["pythons", "installed", "ours"],
)
def test_code_that_is_not_the_authors_is_passed_over(error, act):
    assert re.fullmatch(r"<lambda> \(test_places\.py:\d+\)", place(caught(error, act)))


def elsewhere(filename: str):
    """A function that fails in a file of that name."""
    space: dict = {}
    exec(compile("def query():\n    raise ValueError\n", filename, "exec"), space)
    return space["query"]


@pytest.mark.parametrize("filename", ["asyncpg/protocol/protocol.pyx", "/v/site-packages/a/b.py", "<frozen x>"])
def test_a_drivers_frame_is_passed_over(filename):
    query = elsewhere(filename)

    def author():
        query()

    assert "author (test_places.py:" in place(caught(ValueError, author))


def test_without_a_line_of_the_authors_the_error_that_it_was_raised_as_tells():
    inner = caught(ValueError, lambda: None or _raised(elsewhere("/v/site-packages/a/b.py")))
    inner.__traceback__ = inner.__traceback__.tb_next.tb_next.tb_next
    assert place(inner) == "query (b.py:2)"
    outer = caught(RuntimeError, lambda: _raise(RuntimeError(), inner))
    assert "_raise (test_places.py:" in place(inner, outer=outer)
    assert "_raise (test_places.py:" in classify(outer, rules=Rules(quarantine=[ValueError]), attempt=1).reason


def _raised(act):
    act()


def _raise(error, cause):
    raise error from cause


def test_an_error_that_was_never_raised_has_no_place():
    assert place(ValueError()) == "unknown place"


def test_a_line_more_changes_the_reason_and_not_the_fingerprint():
    def boom(late):
        if late:
            raise KeyError("secret")
        raise KeyError("secret")

    one, other = (
        classify(caught(KeyError, lambda late=late: boom(late)), rules=NONE, attempt=3) for late in (True, False)
    )
    assert one.reason != other.reason
    assert one.fingerprint == other.fingerprint
    assert "secret" not in one.reason
