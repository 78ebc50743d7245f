"""Reads JSON Schemas, whatever they hold: what is not a schema may be anything, and nothing is raised."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

ANYTHING: Final[Schema] = {}
PLAIN: Final = frozenset({"title", "description", "default", "examples", "$id", "$comment", "deprecated"})
"""Annotations: they change nothing for a validator. (A default counts where a property comes, goes or is needed.)"""
_DEEPEST: Final = 64
_MOST_NAMES: Final = 10_000
_DEEPEST_NAME: Final = 6  # models within models; those that hold one another have paths without number


def names(schema: Schema) -> dict[str, str]:
    """The path of every property, as deep as six models within one another, and a word for its type."""
    found: dict[str, str] = {}
    waiting: list[tuple[str, Schema, tuple[str, ...]]] = [("", schema, ())]
    while waiting and len(found) < _MOST_NAMES:
        path, item, through = waiting.pop()
        ref = item.get("$ref")
        if isinstance(ref, str):
            if ref in through or len(through) == _DEEPEST_NAME:
                continue
            through, item = (*through, ref), resolved(schema, item)
        forms = (*listed(item, "anyOf"), *listed(item, "oneOf"), *listed(item, "allOf"))
        waiting += [(path, form, through) for form in forms]
        if isinstance(item.get("items"), Mapping):
            waiting.append((f"{path}[]", item["items"], through))
        for name, inner in properties(item).items():
            place = f"{path}.{name}" if path else name
            found[place] = word(schema, inner)
            waiting.append((place, inner, through))
    return found


def word(root: Schema, schema: Schema, *, deep: int = 8) -> str:
    """A short word for a type, the same for the same JSON: ``integer``, ``null or string``, ``array of object``."""
    item = resolved(root, schema)
    forms = branches(item)
    if deep == 0:
        return "anything"
    if len(forms) > 1:
        return " or ".join(sorted({word(root, form, deep=deep - 1) for form in forms}))
    item = resolved(root, forms[0])
    kinds = sorted(types(item) or {"anything"})
    if kinds == ["array"] and isinstance(item.get("items"), Mapping):
        return f"array of {word(root, item['items'], deep=deep - 1)}"
    return " or ".join(kinds)


def resolved(root: Schema, schema: Schema) -> Schema:
    """The schema that a reference leads to, through some steps; what leads nowhere may be anything."""
    for _ in range(_DEEPEST):
        ref = schema.get("$ref")
        alone = listed(schema, "allOf")
        if not isinstance(ref, str):
            if len(alone) != 1 or schema.keys() - PLAIN != {"allOf"}:
                return schema
            schema = alone[0]  # How older writers put a description beside a reference.
            continue
        key = ref.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
        found = mapping(root, "$defs").get(key, mapping(root, "definitions").get(key))
        schema = found if isinstance(found, Mapping) else ANYTHING
    return ANYTHING


def branches(schema: Schema) -> list[Schema]:
    """The alternatives of a schema; itself where it has none."""
    return [*listed(schema, "anyOf"), *listed(schema, "oneOf")] or [schema]


def types(schema: Schema) -> frozenset[str]:
    """The JSON types that it names, or its values have; none where it takes anything."""
    given = schema.get("type")
    if isinstance(given, str):
        return frozenset({given})
    if isinstance(given, list):
        return frozenset(str(item) for item in given)
    values = enum(schema)
    if values is not None:
        return frozenset(_type_of(value) for value in values.values())
    return frozenset({"object"}) if "properties" in schema else frozenset()


def _type_of(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def enum(schema: Schema) -> dict[str, Any] | None:
    """The values it lists, by their JSON."""
    if "const" in schema:
        return {canonical(schema["const"]): schema["const"]}
    values = schema.get("enum")
    return {canonical(value): value for value in values} if isinstance(values, list) else None


def are_equal(old: Schema, new: Schema) -> bool:
    """Whether two schemas differ in nothing but annotations."""
    return canonical(old) == canonical(new)


def canonical(value: Any) -> str:
    """The JSON of a schema without its annotations, so that equal ones are equal texts."""
    if isinstance(value, Mapping):
        value = {name: inner for name, inner in value.items() if name not in PLAIN}
    return json.dumps(value, sort_keys=True, default=str)


def number(value: Any) -> float | None:
    """A number as it is; None for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def closed(schema: Schema) -> bool:
    """Whether an object refuses names that it does not know."""
    return schema.get("additionalProperties") is False


def required(schema: Schema) -> set[str]:
    """The names that an object must have."""
    given = schema.get("required")
    return {str(name) for name in given} if isinstance(given, list) else set()


def properties(schema: Schema) -> dict[str, Schema]:
    """The properties of an object by their names."""
    return {
        name: inner if isinstance(inner, Mapping) else ANYTHING for name, inner in mapping(schema, "properties").items()
    }


def mapping(schema: Schema, key: str) -> Mapping[str, Any]:
    """What stands under `key`, if that is an object."""
    found = schema.get(key)
    return found if isinstance(found, Mapping) else {}


def listed(schema: Schema, key: str) -> list[Schema]:
    """The schemas in the list under `key`."""
    found = schema.get(key)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
