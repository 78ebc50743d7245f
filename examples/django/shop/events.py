"""What the shop tells."""

from pydantic import BaseModel, Field

from postroad import Producer

shop = Producer("shop")


@shop.event("order.placed", version=1)
class OrderPlaced(BaseModel):
    """Somebody placed an order."""

    number: str = Field(description="The order's number")
    quantity: int = Field(description="How many pieces")
