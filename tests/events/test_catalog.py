"""The catalog tells what is published and read."""

from __future__ import annotations

import json
from datetime import datetime
from uuid import uuid4

from pydantic import BaseModel, Field

from postroad.events import Catalog, Keep, Producer, Subscription


class Partial(BaseModel):
    carrier: str


def test_the_catalog_holds_fields_versions_and_promises():
    flights = Producer(f"p{uuid4().hex}")

    class Part(BaseModel):
        """A part."""

        weight: float = Field(description="In kilograms.")

    for version in (2, 1):

        @flights.event("flight.departed", version=version, retention=Keep.FOREVER if version == 1 else Keep.DAYS_30)
        class Departed(BaseModel):
            """A flight left the gate.

            More about it.
            """

            at: datetime = Field(description="When.")
            parts: list[Part] = Field(description="Its parts.")
            delay: int | None = Field(default=None, description="Minutes late.", serialization_alias="delayMinutes")

        Departed.__qualname__ = f"Departed{version}"

    read = Subscription("bookings.booking.made", version=3, model=Partial)
    catalog = Catalog.of([flights], [read, read])
    told = json.loads(json.dumps(catalog.as_json()))
    assert [event["version"] for event in told["events"]] == [1, 2]
    first = told["events"][0]
    assert (first["description"], first["retention_days"]) == ("A flight left the gate.", None)
    assert first["routing_key"] == f"{flights.name}.flight.departed.v1"
    assert [(field["name"], field["type"], field["description"]) for field in first["fields"]] == [
        ("at", "string (date-time)", "When."),
        ("parts", "array of Part", "Its parts."),
        ("delayMinutes", "integer or null", "Minutes late."),
    ]
    assert first["schema"]["properties"]["at"]["format"] == "date-time"
    assert [(item["type"], item["owner"], item["version"]) for item in told["subscriptions"]] == [
        ("bookings.booking.made", "bookings", 3)
    ]
    assert told["subscriptions"][0]["fields"][0]["name"] == "carrier"
