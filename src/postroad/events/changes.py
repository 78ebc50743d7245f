"""How two JSON Schemas of one payload differ: a change each, by a name of the rules in `compatibility`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from postroad.events.schemas import (
    PLAIN,
    Schema,
    are_equal,
    branches,
    canonical,
    closed,
    enum,
    listed,
    mapping,
    number,
    properties,
    required,
    resolved,
    types,
    word,
)

_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_WORDED: Final = ("pattern", "format")
_DEEPEST: Final = 64


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `path` leads from the payload to the place (``parts[].weight``); empty is the payload itself.

    `closed_before` and `closed_after` say whether the object around it refuses names that it does not know.
    `name` and `detail` are names and values of schemas, never of payloads.
    """

    rule: str
    path: str
    detail: str = ""
    closed_before: bool = False
    closed_after: bool = False
    extensible: bool = False
    """Of an enum that grew: whether it said before that it might (``x-extensible``)."""


def compare(old: Schema, new: Schema) -> list[Change]:
    """Every change from `old` to `new`; annotations are none."""
    return list(_Comparison(old, new).walk(_Place(), old, new))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where two schemas are compared: the path, how deep it lies, and what holds of the object around it."""

    path: str = ""
    depth: int = 0
    closed_before: bool = False
    closed_after: bool = False

    def part(self, text: str) -> _Place:
        """A part of the value here: an item, or one of its forms."""
        return replace(self, path=self.path + text, depth=self.depth + 1)

    def inside(self, old: Schema, new: Schema) -> _Place:
        """Inside the object here."""
        return replace(self, closed_before=closed(old), closed_after=closed(new))

    def named(self, name: str) -> _Place:
        """A property of the object here."""
        return replace(self, path=f"{self.path}.{name}" if self.path else name, depth=self.depth + 1)

    def change(self, rule: str, detail: str = "") -> Change:
        return Change(rule, self.path, detail, self.closed_before, self.closed_after)


class _Comparison:
    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old, new
        self._met: set[tuple[str, str]] = set()

    def walk(self, place: _Place, old: Schema, new: Schema) -> Iterator[Change]:
        """The changes at `place` and below it."""
        if place.depth > _DEEPEST or self._again(old, new):
            return
        old, new = resolved(self._old, old), resolved(self._new, new)
        yield from _all_of(place, old, new)
        before, after = branches(old), branches(new)
        if len(before) > 1 or len(after) > 1:
            yield from self._union(place, before, after)
            return
        old, new = resolved(self._old, before[0]), resolved(self._new, after[0])
        change = _type_change(types(old), types(new))
        if change:
            yield place.change(change, f"{word(self._old, old)} to {word(self._new, new)}")
        if change not in {"type-changed", "type-narrowed"}:
            yield from _values(place, old, new)
            yield from (place.change(rule, keyword) for rule, keyword in _bounds(old, new))
            yield from self._items(place, old, new)
            yield from self._object(place, old, new)

    def _again(self, old: Schema, new: Schema) -> bool:
        """Whether these two were met before: a model that holds itself is compared once."""
        pair = (str(old.get("$ref")), str(new.get("$ref")))
        known = "None" not in pair and pair in self._met
        self._met.add(pair)
        return known

    # --- unions -----------------------------------------------------------------------------------------------------

    def _union(self, place: _Place, before: list[Schema], after: list[Schema]) -> Iterator[Change]:
        pairs, gone, come = self._paired(before, after)
        free = _free(resolved(self._old, each) for each in before) & _free(resolved(self._new, each) for each in after)
        for old, new in pairs:
            if not types(resolved(self._old, old)) <= free:  # Else a form beside it takes all that it may become.
                yield from self.walk(place.part(""), old, new)
        gone_words = ", ".join(word(self._old, branch) for branch in gone)
        come_words = ", ".join(word(self._new, branch) for branch in come)
        if gone and not pairs:
            yield place.change("type-changed", f"{gone_words} to {come_words}")
            return
        single = min(len(before), len(after)) == 1
        if gone:
            yield place.change("type-narrowed" if single else "branch-removed", f"no more {gone_words}")
        if come:
            yield place.change("type-widened" if single else "branch-added", f"also {come_words}")

    def _paired(
        self, before: list[Schema], after: list[Schema]
    ) -> tuple[list[tuple[Schema, Schema]], list[Schema], list[Schema]]:
        """Which branch became which: the same one, one of the same shape, one that takes as much; and the others."""
        pairs: list[tuple[Schema, Schema]] = []
        gone, come = [*before], [*after]
        for same in (are_equal, self._are_alike, self._takes):
            for old in [*gone]:
                found = next((new for new in come if same(old, new)), None)
                if found is not None:
                    pairs.append((old, found))
                    gone = [item for item in gone if item is not old]
                    come = [item for item in come if item is not found]
        return pairs, gone, come

    def _are_alike(self, old: Schema, new: Schema) -> bool:
        before, after = resolved(self._old, old), resolved(self._new, new)
        return types(before) == types(after) and before.get("title") == after.get("title")

    def _takes(self, old: Schema, new: Schema) -> bool:
        change = _type_change(types(resolved(self._old, old)), types(resolved(self._new, new)))
        return change in {"", "type-widened"}

    # --- arrays and objects -----------------------------------------------------------------------------------------

    def _items(self, place: _Place, old: Schema, new: Schema) -> Iterator[Change]:
        before, after = listed(old, "prefixItems"), listed(new, "prefixItems")
        if before and after and len(before) != len(after):
            yield place.change("type-changed", f"{len(before)} items to {len(after)}")
        for at, (first, second) in enumerate(zip(before, after, strict=False)):
            yield from self.walk(place.part(f"[{at}]"), first, second)
        if "items" in old or "items" in new:
            yield from self.walk(place.part("[]"), mapping(old, "items"), mapping(new, "items"))

    def _object(self, place: _Place, old: Schema, new: Schema) -> Iterator[Change]:
        if not ({"properties", "additionalProperties", "required"} & (old.keys() | new.keys())):
            return
        inside = place.inside(old, new)
        before, after, needed, needs = properties(old), properties(new), required(old), required(new)
        renamed = _renamed(old, new)
        for name, to in renamed.items():
            rule = "rename-required" if name in needed else "rename-optional"
            yield inside.named(name).change(rule, f"to {to}")
        for name in sorted(before.keys() - after.keys() - renamed.keys()):
            rule = _with_default("remove-required", before[name]) if name in needed else "remove-optional"
            yield inside.named(name).change(rule, word(self._old, before[name]))
        for name in sorted(after.keys() - before.keys() - set(renamed.values())):
            yield inside.named(name).change(_addition(after[name], needed=name in needs), word(self._new, after[name]))
        for name in sorted(before.keys() & after.keys()):
            here = inside.named(name)
            if name in needs and name not in needed:
                yield here.change(_with_default("optional-to-required", after[name]))
            elif name in needed and name not in needs:
                yield here.change(_with_default("required-to-optional", before[name]))
            yield from self.walk(here, before[name], after[name])
        yield from self._others(inside, old, new)

    def _others(self, place: _Place, old: Schema, new: Schema) -> Iterator[Change]:
        """What is said of names that are not listed."""
        before, after = old.get("additionalProperties", True), new.get("additionalProperties", True)
        if place.closed_before != place.closed_after:
            yield place.change("closed-to-open" if place.closed_before else "open-to-closed")
        elif isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from self.walk(place.named("*"), before, after)
        elif isinstance(before, Mapping) != isinstance(after, Mapping):
            rule = "bound-relaxed" if isinstance(before, Mapping) else "bound-tightened"
            yield place.named("*").change(rule, "additionalProperties")


# --- one place --------------------------------------------------------------------------------------------------------


def _all_of(place: _Place, old: Schema, new: Schema) -> Iterator[Change]:
    before = {canonical(branch) for branch in listed(old, "allOf")}
    after = {canonical(branch) for branch in listed(new, "allOf")}
    if after - before:
        yield place.change("all-of-added")
    if before - after:
        yield place.change("all-of-removed")


def _addition(schema: Schema, *, needed: bool) -> str:
    if needed:
        return _with_default("add-required", schema)
    return "add-optional" if schema.keys() - PLAIN else "add-optional-anything"


def _renamed(old: Schema, new: Schema) -> dict[str, str]:
    """Names that went where another of the very same schema came, if it is clear which."""
    before, after = properties(old), properties(new)
    gone = {name: (canonical(before[name]), name in required(old)) for name in before.keys() - after.keys()}
    come = {name: (canonical(after[name]), name in required(new)) for name in after.keys() - before.keys()}
    found: dict[str, str] = {}
    for name, kind in gone.items():
        alike = [other for other, its in come.items() if its == kind]
        alone = list(gone.values()).count(kind) == 1
        if len(alike) == 1 and alone and before[name].keys() - PLAIN:
            found[name] = alike[0]
    return found


def _free(branches: Iterable[Schema]) -> frozenset[str]:
    """The types of which some branch takes every value."""
    plain = [each for each in branches if each.keys() - PLAIN == {"type"}]
    return frozenset(name for each in plain for name in types(each) if name not in {"null", "object", "array"})


def _type_change(old: frozenset[str], new: frozenset[str]) -> str:
    wide_old, wide_new = _widened(old), _widened(new)
    if wide_old == wide_new:
        return ""
    if not new or (old and wide_old <= wide_new):
        return "type-widened"
    return "type-narrowed" if not old or wide_new <= wide_old else "type-changed"


def _widened(types: frozenset[str]) -> frozenset[str]:
    return types | {"integer"} if "number" in types else types


def _values(place: _Place, old: Schema, new: Schema) -> Iterator[Change]:
    """Lists of values: enums, and constants, which are enums of one."""
    if "const" in old and "const" in new:
        if canonical(old["const"]) != canonical(new["const"]):
            yield place.change("const-changed")
        return
    before, after = enum(old), enum(new)
    if before is None or after is None:
        if (before is None) != (after is None):
            yield place.change("bound-relaxed" if after is None else "bound-tightened", "enum")
        return
    added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    if added:
        yield replace(place.change("enum-added", ", ".join(added)), extensible=old.get("x-extensible") is True)
    if removed:
        yield place.change("enum-removed", ", ".join(removed))


def _bounds(old: Schema, new: Schema) -> Iterator[tuple[str, str]]:
    """Keywords that bound a value: the rule, and the keyword."""
    for keyword in (*_UPPER, *_LOWER):
        before, after = number(old.get(keyword)), number(new.get(keyword))
        if before == after:
            continue
        looser = after is None or (before is not None and (after > before) == (keyword in _UPPER))
        yield ("bound-relaxed" if looser else "bound-tightened"), keyword
    for keyword in _WORDED:
        worded, now = old.get(keyword), new.get(keyword)
        if worded != now:
            rule = "bound-tightened" if worded is None else "bound-relaxed" if now is None else "pattern-changed"
            yield rule, keyword
    if bool(old.get("uniqueItems")) != bool(new.get("uniqueItems")):
        yield ("bound-relaxed" if old.get("uniqueItems") else "bound-tightened"), "uniqueItems"
    yield from _multiple(number(old.get("multipleOf")), number(new.get("multipleOf")))


def _multiple(before: float | None, after: float | None) -> Iterator[tuple[str, str]]:
    if before == after:
        return
    if not after or (before and before % after == 0):
        yield "bound-relaxed", "multipleOf"
    else:
        yield ("bound-tightened" if not before or after % before == 0 else "pattern-changed"), "multipleOf"


def _with_default(rule: str, schema: Schema) -> str:
    return f"{rule}-with-default" if "default" in schema else rule
