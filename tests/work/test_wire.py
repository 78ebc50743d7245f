from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.work import Wire
from postroad.work.wire import headers_from_json, headers_to_json, kept

_TEXT = st.text(st.characters(exclude_categories=[]))
_SCALAR = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | _TEXT | st.binary()
    | st.datetimes(timezones=st.just(UTC)) | st.decimals(allow_nan=False)
)  # fmt: skip
_NAME = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")) | st.sampled_from(
    ["$bytes", "$table"]
)
_VALUE = st.recursive(
    _SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAME, inner, max_size=3), max_leaves=8
)


@given(st.dictionaries(_NAME, _VALUE, max_size=4))
def test_headers_come_back_as_they_went(headers):
    stored = headers_to_json(headers)

    assert headers_from_json(stored) == headers
    assert headers_from_json(json.loads(stored)) == headers
    assert "\\u0000" not in stored


def test_what_no_header_should_be_is_kept_as_text_and_deep_nesting_is_cut():
    bomb: dict[str, object] = {}
    for _ in range(5000):
        bomb = {"x": bomb}

    assert headers_from_json(headers_to_json({"n": float("inf"), "o": {1}})) == {"n": float("inf"), "o": "{1}"}
    assert len(headers_to_json({"deep": bomb})) < 500


def test_a_text_for_the_database_has_no_nul_and_no_lone_surrogate():
    assert kept("a\x00b\ud800c") == "a\ufffdb\ufffdc"
    assert kept(None) is None


def test_a_wire_never_prints_its_payload():
    wire = Wire(body=b"secret", content_type="text/plain", headers={"h": "secret"})

    assert "secret" not in repr(wire)


def test_times_and_decimals_keep_their_type():
    headers = {"at": datetime(2026, 1, 2, tzinfo=UTC), "sum": Decimal("1.10"), "raw": b"\xff"}

    assert headers_from_json(headers_to_json(headers)) == headers


def test_floats_that_a_jsonb_would_give_back_as_other_numbers_have_a_form_of_their_own():
    for value in (1e16, -4.65e80, 5e-324, -0.0):
        assert headers_to_json({"n": value}) == f'{{"n": {{"$float": "{value}"}}}}'
        assert repr(headers_from_json(headers_to_json({"n": value}))["n"]) == repr(value)
    assert headers_to_json({"n": -1.5}) == '{"n": -1.5}'


@pytest.mark.parametrize(
    "stored",
    ["[]", "null", "5", '"text"', "[" * 100_000, '{"x": 1' + "0" * 5000 + "}", "no JSON"],
    ids=["list", "null", "number", "text", "deep", "long", "none"],
)
def test_what_is_no_table_of_headers_is_an_empty_one(stored):
    assert headers_from_json(stored) == {}


@pytest.mark.parametrize("mark", ["$bytes", "$text", "$time", "$decimal", "$float", "$table"])
@pytest.mark.parametrize("inner", ["\u00e9", [], ["x"], {"sign": 1}, None])
def test_an_object_that_only_looks_like_one_of_ours_stays_as_it_is(mark, inner):
    if mark == "$table" and isinstance(inner, dict):
        return
    assert headers_from_json({"x": {mark: inner}}) == {"x": {mark: inner}}
