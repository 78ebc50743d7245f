"""The producer service: it owns the flights and their events, and dispatches what its authors staged."""

from __future__ import annotations

from datetime import date

from pydantic import BaseModel, Field

from postroad.demo.gauges import sinks_from_environment
from postroad.events import Keep, Producer
from postroad.runtime.app import App

flights = Producer("flights")


@flights.event("flight.departed", version=1, retention=Keep.DAYS_90, compatibility="backward")
class FlightDeparted(BaseModel):
    """A flight left the gate."""

    flight_id: str = Field(description="The day, carrier, number and origin of the flight")
    carrier: str = Field(description="IATA code of the carrier")
    day: date = Field(description="The date for which it was scheduled, where it left from")
    origin: str = Field(description="IATA code of the airport that it left")
    destination: str = Field(description="IATA code of the airport that it flies to")
    delay_minutes: int = Field(description="Minutes after the scheduled time; negative when it left early")


@flights.event("flight.cancelled", version=1, retention=Keep.DAYS_90, compatibility="backward")
class FlightCancelled(BaseModel):
    """A scheduled flight did not leave."""

    flight_id: str = Field(description="The day, carrier, number and origin of the flight")
    carrier: str = Field(description="IATA code of the carrier")
    day: date = Field(description="The date for which it was scheduled, where it left from")
    origin: str = Field(description="IATA code of the airport that it should have left")
    destination: str = Field(description="IATA code of the airport that it should have flown to")


app = App("flights", publishes=[flights], sinks=sinks_from_environment())
