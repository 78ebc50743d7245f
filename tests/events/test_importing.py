"""What another service exported becomes a module that imports, type-checks and reads that service's events."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel, Field
from typing_extensions import Doc

from postroad.errors import ContractError
from postroad.events import Catalog, Producer
from postroad.events.event_type import event_type_of
from postroad.events.exported import exported, read_exported, read_values
from postroad.events.importing import module_of


class State(StrEnum):
    ON_TIME = "on time"
    LATE = "late"


class Leg(BaseModel):
    """One leg of it.

    "Quoted", with a \\ and two lines.
    """

    to: str = Field(description='Where it\'s going, "quoted".')
    state: State = Field(description="How it goes.")


class Node(BaseModel):
    """One of a chain."""

    next: Node | None = Field(default=None, description="The next.")


def module(text: str) -> ModuleType:
    made = ModuleType(f"made_{uuid4().hex}")
    sys.modules[made.__name__] = made  # Where pydantic looks for what annotations name.
    exec(compile(text, "made", "exec"), made.__dict__)
    return made


@pytest.fixture(scope="module")
def flights() -> tuple[Producer, type, type]:
    producer = Producer(f"p{uuid4().hex[:8]}")
    marked = Field(description="What may grow.", json_schema_extra={"x-extensible": True})

    @producer.event("flight.departed", version=2, upcasts={1: lambda data: data})
    class Departed(BaseModel):
        """A flight left the gate."""

        number: int = Field(description="Its number.", serialization_alias="flight-number")
        at: AwareDatetime = Field(description="When.")
        identity: UUID = Field(description="Which.")
        legs: list[Leg] = Field(description="Its legs.")
        first: Leg = Field(description="The first of them.")
        chain: Node = Field(description="A chain.")
        by_gate: dict[str, Leg] = Field(description="By gate.")
        pair: tuple[int, str] = Field(description="Two.")
        price: Decimal = Field(description="What it costs.")
        kind: Literal["a", "b"] = Field(description="Of which kind.")
        mood: Literal["good", "bad"] = marked
        anything: Any = Field(description="Whatever.")
        note: str | None = Field(default=None, description="A note.")
        gate: str = Field(default="A1", description="The gate.")
        class_: str = Field(description="A keyword.", serialization_alias="class")
        copy_: int = Field(description="A method's name.", serialization_alias="copy")
        model_x: int = Field(description="A protected name.", serialization_alias="model_dump")
        odd: int = Field(description="No identifier.", serialization_alias="1st  grüße/…")
        same: int = Field(description="Nearly the same.", serialization_alias="1st grüße")

    @producer.event("flight.cancelled", version=1)
    @dataclass
    class Cancelled:
        """A flight was cancelled."""

        number: Annotated[int, Doc("Its number.")]

    return producer, Departed, Cancelled


@pytest.fixture(scope="module")
def text(flights) -> str:
    content = json.dumps(exported(Catalog.of([flights[0]])))
    return module_of(read_exported(content, "x").events)


def test_the_module_reads_what_the_producer_writes(flights, text):
    _, departed, _ = flights
    leg = Leg(to="JFK", state=State.LATE)
    event = departed(
        number=7, at=datetime(2026, 1, 1, tzinfo=UTC), identity=UUID(int=1), legs=[leg], first=leg,
        chain=Node(next=Node()), by_gate={"A": leg}, pair=(1, "x"), price=Decimal("1.5"), kind="a", mood="good",
        anything=[1], class_="first", copy_=1, model_x=2, odd=3, same=4,
    )  # fmt: skip
    made = module(text)
    assert {name for name in dir(made) if name.isupper()} == {"FLIGHT_CANCELLED", "FLIGHT_DEPARTED"}
    assert (made.FLIGHT_DEPARTED.version, made.FLIGHT_DEPARTED.upcasts) == (2, {})
    body = json.loads(event_type_of(departed).encode_payload(event))
    read = made.FLIGHT_DEPARTED.decode({**body, "unknown": 1, "mood": "a mood of tomorrow"})
    assert (read.flight_number, read.at, read.identity) == (7, event.at, event.identity)
    assert (read.legs[0].to, read.legs[0].state, read.chain.next.next) == ("JFK", "late", None)
    assert (read.mood, read.price, read.pair, read.gate) == ("a mood of tomorrow", "1.5", (1, "x"), "A1")
    assert (read.class_, read.copy_, read.field_model_dump) == ("first", 1, 2)
    assert (read.field_1st_grüße, read.field_1st_grüße_) == (3, 4)
    assert made.FLIGHT_DEPARTED.decode({name: body[name] for name in body.keys() - {"note", "gate"}}).note is None
    with pytest.raises(ContractError):
        made.FLIGHT_DEPARTED.decode({**body, "kind": "c"})
    assert made.FLIGHT_CANCELLED.decode({"number": 3}).number == 3


def test_docstrings_and_descriptions_are_kept(text):
    made = module(text)
    assert made.FlightDeparted.__doc__ == "A flight left the gate."
    assert made.Leg.__doc__ == Leg.__doc__.replace("    ", "").strip()
    assert made.Leg.model_fields["to"].description == 'Where it\'s going, "quoted".'
    assert made.FlightCancelled.__doc__ == "A flight was cancelled."
    assert sorted(made.__all__) == made.__all__
    assert {*made.__all__} == {
        "FLIGHT_CANCELLED", "FLIGHT_DEPARTED", "FlightCancelled", "FlightDeparted", "Leg", "Node"
    }  # fmt: skip


@pytest.fixture
def written(text, tmp_path):
    """A folder with the module, one with strange names in it, and a use of them whose fourth line is wrong."""
    fields = dict(zip(_ODD_NAMES, cycle(_ODD_SCHEMAS), strict=False))
    schema = {
        "description": "Odd.", "$defs": {"A": {"properties": {"to": {"$ref": "#/$defs/A"}}}},
        "properties": {**fields, "inner": {"properties": fields}, "any": {"anyOf": _ODD_SCHEMAS}},
        "required": _ODD_NAMES[::2],
    }  # fmt: skip
    odd = {"type": "a.class.made", "version": 1, "owner": "a", "schema": schema}
    (tmp_path / "made.py").write_text(text, encoding="utf-8")
    (tmp_path / "odd.py").write_text(module_of(read_values({"events": [odd]}, "x").events), encoding="utf-8")
    (tmp_path / "use.py").write_text(
        "from made import FLIGHT_DEPARTED\n"
        "def look(data: dict[str, object]) -> str:\n"
        "    event = FLIGHT_DEPARTED.decode(data)\n"
        "    wrong: int = event.gate; print(wrong)\n"
        "    return event.legs[0].to\n"
    )
    return tmp_path


def test_the_module_type_checks(written):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(written / "cache"),
         "made.py", "odd.py", "use.py"],
        cwd=written, capture_output=True, text=True, check=False,
    )  # fmt: skip
    (error,) = [line for line in done.stdout.splitlines() if "error" in line]
    assert error.startswith("use.py:4: error: Incompatible types in assignment"), done.stdout + done.stderr


def test_the_module_type_checks_by_pyright(written):
    (written / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=written, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    (error,) = json.loads(done.stdout)["generalDiagnostics"]
    assert (Path(error["file"]).name, error["range"]["start"]["line"] + 1) == ("use.py", 4), error
    assert error["rule"] == "reportAssignmentType"


def test_the_latest_version_of_each_type_is_read_and_the_same_file_gives_the_same_text():
    events = [
        {"type": "a.b.made", "version": version, "owner": "a", "schema": {"properties": {f"v{version}": {}}}}
        for version in (2, 10, 9)
    ]
    read = read_values({"events": events}, "x").events
    assert module_of(read) == module_of(reversed(read))
    assert "version=10" in module_of(read)
    assert module_of(read).count("_Subscription(") == 1


_ODD_NAMES = [
    "class", "None", "self", "cls", "int", "str", "list", "model_config", "model_fields", "copy", "json", "_private",
    "__init__", "Event", "ABMade", "FLIGHT", "ﬁ", "fi", "²", "x²", "a b", "a-b", "a_b", "'", '"""', "\\", "\n",
    "\ud800", "_pydantic", "Field",
    "import os", "µ", "\u00b5", "\u03bc", "名", "Model", "field_x", "x", "_x",
]  # fmt: skip
_ODD_SCHEMAS = [
    {"type": "string"}, {"type": "integer"}, {}, {"type": "string", "format": "date-time"}, {"$ref": "#/$defs/A"},
    {"$ref": "#/$defs/nowhere"}, {"const": "x'\"\\"}, {"enum": ["a | b", "[", 1, None, True]}, {"enum": [[]]},
    {"type": ["string", "null"], "default": None}, {"type": "number", "default": 1}, {"allOf": [{}, {}]},
    {"type": "string", "default": "'''"}, {"type": 7}, {"anyOf": []},
]  # fmt: skip
_NAMES = st.text(max_size=12) | st.sampled_from(_ODD_NAMES)
_SCHEMA = st.deferred(
    lambda: st.one_of(
        st.sampled_from(_ODD_SCHEMAS),
        st.builds(lambda inner: {"type": "array", "items": inner}, _SCHEMA),
        st.builds(lambda inner: {"type": "object", "additionalProperties": inner}, _SCHEMA),
        st.builds(lambda *forms: {"anyOf": [*forms]}, _SCHEMA, _SCHEMA),
        st.builds(lambda *forms: {"type": "array", "prefixItems": [*forms]}, _SCHEMA, _SCHEMA),
        _object(),
    )
)


