"""The catalog: what an App publishes and reads, as values for people and for machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import PydanticUserError

from postroad.events.subscription import Subscription, as_subscription

if TYPE_CHECKING:
    from postroad.events.event_type import EventType
    from postroad.events.producer import Producer


@dataclass(frozen=True, slots=True)
class Catalog:
    """Event types by owner, and subscriptions; both sorted by type and version."""

    events: tuple[EventType, ...] = ()
    subscriptions: tuple[Subscription[Any], ...] = ()

    @classmethod
    def of(cls, producers: Iterable[Producer], subscriptions: Iterable[object] = ()) -> Catalog:
        """The catalog of `producers` and of what is subscribed to (`Subscription`s or decorated classes)."""
        events = [event for producer in producers for event in producer.events]
        reads = {(item.type, item.version, item.model): item for item in map(as_subscription, subscriptions)}
        return cls(
            tuple(sorted(events, key=lambda item: (item.type, item.version))),
            tuple(sorted(reads.values(), key=lambda item: (item.type, item.version, item.model.__qualname__))),
        )

    def as_json(self) -> dict[str, Any]:
        """Everything, as values that `json.dumps` takes; the shape only grows."""
        return {
            "events": [describe(item) for item in self.events],
            "subscriptions": [describe_subscription(item) for item in self.subscriptions],
        }


def describe(event: EventType) -> dict[str, Any]:
    """One version of an event type: its promises, its fields and its JSON Schema."""
    schema = event.json_schema()
    return {
        "type": event.type,
        "version": event.version,
        "owner": event.producer.name,
        "description": _first_line(event.model),
        "exchange": event.producer.exchange,
        "routing_key": event.routing_key,
        "retention_days": event.retention.value or None,
        "compatibility": event.compatibility.value,
        "subscribers": event.subscribers.value,
        "upcasts": sorted(event.upcasts),
        "max_bytes": event.max_bytes,
        "fields": _fields(schema),
        "schema": schema,
        "reads": _reads(event),
    }


def describe_subscription(subscription: Subscription[Any]) -> dict[str, Any]:
    """What is read of an event type: the fields and JSON Schema of the reader's model."""
    schema = subscription.adapter.json_schema(by_alias=True)
    return {
        "type": subscription.type,
        "version": subscription.version,
        "owner": subscription.owner,
        "reads_versions": sorted({*subscription.upcasts, subscription.version}),
        "model": f"{subscription.model.__module__}.{subscription.model.__qualname__}",
        "fields": _fields(schema),
        "schema": schema,
    }


def _reads(event: EventType) -> dict[str, Any] | None:
    """The schema by which the class reads, where it has one: a default, and what fits a type, differ from `schema`."""
    try:
        return event.adapter.json_schema(by_alias=True, mode="validation")
    except PydanticUserError:
        return None


def _first_line(model: type) -> str:
    return (model.__doc__ or "").strip().partition("\n")[0]


def _fields(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    required = set(schema.get("required", ()))
    return [
        {
            "name": name,
            "type": _type(field),
            "required": name in required,
            "description": field.get("description", ""),
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _type(field: Mapping[str, Any]) -> str:
    """A short name of a field's JSON type: ``string (date-time)``, ``integer or null``, ``Money``."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    for several in ("anyOf", "oneOf", "allOf"):
        if several in field:
            return " or ".join(_type(item) for item in field[several])
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"array of {_type(field.get('items', {}))}"
    return f"{kind} ({field['format']})" if "format" in field else kind
