"""The messaging side, run by `manage.py postroad run shop.app:app`."""

from pydantic import BaseModel

from postroad import App, BlockingRun, Delivery, consumer, job
from postroad.django import Atomic, Within
from shop.events import OrderPlaced, shop
from shop.models import Reservation


class Receipt(BaseModel):
    """For whom to write one."""

    number: str


@job("shop.receipt", on=Atomic())
def write_receipt(request: Receipt, run: BlockingRun[Within]) -> None:
    """Write the receipt, in one commit with the end of the job."""
    with run.transaction(finish=True):
        Reservation.objects.filter(order_number=request.number).update(receipt=f"Thank you for {request.number}")


@consumer(OrderPlaced, name="shop.stock", on=Atomic())
def reserve(event: OrderPlaced, delivery: Delivery[Within]) -> None:
    """Reserve stock: once in effect, however often the event is delivered."""
    Reservation.objects.create(order_number=event.number, quantity=event.quantity)
    delivery.tx.enqueue(write_receipt, Receipt(number=event.number))


app = App("shop", publishes=[shop], consumers=[reserve], jobs=[write_receipt])