def _object() -> Any:
    return st.builds(
        lambda fields, said: {"type": "object", "properties": fields, "required": [*fields][::2], "description": said},
        st.dictionaries(_NAMES, _SCHEMA, max_size=4), _NAMES,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(_object(), _NAMES, _object(), _NAMES)
def test_whatever_the_names_the_module_can_be_imported(schema, name, inner, said):
    whole = {**schema, "$defs": {"A": inner, name: inner}}
    event = {"type": "a.b.made", "version": 1, "owner": "a", "description": said, "schema": whole}
    made = module_of(read_values({"events": [event]}, "x").events)
    made.encode("utf-8", "surrogatepass").decode("utf-8")
    ast.parse(made)
    assert module(made).B_MADE.model.__name__ == "BMade"


def test_nothing_in_a_file_is_code():
    evil = '"""\nraise SystemExit("taken")\n"""'
    schema = {
        "properties": {evil: {"type": "string", "description": evil, "default": evil, "enum": [evil]}},
        "description": evil,
    }
    event = {
        "type": "a.b.made",
        "version": 1,
        "owner": evil,
        "description": evil,
        "schema": {**schema, "$defs": {evil: {}}},
    }
    made = module(module_of(read_values({"events": [event]}, "x").events))
    (field,) = made.BMade.model_fields.values()
    assert (field.default, field.validation_alias, made.BMade.__doc__) == (evil, evil, evil)
