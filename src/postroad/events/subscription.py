"""A consumer's view of an event type: what it reads of it, tolerantly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from postroad.errors import ContractError, UsageError
from postroad.events.declaration import version_problems
from postroad.events.event_type import MARK, EventType, Upcast, adapter_of, event_type_of
from postroad.events.fields import is_model

T = TypeVar("T")
ModelOf: TypeAlias = type[T]

_TYPE: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}(\.[a-z][a-z0-9_-]{0,62}){2}")
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Subscription(Generic[T]):
    """An event type, often of another repository, read as `model`: a pydantic model or dataclass of what is wanted.

    The model may be partial: fields that it does not name are ignored (unless it forbids them itself). `version` is
    the one that `model` reads; an older one is read where `upcasts` lead up from it, any other is refused. Upcasts are
    pure functions from payload to payload, ``{1: from_1_to_2, 2: from_2_to_3}``, run one after the other.

    Raises:
        UsageError: PR101, naming everything that is wrong.
    """

    type: str
    version: int = field(kw_only=True)
    model: ModelOf[T] = field(kw_only=True)
    upcasts: Mapping[int, Upcast] = field(default_factory=dict, kw_only=True, repr=False, compare=False)
    adapter: TypeAdapter[T] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the declaration, and build the model's reader once."""
        problems = list(_problems(self.type, self.version, self.upcasts))
        object.__setattr__(self, "upcasts", MappingProxyType(dict(self.upcasts)))
        try:
            object.__setattr__(self, "adapter", adapter_of(self.model))
        except (PydanticUserError, NameError, TypeError) as error:
            problems.append(f"pydantic cannot build the model ({type(error).__name__})")
        if not is_model(self.model):
            problems.append("the model must be a class with fields: a pydantic model or a dataclass")
        if problems:
            raise UsageError("PR101", f"subscription to {self.type!r}: " + "; ".join(problems))

    @property
    def owner(self) -> str:
        """The producer that owns the type: its first part."""
        return self.type.partition(".")[0]

    def accepts(self, version: int) -> bool:
        """Whether a payload of `version` can be read: its own, or one that upcasts lead up from."""
        return version == self.version or version in self.upcasts

    def decode(self, data: dict[str, Any], *, version: int | None = None) -> T:
        """Read a payload of `version` (its own by default).

        Raises:
            ContractError: PR503, the version is not read here; PR505, the payload does not fit the model. The text
                names declared fields and kinds of problems, never a value.
        """
        found = self.version if version is None else version
        if not self.accepts(found):
            message = f"{self.type} v{found} is not read here, v{self.version} is; upgrade the consumer"
            raise ContractError("PR503", message)
        if found != self.version:
            data = deepcopy(data)  # An upcast that is not pure must not meet its own work on the next attempt.
        for step in range(found, self.version):
            data = self._upcast(step, data)
        try:
            return self.adapter.validate_python(data)
        except ValidationError:
            return self._decode_as_json(data)

    def _upcast(self, step: int, data: dict[str, Any]) -> dict[str, Any]:
        try:
            lifted: object = self.upcasts[step](data)
        except Exception as error:  # noqa: BLE001 - the author's function met a payload that it does not know
            message = f"the upcast of {self.type} from v{step} failed ({type(error).__name__})"
            raise ContractError("PR505", message) from None
        if not isinstance(lifted, dict):
            message = f"the upcast of {self.type} from v{step} gave {type(lifted).__name__}, not a dict"
            raise ContractError("PR505", message)
        return lifted

    def _decode_as_json(self, data: dict[str, Any]) -> T:
        # A strict model takes some values from JSON alone (a time from text): the second look decides.
        try:
            return self.adapter.validate_json(json.dumps(data))
        except ValidationError as error:
            # Without its cause: pydantic's text quotes the payload.
            raise ContractError("PR505", self._misfit(error)) from None
        except (TypeError, ValueError, RecursionError) as error:
            message = f"a payload of {self.type} v{self.version} is not JSON ({type(error).__name__})"
            raise ContractError("PR505", message) from None

    def _misfit(self, error: ValidationError) -> str:
        known = set(self.adapter.json_schema(by_alias=True).get("properties", ()))
        details = error.errors(include_url=False, include_context=False, include_input=False)
        told = [f"{_place(item['loc'], known)}: {item['type']}" for item in details[:_MOST_NAMED]]
        more = f" and {len(details) - _MOST_NAMED} more" if len(details) > _MOST_NAMED else ""
        return f"a payload of {self.type} v{self.version} does not fit {self.model.__name__} ({', '.join(told)}{more})"


def as_subscription(source: Any) -> Subscription[Any]:
    """A subscription itself, or what reads the event of a decorated class.

    Raises:
        UsageError: PR109, it is neither.
    """
    if isinstance(source, Subscription):
        return source
    if not isinstance(source, EventType) and not (isinstance(source, type) and MARK in source.__dict__):
        message = f"{source!r} is neither a Subscription nor a class decorated with @producer.event(...)"
        raise UsageError("PR109", message)
    found = source if isinstance(source, EventType) else event_type_of(source)
    return Subscription(found.type, version=found.version, model=found.model, upcasts=found.upcasts)


def _problems(name: object, version: object, upcasts: Mapping[int, object]) -> Iterator[str]:
    if not isinstance(name, str) or not _TYPE.fullmatch(name):
        yield "the type must be <producer>.<entity>.<past-tense> in lower case"
    yield from (text for _, text in version_problems(version, upcasts))


def _place(location: tuple[int | str, ...], known: set[str]) -> str:
    first = location[0] if location else ""
    return str(first) if first in known else "a field"
