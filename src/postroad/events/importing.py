"""Writes the Python module by which one service reads the events of another: `Subscription`s and models.

Names from a file become identifiers, everything else of it a literal: nothing that a stranger writes there is code.
"""

from __future__ import annotations

import builtins
import keyword
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from postroad.events.schemas import Schema, branches, canonical, enum, listed, mapping, properties, required, resolved
from postroad.events.schemas import types as types_of

if TYPE_CHECKING:
    from postroad.events.exported import ExportedEvent

_HEAD: Final = '''"""Events of others, read tolerantly: what a model does not name is ignored.

Made by `postroad catalog import`; make it anew rather than change it.
"""
# ruff: noqa

from __future__ import annotations

{imports}import pydantic as _pydantic

from postroad import Subscription as _Subscription


class _Read(_pydantic.BaseModel):
    model_config = _pydantic.ConfigDict(populate_by_name=True, extra="ignore", protected_namespaces=())
'''
_STANDARD: Final = ("datetime", "typing", "uuid")
"""Imported where they are used: strict checkers refuse an import that is not."""
_FORMATS: Final = {
    "date-time": "_datetime.datetime", "date": "_datetime.date", "time": "_datetime.time",
    "duration": "_datetime.timedelta", "uuid": "_uuid.UUID",
}  # fmt: skip
_PLAIN: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_ANY: Final = "_typing.Any"
_TAKEN: Final = frozenset(dir(BaseModel)) | {"str", "int", "float", "bool", "list", "dict", "tuple", "model_config"}
_DEEPEST: Final = 24


def module_of(events: Iterable[ExportedEvent]) -> str:
    """The source of a module that reads the latest version of each type; the same text for the same events."""
    latest: dict[str, ExportedEvent] = {}
    for event in sorted(events, key=lambda one: (one.type, one.version)):
        latest[event.type] = event
    module = _Module()
    for event in latest.values():
        module.add(event)
    names = [*module.subscriptions]
    listed_names = "".join(f"    {name!r},\n" for name in sorted([*names, *module.models]))
    parts = [*module.models.values(), "\n".join(module.subscriptions.values()) + "\n"]
    text = "\n\n".join(parts) + f"\n__all__ = [\n{listed_names}]\n"
    used = [f"import {name} as _{name}\n" for name in _STANDARD if f"_{name}." in text]
    return _HEAD.replace("{imports}", "".join([*used, "\n"] if used else [])) + "\n\n" + text


class _Module:
    """What the module holds: the text of each model and of each subscription, by its name."""

    def __init__(self) -> None:
        self.models: dict[str, str] = {}
        self.subscriptions: dict[str, str] = {}
        self._known: dict[tuple[str, str], str] = {}
        self._event: ExportedEvent | None = None
        self._deep = 0

    def add(self, event: ExportedEvent) -> None:
        """The models of an event, and its subscription."""
        self._event = event
        subject = ".".join(event.type.split(".")[1:])
        schema = resolved(event.written, event.written)
        name = self._named(_class_name(subject))
        self._known[event.type, canonical(schema)] = name
        self._model(name, schema, event.description, needed=required(event.written) & required(event.read))
        constant = _unique(_constant(subject), {*self.subscriptions, *self.models})
        call = f"_Subscription({event.type!r}, version={event.version}, model={name})"
        self.subscriptions[constant] = f"{constant} = {call}"

    def _named(self, wanted: str) -> str:
        name = _unique(wanted, {*self.models, *self.subscriptions})
        self.models[name] = ""  # Taken, before what it holds asks for names.
        return name

    def _model(self, name: str, schema: Schema, fallback: str = "", *, needed: set[str]) -> None:
        said = schema.get("description")
        lines = [f"class {name}(_Read):", f"    {_docstring(said if isinstance(said, str) and said else fallback)}"]
        taken = {*_TAKEN}
        for wire, inner in properties(schema).items():
            field = _unique(_field_name(wire), taken)
            taken.add(field)
            lines += ["", *self._field(field, wire, inner, needed=wire in needed)]
        self.models[name] = "\n".join(lines) + "\n"

    def _field(self, name: str, wire: str, schema: Schema, *, needed: bool) -> Iterator[str]:
        kinds = self._type(schema, _class_name(wire))
        options = []
        if not needed:
            given = _default(schema, kinds)
            options.append(f"default={given}")
            kinds = _union([*kinds, *(["None"] if given == "None" else [])])
        if name != wire:
            options.append(f"validation_alias={_text(wire)!r}")
        if isinstance(schema.get("description"), str):
            options.append(f"description={_text(schema['description'])!r}")
        yield f"    {name}: {_shown(kinds)}" + (f" = _pydantic.Field({', '.join(options)})" if options else "")

    # --- types ------------------------------------------------------------------------------------------------------

    def _type(self, schema: Schema, wanted: str) -> list[str]:
        """The members of a schema's annotation; models within it are written on the way."""
        self._deep += 1
        try:
            return [_ANY] if self._deep > _DEEPEST else self._typed(schema, wanted)
        finally:
            self._deep -= 1

    def _typed(self, schema: Schema, wanted: str) -> list[str]:
        assert self._event is not None
        ref = schema.get("$ref")
        wanted = _class_name(str(ref).rpartition("/")[2]) if isinstance(ref, str) else wanted
        item = resolved(self._event.written, schema)
        values = enum(item)
        if values is not None:
            return _literal(values.values(), extensible=item.get("x-extensible") is True)
        forms = branches(item)
        if forms != [item]:
            return _union(kind for form in forms for kind in self._type(form, wanted))
        if listed(item, "allOf"):
            return [_ANY]
        return _union(self._plain(kind, item, wanted) for kind in sorted(types_of(item)) or [""])

    def _plain(self, kind: str, item: Schema, wanted: str) -> str:
        if kind == "string":
            return _FORMATS.get(str(item.get("format")), "str")
        if kind == "array":
            return self._array(item, wanted)
        if kind == "object":
            return self._object(item, wanted)
        return _PLAIN.get(kind, _ANY)

    def _array(self, item: Schema, wanted: str) -> str:
        places = listed(item, "prefixItems")
        if places and "items" not in item:
            return f"tuple[{', '.join(_shown(self._type(place, wanted)) for place in places)}]"
        return f"list[{_shown(self._type(mapping(item, 'items'), wanted))}]"

    def _object(self, item: Schema, wanted: str) -> str:
        assert self._event is not None
        if "properties" not in item:
            return f"dict[str, {_shown(self._type(mapping(item, 'additionalProperties'), wanted))}]"
        key = (self._event.type, canonical(item))
        if key not in self._known:
            self._known[key] = self._named(wanted)
            self._model(self._known[key], item, needed=required(item))
        return self._known[key]


