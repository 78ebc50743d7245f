"""What each change of a schema means: every row of the table, in both directions and both content models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.events import compatibility
from postroad.events.changes import compare
from postroad.events.compatibility import RULES, Direction, Row, Verdict, breaks, worst

CASES = json.loads(Path(__file__).with_name("changes.json").read_text())
"""Written out from the comparison of JSON Schemas in Confluent's schema registry (SchemaDiff, ObjectSchemaDiff)."""
EACH = [
    pytest.param(case, direction, model, id=f"{case['row']}: {case['change']}, {direction} {model}")
    for case in CASES["both models"]
    for direction in Direction
    for model in ("closed", "open")
]
BETWEEN = [
    pytest.param(case, direction, id=f"{case['row']}: {case['change']}, {direction}")
    for case in CASES["between models"]
    for direction in Direction
]


def modelled(schema: Any, model: str) -> Any:
    """The schema with every object in it closed or open that does not say which."""
    if isinstance(schema, list):
        return [modelled(item, model) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: modelled(inner, model) for name, inner in schema.items()}
    if model == "closed" and isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize(("case", "direction", "model"), EACH)
def test_each_change_has_the_verdict_of_the_table(case, direction, model):
    old, new = modelled(case["old"], model), modelled(case["new"], model)
    assert worst(old, new, direction) == case["verdicts"][f"{direction} {model}"]


@pytest.mark.parametrize(("case", "direction"), BETWEEN)
def test_opening_and_closing_has_the_verdict_of_the_table(case, direction):
    assert worst(case["old"], case["new"], direction) == case["verdicts"][direction]


def test_at_least_fifty_changes_of_every_row_are_written_out():
    both = CASES["both models"]
    assert len(both) >= 50
    assert len({case["row"] for case in both}) == 26
    found = {change.rule for case in both for change in compare(case["old"], case["new"])}
    assert RULES.keys() - found <= {"closed-to-open", "open-to-closed"}


@pytest.mark.parametrize("case", CASES["both models"], ids=lambda case: f"{case['row']}: {case['change']}")
@pytest.mark.parametrize("model", ["closed", "open"])
def test_forward_is_backward_with_the_sides_swapped(case, model):
    old, new = modelled(case["old"], model), modelled(case["new"], model)
    assert worst(old, new, Direction.FORWARD) == worst(new, old, Direction.BACKWARD)


@pytest.mark.sabotage
@pytest.mark.parametrize("rule", RULES)
def test_every_line_of_the_table_is_needed(rule, monkeypatch):
    """Each line turned into its opposite makes some written case red."""
    swapped = {Verdict.OK: Verdict.BREAK, Verdict.BREAK: Verdict.OK, Verdict.STRICT: Verdict.OK}
    monkeypatch.setattr(compatibility, "RULES", {**RULES, rule: Row(*(swapped[cell] for cell in RULES[rule]))})
    wrong = [
        case for case, direction, model in (each.values for each in EACH)
        if worst(modelled(case["old"], model), modelled(case["new"], model), direction)
        != case["verdicts"][f"{direction} {model}"]
    ]  # fmt: skip
    wrong += [
        case for case, direction in (each.values for each in BETWEEN)
        if worst(case["old"], case["new"], direction) != case["verdicts"][direction]
    ]  # fmt: skip
    assert wrong


_SCHEMAS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["string", "object", "#/$defs/A", "x"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from([
            "type", "properties", "required", "items", "anyOf", "oneOf", "allOf", "$ref", "$defs", "enum", "const",
            "additionalProperties", "prefixItems", "minimum", "maxLength", "multipleOf", "pattern", "A", "x",
        ]), inner, max_size=5),
    max_leaves=30,
)  # fmt: skip
_ANY = st.dictionaries(
    st.sampled_from(["type", "properties", "required", "anyOf", "$ref", "$defs", "allOf", "items", "oneOf"]), _SCHEMAS
)


@given(_ANY, _ANY)
def test_whatever_two_schemas_hold_nothing_is_raised_and_a_schema_fits_itself(old, new):
    for change in compare(old, new):
        assert change.rule in RULES
    assert compare(old, old) == []


def test_a_model_that_holds_itself_is_compared_once():
    def tree(leaf: str) -> dict[str, Any]:
        node = {"type": "object", "properties": {"leaf": {"type": leaf}, "next": {"$ref": "#/$defs/Node"}}}
        return {"$ref": "#/$defs/Node", "$defs": {"Node": node}}

    assert [(change.rule, change.path) for change in compare(tree("string"), tree("integer"))] == [
        ("type-changed", "leaf")
    ]


def test_an_open_reader_is_judged_leniently_and_a_closed_one_strictly():
    old = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    new = {"type": "object", "properties": {"a": {"type": "string"}, "c": {"type": "boolean"}}}
    assert breaks(compare(old, new), Direction.BACKWARD) == []
    assert breaks(compare(old, new), Direction.FORWARD) == []
    refusing = {"additionalProperties": False}
    found = breaks(compare({**old, **refusing}, {**new, **refusing}), Direction.BACKWARD)
    assert [(change.rule, change.path) for change in found] == [("remove-optional", "b")]
    found = breaks(compare({**old, **refusing}, {**new, **refusing}), Direction.FORWARD)
    assert [(change.rule, change.path) for change in found] == [("add-optional", "c")]


def test_a_text_beside_an_enum_takes_what_it_becomes():
    grown = [{"anyOf": [{"enum": values, "type": "string"}, {"type": "string"}]} for values in (["a"], ["a", "b"])]
    assert compare(*grown) == []
