"""An App that sells, bills and counts what it sells: two consumers of one event, for a binding that is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from postroad.consume import Delivery, consumer
from postroad.events import Producer
from postroad.runtime.app import App

if TYPE_CHECKING:
    from postroad.runtime.settings import Settings

boutique = Producer("boutique")


@boutique.event("dress.sold", version=1)
class DressSold(BaseModel):
    """A dress was sold."""

    number: int = Field(description="The number of the sale")


@consumer(DressSold, name="boutique.billing")
async def bill(event: DressSold, delivery: Delivery[Any]) -> None:
    await delivery.tx.execute("INSERT INTO billed VALUES ($1)", event.number)


@consumer(DressSold, name="boutique.counting")
async def count(event: DressSold, delivery: Delivery[Any]) -> None:
    await delivery.tx.execute("INSERT INTO counted VALUES ($1)", event.number)


def made(settings: Settings | None = None) -> App:
    return App("boutique", publishes=[boutique], consumers=[bill, count], settings=settings)


app = made()
