"""Lines at a consumer on a queue of another owner that must type-check, and lines (marked) that must not."""

from __future__ import annotations

from pydantic import BaseModel

from postroad import Delivery, Envelope, Properties, Subscription, cloud_event, consumer


class Booking(BaseModel):
    seat: str


class Lost(BaseModel):
    seat: str


Made = Subscription("bookings.booking.made", version=1, model=Booking)
Gone = Subscription("bookings.booking.lost", version=1, model=Lost)


def booking(body: bytes, properties: Properties) -> Booking:
    return Booking(seat=body.decode())


def either(body: bytes, properties: Properties) -> Booking | Lost | Envelope:
    return cloud_event(body, properties) if properties.type == "event" else Lost(seat="1A")


def text(body: bytes, properties: Properties) -> str:
    return body.decode()


def bare(body: bytes) -> Booking:
    return Booking(seat=body.decode())


@consumer(Made, name="a", queue="HOST.OUT", bind=False, decode=booking)
async def one(event: Booking, delivery: Delivery) -> None: ...


@consumer(Made, Gone, name="b", queue="HOST.OUT", bind=False, decode=either)
async def two(event: Booking | Lost, delivery: Delivery) -> None: ...


@consumer(Made, name="c", queue="HOST.OUT", bind=False)
async def plain(event: Booking, delivery: Delivery) -> None: ...


consumer(Made, name="d", queue="HOST.OUT", bind=False, decode=text)  # E: arg-type
consumer(Made, name="e", queue="HOST.OUT", bind=False, decode=bare)  # E: arg-type
consumer(Made, name="f", queue=7, bind=False)  # E: call-overload
