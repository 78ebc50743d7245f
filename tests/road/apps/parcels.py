"""The service that owns parcels: its authors stage what happens to them, its processes dispatch it."""

from __future__ import annotations

from pydantic import BaseModel, Field

from postroad.events import Producer
from postroad.runtime.app import App
from road.apps import faults

parcels = Producer("parcels")


@parcels.event("parcel.moved", version=1)
class ParcelMoved(BaseModel):
    """A parcel went somewhere."""

    number: int = Field(description="The parcel's number")
    act: str = Field(default="", description="What the handler that hears of it shall do")
    note: str = Field(default="", description="Whatever was written on it")


@parcels.event("parcel.weighed", version=1)
class ParcelWeighed(BaseModel):
    """A parcel was put on the scales."""

    grams: int = Field(description="What they showed")


app = App("parcels", publishes=[parcels], sinks=faults.prepare())
