"""What a declaration must be: the checks of producers, event types and their models, each giving problems as text."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, PydanticUserError, RootModel

from postroad.events.envelope import MAX_PAYLOAD_BYTES
from postroad.events.event_type import adapter_of
from postroad.events.fields import FieldFact, walk
from postroad.events.sensitive import is_credential, is_marked, is_secret_type
from postroad.events.tense import is_past

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_RESERVED: Final = frozenset({"amq", "postroad"})
_MAX_INTEGER: Final = 2**31 - 1  # A CloudEvents Integer is a signed 32-bit number.
_REFERENCE: Final = "publish a reference, and let consumers ask the owner"

Problem = tuple[str, str]
"""A code and a text: all problems of one declaration are told in one error."""


def producer_problem(name: object) -> str | None:
    """What is wrong with a producer's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "must be one word of lower-case letters, digits, _ and -, starting with a letter (at most 63)"
    if name in _RESERVED:
        return "is reserved; choose another"
    return None


def name_problems(name: object, *, producer: str, past_tense: bool) -> Iterator[Problem]:
    """What is wrong with an event's name under its producer."""
    segments = name.split(".") if isinstance(name, str) else []
    if len(segments) > 2 and segments[0] == producer:  # noqa: PLR2004 - entity and past tense
        yield "PR102", f"the name must not repeat the producer {producer!r}"
        return
    if len(segments) > 2:  # noqa: PLR2004 - entity and past tense
        shape = f"the name must be <entity>.<past-tense>, two words under the producer {producer!r}"
        yield "PR102", f"{shape}, and has {len(segments)}; where {segments[0]!r} is a producer, only it may declare it"
        return
    if len(segments) != 2 or not all(_NAME.fullmatch(segment) for segment in segments):  # noqa: PLR2004
        yield "PR102", "the name must be <entity>.<past-tense>, two words of lower-case letters, digits, _ and -"
        return
    if not past_tense and not is_past(segments[1]):
        yield "PR102", f"{segments[1]!r} is not in the past tense (if it is, say past_tense=True)"


def version_problems(version: object, upcasts: Mapping[int, object]) -> Iterator[Problem]:
    """What is wrong with a version, and with the upcasts that lead to it."""
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= _MAX_INTEGER:
        yield "PR102", "version must be an integer from 1"
        return
    if upcasts and sorted(upcasts) != list(range(min(upcasts), version)):
        yield "PR102", f"upcasts must lead version by version up to {version}: keys ..., {version - 1}"
    elif upcasts and min(upcasts) < 1:
        yield "PR102", "upcasts start at version 1 at the earliest"
    if not all(callable(upcast) and not inspect.iscoroutinefunction(upcast) for upcast in upcasts.values()):
        yield "PR102", "each upcast must be a function from dict to dict"


def choice_problem(name: str, value: object, choices: type[StrEnum]) -> Iterator[Problem]:
    """What is wrong with a value that must be one of a few words."""
    if value not in list(choices):
        yield "PR102", f"{name} must be one of {', '.join(choices)}"


def limit_problem(max_bytes: object) -> Iterator[Problem]:
    """What is wrong with a limit of bytes."""
    if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or not 1 <= max_bytes <= MAX_PAYLOAD_BYTES:
        yield "PR102", f"max_bytes must be an integer from 1 to {MAX_PAYLOAD_BYTES}"


def model_problems(model: object) -> Iterator[Problem]:
    """What is wrong with the class of an event: its documentation, its fields, what they would carry."""
    if not isinstance(model, type) or not (issubclass(model, BaseModel) or dataclasses.is_dataclass(model)):
        yield "PR102", "the class must be a pydantic model or a dataclass (put @producer.event above @dataclass)"
        return
    if issubclass(model, RootModel):
        yield "PR102", "the payload must be an object with named fields, not a RootModel"
        return
    if not _documented(model):
        yield "PR102", "the class needs a docstring that says what happened"
    yield from _config_problems(model)
    try:
        for fact in walk(model):
            yield from _field_problems(fact)
        schema = adapter_of(model).json_schema(by_alias=True, mode="serialization")
    except (PydanticUserError, NameError, TypeError) as error:
        yield "PR102", f"pydantic cannot build it, or its JSON Schema ({type(error).__name__})"
        return
    # A second look, at what really travels: names that only pydantic's own machinery knows.
    walked = {name for fact in walk(model) for name in fact.names}
    for name in sorted(_schema_names(schema) - walked):
        if is_credential(name):
            yield "PR103", f"field {name} is named like a credential: {_REFERENCE}"


def _schema_names(schema: object) -> set[str]:
    """The names of all properties anywhere in a JSON Schema."""
    names: set[str] = set()
    waiting = [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            names.update(item["properties"] if isinstance(item.get("properties"), dict) else ())
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return names


def _documented(model: type) -> bool:
    text = inspect.cleandoc(model.__dict__.get("__doc__") or "").strip()
    made_up = dataclasses.is_dataclass(model) and text.startswith(f"{model.__name__}(")
    return bool(text) and not made_up


def _config_problems(model: type) -> Iterator[Problem]:
    config: Mapping[str, object] = getattr(model, "model_config", None) or getattr(model, "__pydantic_config__", {})
    if config.get("extra") == "allow":
        yield "PR102", "extra='allow' would publish fields that nobody declared"
    if config.get("ser_json_inf_nan") == "constants":
        yield "PR102", "ser_json_inf_nan='constants' would write what is not JSON"


def _field_problems(fact: FieldFact) -> Iterator[Problem]:
    if not (fact.description or "").strip():
        yield "PR102", f"field {fact.path} needs a description"
    if is_marked(fact.markers):
        yield "PR103", f"field {fact.path} is marked Sensitive: {_REFERENCE}"
    elif any(is_secret_type(kind) for kind in fact.kinds):
        yield "PR103", f"field {fact.path} has a secret type: {_REFERENCE}"
    elif any(is_credential(name) for name in fact.names):
        yield "PR103", f"field {fact.path} is named like a credential: {_REFERENCE}"
