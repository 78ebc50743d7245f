"""What a new catalog breaks of an old one is found, and told with whose data it is and how to mend it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, Union
from uuid import uuid4

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model
from typing_extensions import Doc

from postroad.errors import UsageError
from postroad.events import Catalog, Keep, Producer, Subscription, contracts
from postroad.events.contracts import Severity, check
from postroad.events.exported import Exported, exported, read_exported, read_values


def same(data: dict[str, Any]) -> dict[str, Any]:
    return data


class Service:
    """A service whose releases declare other versions of the same type; `name` stays, as in a repository."""

    def __init__(self) -> None:
        self.name = f"p{uuid4().hex[:8]}"

    def event(self, version: int = 1, **options: Any) -> Any:
        """A declaration: fields as `create_model` takes them, and what `Producer.event` takes."""
        return version, options

    def release(
        self, *events: Any, since: Exported | None = None, reads: Any = (), subject: str = "flight.left"
    ) -> Any:
        producer = Producer(f"q{uuid4().hex}")
        for version, options in events:
            fields = options.pop("fields")
            config = options.pop("config", None)
            model: Any = create_model("Left", __doc__="A flight left.", __config__=config, **fields)
            model.__qualname__ = f"Left{uuid4().hex}"
            producer.event(subject, version=version, **options)(model)
        text = json.dumps(exported(Catalog.of([producer], reads)))
        values = json.loads(text.replace(producer.name, self.name))
        made = read_values(values, "catalog")
        if since is None:
            return made
        return read_values(_again(values, since), "catalog")


def _again(values: dict[str, Any], since: Exported) -> dict[str, Any]:
    """The same export with the ledger of the one before, as the command makes it."""
    from postroad.events.exported import ledger

    now = read_values(values, "catalog")
    for event, shown in zip(now.events, values["events"], strict=True):
        shown["removed"] = [one.model_dump() for one in ledger(event, since.of(event.type))]
    for name in {*since.versions, *(event.type for event in since.events)}:
        values["versions"][name] = sorted({*since.ever(name), *now.ever(name)})
    return values


def f(kind: Any, default: Any = ..., **more: Any) -> Any:
    return kind, Field(default, description="Said.", **more)


BASE = {"id": f(str)}
MADE = (list[str], Field(default_factory=list, description="Gates."))
ONE = '{"type": "a.b.c", "version": 1, "owner": "a", "schema": {}}'


def rules(old: Exported, new: Exported, *, severity: Severity | None = None) -> list[tuple[str, str]]:
    return [(one.rule, one.path) for one in check(old, new) if severity in {None, one.severity}]


def changed(before: dict[str, Any], after: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    service = Service()
    return rules(
        service.release(service.event(fields=before, **options)),
        service.release(service.event(fields=after, **options)),
    )


# --- fields of one version --------------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    """Inside."""

    grams: int = Field(description="Weight.")


class Wider(BaseModel):
    """Inside."""

    grams: int = Field(description="Weight.")
    gate: str = Field(description="Gate.")


FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, list[tuple[str, str]]]]] = {
    "nothing": (BASE, BASE, {}),
    "an optional field more": (BASE, {**BASE, "gate": f(str | None, None)}, {}),
    "a field with a default more": (BASE, {**BASE, "gate": f(str, "A1")}, {}),
    "a field with a default that is made": (BASE, {**BASE, "gates": MADE}, {}),
    "a required field more": (BASE, {**BASE, "gate": f(str)}, {"backward": [("add-required", "gate")]}),
    "an optional field less": ({**BASE, "gate": f(str | None, None)}, BASE, {}),
    "a required field less": ({**BASE, "gate": f(str)}, BASE, {"forward": [("remove-required", "gate")]}),
    "a default less": ({"gate": f(str, "A")}, {"gate": f(str)}, {"backward": [("optional-to-required", "gate")]}),
    "a default more": (
        {"gate": f(str)}, {"gate": f(str, "A")}, {"forward": [("required-to-optional-with-default", "gate")]}),
    "integer to number": ({"n": f(int)}, {"n": f(float)}, {"forward": [("type-widened", "n")]}),
    "number to integer": ({"n": f(float)}, {"n": f(int)}, {"backward": [("type-narrowed", "n")]}),
    "text to integer": (
        {"n": f(str)}, {"n": f(int)}, {"backward": [("type-changed", "n")], "forward": [("type-changed", "n")]}),
    "null more": ({"n": f(str)}, {"n": f(str | None)}, {"forward": [("type-widened", "n")]}),
    "a bound": ({"n": f(str)}, {"n": f(str, max_length=3)}, {"backward": [("bound-tightened", "n")]}),
    "a bound less": ({"n": f(int, ge=0)}, {"n": f(int)}, {"forward": [("bound-relaxed", "n")]}),
    "a value of an enum less": ({"c": f(Colour)}, {"c": f(Literal["red"])}, {"backward": [("enum-removed", "c")]}),
    "a field within": (
        {"parts": f(list[Inner])}, {"parts": f(list[Wider])}, {"backward": [("add-required", "parts[].gate")]}),
    "words and titles": ({"n": f(int, title="A")}, {"n": (int, Field(description="Other.", title="B"))}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("promise", ["backward", "forward", "full", "none"])
def test_a_version_is_held_to_its_own_promise(name, promise):
    before, after, expected = FIELDS[name]
    wanted = {"backward": ["backward"], "forward": ["forward"], "full": ["backward", "forward"], "none": []}[promise]
    found = changed(before, after, compatibility=promise)
    told = sorted(each for direction in wanted for each in expected.get(direction, []))
    assert sorted(rule.removesuffix("-with-default") + path for rule, path in found) == [
        rule.removesuffix("-with-default") + path for rule, path in told
    ]


def test_a_class_that_refuses_what_it_does_not_know_is_judged_strictly():
    config = ConfigDict(extra="forbid")
    before, after = {**BASE, "gate": f(str | None, None)}, BASE
    assert changed(before, after, config=config) == [("remove-optional", "gate")]
    assert changed(after, before, config=config, compatibility="forward") == [("add-optional", "gate")]
    assert changed(after, before, config=config) == []


def test_the_message_says_whose_data_breaks_and_how_to_mend_it():
    service = Service()
    old = service.release(service.event(3, fields=BASE, retention=Keep.DAYS_30))
    new = service.release(service.event(3, fields={**BASE, "gate": f(str)}, retention=Keep.DAYS_30))
    (found,) = check(old, new)
    assert found.line == (
        f"break: {service.name}.flight.left v3, field gate was added as required (string): events of v3, kept 30 days,"
        " would be refused by consumers on the new class; give it a default, or publish v4 with upcasts={3: ...}"
    )


def test_a_rename_is_told_even_where_nothing_refuses_it():
    found = Service()
    before, after = {**BASE, "late": f(int | None, None)}, {**BASE, "delay": f(int | None, None)}
    old, new = (found.release(found.event(fields=fields)) for fields in (before, after))
    assert rules(old, new) == [("rename-optional", "late")]
    assert [one.severity for one in check(old, new)] == [Severity.WARNING]
    before, after = {**BASE, "late": f(int)}, {**BASE, "delay": f(int)}
    old, new = (found.release(found.event(fields=fields)) for fields in (before, after))
    assert ("rename-required", "late") in rules(old, new, severity=Severity.BREAK)


# --- enums ------------------------------------------------------------------------------------------------------------


class More(StrEnum):
    RED = "red"
    BLUE = "blue"
    PINK = "pink"


@pytest.mark.parametrize("promise", ["backward", "forward", "full"])
def test_an_enum_grows_only_where_it_said_that_it_may(promise):
    assert changed({"c": f(Colour)}, {"c": f(More)}, compatibility=promise) == [("enum-added", "c")]
    marked = {"x-extensible": True}
    open_ = (
        Annotated[Literal["red"], Field(json_schema_extra=marked)],
        Annotated[Literal["red", "pink"], Field(json_schema_extra=marked)],
    )
    assert changed({"c": f(open_[0])}, {"c": f(open_[1])}, compatibility=promise) == []
    beside = Union[Literal["red"], str], Union[Literal["red", "pink"], str]  # noqa: PYI051, UP007 - as readers take it
    assert changed({"c": f(beside[0])}, {"c": f(beside[1])}, compatibility=promise) == []
    assert changed({"c": f(Colour)}, {"c": f(More)}, compatibility="none") == []


# --- names that went --------------------------------------------------------------------------------------------------


def test_a_name_that_went_never_comes_back_as_something_else():
    service = Service()
    first = service.release(service.event(fields={**BASE, "late": f(int | None, None)}))
    second = service.release(service.event(fields=BASE), since=first)
    third = service.release(service.event(fields=BASE), since=second)  # Nothing is forgotten on the way.
    assert [one.path for one in third.events[0].removed] == ["late"]
    back = service.release(service.event(fields={**BASE, "late": f(int | None, None)}), since=third)
    assert rules(third, back) == []
    other = service.release(service.event(fields={**BASE, "late": f(str | None, None)}), since=third)
    assert rules(third, other) == [("name-reused", "late")]
    assert "was integer or null before it was removed" in check(third, other)[0].what
    forgot = service.release(service.event(fields=BASE))
    assert rules(third, forgot) == [("ledger-lost", "")]


@pytest.mark.sabotage
def test_without_the_ledger_the_name_comes_back_unseen(monkeypatch):
    monkeypatch.setattr(contracts, "_reused", lambda *_: ())
    with pytest.raises(AssertionError):
        test_a_name_that_went_never_comes_back_as_something_else()


def test_names_within_are_remembered_too():
    service = Service()
    first = service.release(service.event(fields={"parts": f(list[Wider])}))
    second = service.release(service.event(fields={"parts": f(list[Inner])}), since=first)
    assert [(one.path, one.word) for one in second.events[0].removed] == [("parts[].gate", "string")]


# --- versions ---------------------------------------------------------------------------------------------------------


def test_a_new_version_needs_a_chain_from_every_version_that_there_may_be_events_of():
    service = Service()
    first = service.release(service.event(1, fields=BASE))
    bare = service.release(service.event(2, fields=BASE), since=first)
    assert rules(first, bare) == [("upcast-lost", "")]
    assert "upcasts={1: ...}" in check(first, bare)[0].remedy
    second = service.release(service.event(2, fields=BASE, upcasts={1: same}), since=first)
    assert rules(first, second) == []
    skipping = service.release(service.event(3, fields=BASE, upcasts={2: same}), since=second)
    assert [(one.rule, one.version) for one in check(second, skipping)] == [("upcast-lost", 1)]
    whole = service.release(service.event(3, fields=BASE, upcasts={1: same, 2: same}), since=second)
    assert rules(second, whole) == []
    assert whole.versions == {f"{service.name}.flight.left": (1, 2, 3)}
    back = service.release(service.event(2, fields=BASE, upcasts={1: same}), since=whole)
    assert [(one.rule, one.version) for one in check(whole, back)] == [("upcast-lost", 3)]


def test_old_readers_that_were_promised_to_read_on_keep_their_version():
    service = Service()
    first = service.release(service.event(1, fields=BASE, compatibility="full"))
    moved = service.release(service.event(2, fields=BASE, upcasts={1: same}, compatibility="full"))
    assert rules(first, moved) == [("version-removed", "")]
    both = service.release(
        service.event(1, fields=BASE, compatibility="full"),
        service.event(2, fields=BASE, upcasts={1: same}, compatibility="full"),
    )  # fmt: skip
    assert rules(first, both) == []


# --- promises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Keep.DAYS_90, Keep.DAYS_30, [("retention-shortened", Severity.BREAK)]),
        (Keep.FOREVER, Keep.DAYS_400, [("retention-shortened", Severity.BREAK)]),
        (Keep.DAYS_30, Keep.FOREVER, [("retention-lengthened", Severity.WARNING)]),
        (Keep.DAYS_30, Keep.DAYS_30, []),
    ],
)
def test_retention_that_changes_is_told(before, after, expected):
    service = Service()
    old, new = (service.release(service.event(fields=BASE, retention=keep)) for keep in (before, after))
    assert [(one.rule, one.severity) for one in check(old, new)] == expected


def test_a_promise_that_is_weakened_is_told_and_the_old_one_holds():
    service = Service()
    old = service.release(service.event(fields=BASE, compatibility="full"))
    new = service.release(service.event(fields={**BASE, "gate": f(str)}, compatibility="none"))
    assert rules(old, new) == [("add-required", "gate"), ("promise-weakened", "")]
    stronger = service.release(service.event(fields=BASE, compatibility="backward"))
    assert rules(stronger, old) == []


def test_a_type_that_goes_or_changes_its_owner_is_told():
    service, other = Service(), Service()
    old = service.release(service.event(fields=BASE))
    assert rules(old, Exported()) == [("type-removed", "")]
    (moved,) = check(old, other.release(other.event(fields=BASE)))
    assert (moved.rule, moved.severity) == ("owner-changed", Severity.BREAK)
    assert f"its owner was {service.name} and is {other.name}" in moved.what
    given = service.release(service.event(fields=BASE))
    stolen = Exported(tuple(one.model_copy(update={"owner": "another"}) for one in given.events))
    assert rules(old, stolen) == [("owner-changed", "")]
    assert check(Exported(), old) == []


# --- readers ----------------------------------------------------------------------------------------------------------


class Late(BaseModel):
    late: int


class Anything(BaseModel):
    id: str


def test_a_consumer_that_is_known_is_told_by_its_model():
    service = Service()
    name = f"{service.name}.flight.left"
    reads = [Subscription(name, version=1, model=Late), Subscription(name, version=1, model=Anything)]
    old = service.release(service.event(fields={**BASE, "late": f(int)}), reads=reads)
    new = service.release(service.event(fields=BASE), reads=reads)
    found = [one for one in check(old, new) if one.rule.startswith("reader-")]
    assert found
    assert {(one.rule, one.path) for one in found} == {("reader-add-required", "late")}
    assert all("test_contracts.Late would refuse" in one.whose for one in found)
    assert check(new, new) == []


def test_a_catalog_is_compatible_with_itself_whatever_its_classes_write_and_read():
    service = Service()

    @dataclass
    class Odd:
        """Odd."""

        at: Annotated[int, Field(validation_alias="in", serialization_alias="out"), Doc("When.")]
        tags: Annotated[list[str], Doc("Tags.")] = field(default_factory=list)

    producer = Producer(service.name)
    producer.event("thing.seen", version=1, compatibility="full")(Odd)
    text = json.dumps(exported(Catalog.of([producer])))
    whole = read_exported(text, "x")
    assert check(whole, whole) == []


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON, line 1"), ("[" * 100_000, "is not JSON"), ("[]", "is not an exported catalog"),
        ("3", "is not an exported catalog"),
        ('{"events": [{"type": "a.b.c"}]}', r"\(events\.0\.version\)"),
        ('{"events": [{"type": "x; import os", "version": 1, "owner": "x", "schema": {}}]}', r"\(events\.0\.type\)"),
        ('{"format": 9}', "later release"), ('{"events": 3}', r"\(events\)"),
        (f'{{"events": [{ONE}, {ONE}]}}', "holds a.b.c v1 twice"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_one_line(text, said):
    with pytest.raises(UsageError, match=said) as caught:
        read_exported(text, "old.json")
    assert "\n" not in str(caught.value)
    assert "'old.json'" in str(caught.value)
