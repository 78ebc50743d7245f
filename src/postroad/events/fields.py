"""The fields of a payload's model, nested ones included, as its declaration is checked by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict


@dataclass(frozen=True, slots=True)
class FieldFact:
    """One field: `path` from the event's class, all its `names` on the wire, and what its annotation carries.

    `kinds` are the plain types anywhere inside the annotation.
    """

    path: str
    names: tuple[str, ...]
    description: str
    markers: tuple[object, ...]
    kinds: tuple[object, ...]


def is_model(kind: object) -> bool:
    """Whether `kind` is a class that has fields: a pydantic model, a dataclass, a TypedDict or a NamedTuple."""
    if not isinstance(kind, type):
        return False
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind) or is_typeddict(kind) or named


def walk(model: type) -> Iterator[FieldFact]:
    """Every field of `model` and of the models inside it, each model once.

    Raises:
        NameError: an annotation names something that does not exist at run time.
    """
    waiting = [(model, "")]
    seen = {model}
    while waiting:
        kind, prefix = waiting.pop(0)
        for fact in _own_fields(kind, prefix):
            yield fact
            inner = [item for item in fact.kinds if is_model(item) and item not in seen]
            seen.update(inner)  # type: ignore[arg-type]  # is_model() proves that they are classes
            waiting += [(item, f"{fact.path}.") for item in inner]  # type: ignore[misc]


def _own_fields(model: type, prefix: str) -> Iterator[FieldFact]:
    if issubclass(model, BaseModel):
        yield from _pydantic_fields(model, prefix)
        return
    extras = {item.name: item for item in dataclasses.fields(model)} if dataclasses.is_dataclass(model) else {}
    infos: dict[str, FieldInfo] = getattr(model, "__pydantic_fields__", {})
    for name, annotation in _hints(model, extras).items():
        markers, kinds = _unfold(annotation)
        stated = extras[name].metadata.get("description", "") if name in extras else ""
        text = stated or (infos[name].description if name in infos else "") or _description(markers)
        aliases = [alias for info in (infos.get(name), *markers) for alias in _aliases(info)]
        yield FieldFact(prefix + name, (name, *aliases), text or "", tuple(markers), tuple(kinds))


def _hints(model: type, extras: dict[str, dataclasses.Field[Any]]) -> dict[str, Any]:
    hints = get_type_hints(model, include_extras=True)
    return {name: hint for name, hint in hints.items() if not extras or name in extras}


def _pydantic_fields(model: type[BaseModel], prefix: str) -> Iterator[FieldFact]:
    model.model_rebuild()
    for name, info in model.model_fields.items():
        markers, kinds = _unfold(info.annotation)
        markers += list(info.metadata)
        is_root = issubclass(model, RootModel)
        text = "the value itself" if is_root else info.description or _description(markers)
        names = () if is_root else (name, *_aliases(info))
        yield FieldFact(prefix + name, names, text, tuple(markers), tuple(kinds))
    for name, computed in model.model_computed_fields.items():
        markers, kinds = _unfold(computed.return_type)
        names = (name, computed.alias) if computed.alias else (name,)
        yield FieldFact(prefix + name, names, computed.description or "", tuple(markers), tuple(kinds))


def _aliases(info: object) -> tuple[str, ...]:
    if not isinstance(info, FieldInfo):
        return ()
    return tuple(alias for alias in (info.alias, info.serialization_alias) if isinstance(alias, str))


def _description(markers: list[object]) -> str:
    for marker in markers:
        text = marker.description if isinstance(marker, FieldInfo) else getattr(marker, "documentation", None)
        if isinstance(text, str) and text.strip():
            return text
    return ""


def _unfold(annotation: Any) -> tuple[list[object], list[object]]:
    """The markers and the plain types anywhere inside an annotation."""
    markers: list[object] = []
    kinds: list[object] = []
    waiting = [annotation]
    aliases: list[object] = []
    while waiting:
        item = waiting.pop()
        if get_origin(item) is Annotated:
            inner, *found = get_args(item)
            markers += found
            waiting.append(inner)
        elif hasattr(item, "__supertype__"):
            waiting.append(item.__supertype__)
        elif hasattr(item, "__value__"):  # A named alias, which may speak of itself.
            waiting += [*([] if item in aliases else [item.__value__]), *get_args(item)]
            aliases.append(item)
        elif get_args(item):
            waiting += [part for part in get_args(item) if not isinstance(part, str | int)]
            kinds.append(get_origin(item))
        else:
            kinds.append(item)
    return markers, kinds
