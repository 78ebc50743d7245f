"""The exception tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import postroad
from postroad.errors import (
    CODES,
    AccessRefused,
    ContractError,
    LeaseLost,
    PostroadError,
    SchemaError,
    SettingsError,
    TopologyError,
    Unavailable,
    UsageError,
)

SOURCE = Path(postroad.__file__).parent


def test_an_error_is_one_line_that_ends_with_its_code() -> None:
    error = UsageError("PR104", "consumer 'x' is declared twice (a, b); rename one")
    assert str(error) == "consumer 'x' is declared twice (a, b); rename one [PR104]"
    assert error.code == "PR104"


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(ValueError, match="PR999"):
        UsageError("PR999", "x")


def test_codes_are_stable_in_form_and_each_has_its_meaning() -> None:
    for code, meaning in CODES.items():
        assert re.fullmatch(r"PR\d{3}", code)
        assert meaning == meaning.strip()
        assert meaning
    assert len(set(CODES.values())) == len(CODES)


@pytest.mark.parametrize("kind", [SettingsError, SchemaError, TopologyError])
def test_what_an_author_must_change_is_a_usage_error(kind: type[PostroadError]) -> None:
    assert issubclass(kind, UsageError)


def test_blame_is_told_apart_by_class() -> None:
    assert issubclass(AccessRefused, Unavailable)
    for kind in (UsageError, Unavailable, LeaseLost, ContractError):
        others = {UsageError, Unavailable, LeaseLost, ContractError} - {kind}
        assert issubclass(kind, PostroadError)
        assert not any(issubclass(kind, other) for other in others)


def test_every_code_in_the_source_is_declared() -> None:
    used = {
        node.value
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"PR\d{3}", node.value)
    }
    assert used <= CODES.keys()