# --- names ------------------------------------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    """The parts of a name that can stand in an identifier, as Python reads it (NFKC)."""
    plain = unicodedata.normalize("NFKC", text)
    return [word for word in re.split(r"\W+|_", plain) if word and f"a{word}".isidentifier()]


def _class_name(text: str) -> str:
    name = "".join(word[0].upper() + word[1:] for word in _words(text))
    return _sound(name if name[:1].isidentifier() else f"Model{name}")


def _constant(text: str) -> str:
    return _sound("_".join(word.upper() for word in _words(text)) or "EVENT")


def _field_name(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text)
    name = plain if plain.isidentifier() else "_".join(_words(text))
    # Models begin with what has no lower case: a field that did might be taken for one where annotations are read.
    if not name.isidentifier() or name.startswith(("_", "model_")) or name[0] == name[0].upper():
        name = f"field_{name.lstrip('_')}"
    return _sound(name)


def _sound(name: str) -> str:
    """A name that is neither a keyword nor a builtin that annotations need."""
    name = unicodedata.normalize("NFKC", name)
    return f"{name}_" if keyword.iskeyword(name) or (name in dir(builtins) and name[:1].isupper()) else name


def _unique(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    if f"{name}_" not in taken:
        return f"{name}_"
    return next(f"{name}_{number}" for number in range(2, len(taken) + 3) if f"{name}_{number}" not in taken)


# --- literals ---------------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    """A text without lone surrogates, of which neither Python's names of types nor pydantic take any."""
    return text.encode("utf-8", "replace").decode()


def _docstring(text: str) -> str:
    text = _text(text).strip()
    plain = text.isprintable() and not {'"', "\\"} & {*text}
    return f'"""{text}"""' if plain and text else repr(text or "What is read of it.")


def _literal(values: Iterable[Any], *, extensible: bool) -> list[str]:
    """The values as a Literal; one that may grow takes any other of its type, so that no reader stumbles."""
    given = [*values]
    kinds = {type(value) for value in given}
    if not given or not kinds <= {str, int, bool, type(None)}:
        return [_ANY]
    others = sorted(kind.__name__ for kind in kinds & {str, int}) if extensible else []
    return [f"_typing.Literal[{', '.join(map(_value, given))}]", *others]


def _default(schema: Schema, kinds: Iterable[str]) -> str:
    """The default as a literal, where it is a plain value of a plain type; else None."""
    given = schema.get("default")
    plain = all(kind in {*_PLAIN.values()} or kind.startswith("_typing.Literal[") for kind in kinds)
    return _value(given) if plain and isinstance(given, str | int | bool) else "None"


def _value(value: Any) -> str:
    return repr(_text(value) if isinstance(value, str) else value)


def _union(kinds: Iterable[str]) -> list[str]:
    found = [*dict.fromkeys(kinds)]
    return [_ANY] if _ANY in found or not found else sorted(found, key=lambda kind: kind == "None")


def _shown(kinds: Iterable[str]) -> str:
    return " | ".join(kinds)
