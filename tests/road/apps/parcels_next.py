"""The next release of the service that owns parcels: its events have a new version."""

from __future__ import annotations

from pydantic import BaseModel, Field

from postroad.events import Producer

parcels = Producer("parcels")


@parcels.event("parcel.moved", version=2)
class ParcelMoved(BaseModel):
    """A parcel went somewhere, and we know where."""

    number: int = Field(description="The parcel's number")
    place: str = Field(description="Where it is now")
