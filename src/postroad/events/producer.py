"""The one owner of its event types: `Producer`, and the register that keeps it the only one in a process."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeVar

from postroad.errors import UsageError
from postroad.events.declaration import (
    Problem,
    choice_problem,
    limit_problem,
    model_problems,
    name_problems,
    producer_problem,
    version_problems,
)
from postroad.events.event_type import (
    MARK,
    MAX_BYTES,
    Compatibility,
    EventType,
    Keep,
    Subscribers,
    Upcast,
    adapter_of,
)

T = TypeVar("T", bound=type)

_NO_UPCASTS: Final[Mapping[int, Upcast]] = MappingProxyType({})
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,54}")


class Producer:
    """The one owner of the event types under its name: ``flights`` owns ``flights.flight.departed``.

    `schema` is the database schema in which its events are staged; without it POSTROAD_SCHEMA decides at the first
    publish, else ``postroad``. Making one opens nothing and needs nothing running.

    Raises:
        UsageError: PR101, the name is not valid; PR107, the schema's is not.
    """

    __slots__ = ("_events", "exchange", "name", "replay_exchange", "schema", "source")

    def __init__(self, name: str, *, schema: str | None = None) -> None:
        problem = producer_problem(name)
        if problem:
            raise UsageError("PR101", f"producer name {name!r} {problem}")
        if schema is not None and not _SCHEMA.fullmatch(schema):
            message = f"schema {schema!r} of producer {name!r} is not lower-case letters, digits and underscores"
            raise UsageError("PR107", message)
        self.name = name
        self.schema = schema
        self.source = f"urn:postroad:{name}"
        self.exchange = f"{name}.events"
        self.replay_exchange = f"{name}.replay"
        self._events: list[EventType] = []

    @property
    def events(self) -> tuple[EventType, ...]:
        """Its event types, in the order in which they were declared."""
        return tuple(self._events)

    def event(
        self,
        name: str,
        *,
        version: int,
        retention: Keep = Keep.DAYS_90,
        compatibility: Literal["backward", "forward", "full", "none"] = "backward",
        subscribers: Literal["required", "optional"] = "required",
        upcasts: Mapping[int, Upcast] = _NO_UPCASTS,
        max_bytes: int = MAX_BYTES,
        past_tense: bool = False,
    ) -> Callable[[T], T]:
        """Declare a class (pydantic model or dataclass) as one version of the event ``<producer>.<name>``.

        `name` is ``<entity>.<past-tense>``; `past_tense` says that it is where the check does not know the word.
        The class needs a docstring, every field (nested ones too) a description. `upcasts` turn a payload of an
        older version into the next one's, step by step. `max_bytes` bounds the payload's JSON. The class comes back
        as it was.

        Raises:
            UsageError: everything that is wrong, in one error: PR103 where a field would carry a credential or a
                protected record, PR104 where the type and version are declared already, else PR102.
        """

        def declare(model: T) -> T:
            problems = [
                *name_problems(name, producer=self.name, past_tense=past_tense),
                *version_problems(version, upcasts),
                *_retention_problems(retention),
                *choice_problem("compatibility", compatibility, Compatibility),
                *choice_problem("subscribers", subscribers, Subscribers),
                *limit_problem(max_bytes),
                *model_problems(model),
            ]
            full_name = f"{self.name}.{name}"
            _refuse(full_name, problems)
            event_type = EventType(
                type=full_name,
                version=version,
                producer=self,
                model=model,
                adapter=adapter_of(model),
                retention=retention,
                compatibility=Compatibility(compatibility),
                subscribers=Subscribers(subscribers),
                upcasts=MappingProxyType(dict(upcasts)),
                max_bytes=max_bytes,
            )
            _REGISTER.add(event_type, again=event_type in self._events)
            self._events.append(event_type)
            setattr(model, MARK, event_type)
            return model

        return declare


def _retention_problems(retention: object) -> list[Problem]:
    return [] if isinstance(retention, Keep) else [("PR102", "retention must be a Keep, such as Keep.DAYS_90")]


def _refuse(name: str, problems: list[Problem]) -> None:
    if not problems:
        return
    codes = {code for code, _ in problems}
    code = "PR103" if "PR103" in codes else problems[0][0]
    raise UsageError(code, f"event {name!r}: " + "; ".join(text for _, text in problems))


class _Register:
    """Who declared which type and version in this process. The same class of the same file may come again: reloaded."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int], tuple[str, str]] = {}
        self._lock = threading.Lock()

    def add(self, event_type: EventType, *, again: bool) -> None:
        model = event_type.model
        module = sys.modules.get(model.__module__)
        origin = (getattr(module, "__file__", None) or model.__module__, model.__qualname__)
        where = f"{model.__module__}.{model.__qualname__}"
        with self._lock:
            known = self._owners.get((event_type.type, event_type.version))
            if known is None or (known[0] == ":".join(origin) and not again):
                self._owners[event_type.type, event_type.version] = (":".join(origin), where)
                return
        message = f"event {event_type.type!r} v{event_type.version} is declared twice ({known[1]}, {where}); keep one"
        raise UsageError("PR104", message)


_REGISTER: Final = _Register()
