"""A declared event type: its name, version and promises, and the one way to write its payload."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final, Protocol, TypeAlias

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError

from postroad.errors import UsageError
from postroad.events.fields import walk

Model: TypeAlias = type
"""The class of a payload."""

MARK: Final = "__postroad_event__"
MAX_BYTES: Final = 65_536
_MOST_NAMED: Final = 5
_FIELD: Final = re.compile(r"\[field_name='(\w+)', input_value=")

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns a payload of one version into the next one's: pure, from dict to dict."""


class Keep(IntEnum):
    """How long the log keeps an event, in days; the value is the ``retention`` column. 0 is for ever."""

    DAYS_7 = 7
    DAYS_30 = 30
    DAYS_90 = 90
    DAYS_400 = 400
    FOREVER = 0


class Compatibility(StrEnum):
    """What a new version of a type promises: who may be upgraded first."""

    BACKWARD = "backward"  # new readers read old events: consumers first
    FORWARD = "forward"  # old readers read new events: the producer first
    FULL = "full"  # both
    NONE = "none"  # nothing: both at once, or a new type


class Subscribers(StrEnum):
    """Whether an event that no queue wants is a failed dispatch, or only recorded as having no subscriber."""

    REQUIRED = "required"
    OPTIONAL = "optional"


class Owned(Protocol):
    """What an event type needs to know of the producer that owns it."""

    @property
    def name(self) -> str:
        """The first segment of the names of its types."""
        ...

    @property
    def source(self) -> str:
        """The CloudEvents source of its events."""
        ...

    @property
    def exchange(self) -> str:
        """The exchange that only it writes to."""
        ...

    @property
    def schema(self) -> str | None:
        """The database schema that its events are staged in; None for the process's."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType:
    """One version of one event type, as its producer declared it. Equal when type and version are."""

    type: str
    version: int
    producer: Owned = field(compare=False, repr=False)
    model: Model = field(compare=False, repr=False)
    adapter: TypeAdapter[Any] = field(compare=False, repr=False)
    retention: Keep = field(compare=False)
    compatibility: Compatibility = field(compare=False)
    subscribers: Subscribers = field(compare=False)
    upcasts: Mapping[int, Upcast] = field(compare=False, repr=False)
    max_bytes: int = field(compare=False)
    routing_key: str = field(init=False, compare=False, repr=False)
    source: str = field(init=False, compare=False, repr=False)
    write: Callable[..., bytes] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Keep at hand what every publish needs."""
        object.__setattr__(self, "routing_key", f"{self.type}.v{self.version}")
        object.__setattr__(self, "source", self.producer.source)
        object.__setattr__(self, "write", self.adapter.serializer.to_json)

    def encode_payload(self, payload: object) -> bytes:
        """The payload as JSON bytes, by the names that it travels under (aliases).

        Raises:
            UsageError: PR107, a value does not fit its field (dataclasses and changed models are checked only
                here); PR106, it is larger than `max_bytes`. The text names type and fields, never a value.
        """
        try:
            data = self.write(payload, by_alias=True, warnings="error")
        except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
            if isinstance(payload, type):
                message = f"{payload.__qualname__} is the class of {self.type} itself; publish an instance of it"
                raise UsageError("PR107", message) from None
            # Without its cause: the foreign text quotes the payload.
            message = f"a payload of {self.type} v{self.version} does not fit its declaration ({self._misfit(error)})"
            raise UsageError("PR107", message) from None
        if len(data) > self.max_bytes:
            message = (
                f"a payload of {self.type} v{self.version} has {len(data)} bytes, its limit is {self.max_bytes}; "
                "publish a reference, or raise max_bytes"
            )
            raise UsageError("PR106", message)
        return data

    def _misfit(self, error: Exception) -> str:
        """The declared fields that pydantic names, else the error's type: its text quotes values between the names."""
        declared = {fact.path.rpartition(".")[2] for fact in walk(self.model)}
        named = [name for name in dict.fromkeys(_FIELD.findall(str(error))) if name in declared]
        return f"field {', '.join(named[:_MOST_NAMED])}" if named else type(error).__name__

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema (2020-12) of the payload as it travels."""
        return self.adapter.json_schema(by_alias=True, mode="serialization")


def event_type_of(event: object) -> EventType:
    """The declaration of an event, or of its class.

    Raises:
        UsageError: PR109, the class itself is not decorated by a producer (a subclass of one that is does not count).
    """
    kind = event if isinstance(event, type) else type(event)
    found = kind.__dict__.get(MARK)
    if isinstance(found, EventType):
        return found
    message = f"{kind.__module__}.{kind.__qualname__} is not declared; decorate it with @producer.event(...)"
    raise UsageError("PR109", message)


def adapter_of(model: type) -> TypeAdapter[Any]:
    """Pydantic's reader and writer of `model`, built now, so that a model that cannot be built fails early."""
    adapter: TypeAdapter[Any] = TypeAdapter(model)
    if issubclass(model, BaseModel):
        model.model_rebuild()
    return adapter
