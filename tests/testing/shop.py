"""A service as a user has it: it takes orders, bills them and sends mail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from postroad import (
    App,
    Backoff,
    BlockingRun,
    Delivery,
    Producer,
    Rules,
    Run,
    Snooze,
    Subscription,
    consumer,
    hours,
    job,
    seconds,
)
from postroad.asyncpg import within

if TYPE_CHECKING:
    import psycopg

orders = Producer("sales")

TABLES = """
CREATE TABLE bill (number text);
CREATE TABLE mail (receiver text);
CREATE TABLE paid (number text);
"""


@orders.event("order.placed", version=1)
class OrderPlaced(BaseModel):
    """A customer placed an order."""

    number: str = Field(description="the order's number")


@orders.event("order.billed", version=1)
class OrderBilled(BaseModel):
    """An order was billed."""

    number: str = Field(description="the order's number")


class PaymentSeen(BaseModel):
    number: str


Paid = Subscription("payments.payment.settled", version=2, model=PaymentSeen)


class Mail(BaseModel):
    receiver: str


class Gateway:
    """What the App's lifespan yields."""

    def __init__(self, name: str) -> None:
        self.name = name


class CardRefused(Exception):
    pass


class Unreadable(Exception):
    pass


@job("mail.send")
async def send_mail(request: Mail, run: Run) -> None:
    if request.receiver == "later":
        raise Snooze(hours(1))
    if request.receiver == "broken":
        raise Unreadable("no such receiver")
    async with run.transaction(finish=True) as tx:
        await tx.execute("INSERT INTO mail VALUES ($1)", request.receiver)


@job("mail.print")
def print_mail(request: Mail, run: BlockingRun) -> None:
    with run.transaction(finish=True) as tx:
        tx.execute("INSERT INTO mail VALUES (%s)", [f"printed for {request.receiver}"])


@job("mail.never")
async def never(request: Mail, run: Run) -> None:
    """No App has it."""


@consumer(
    OrderPlaced, name="billing", retry=Backoff(first=seconds(30), attempts=2), rules=Rules(quarantine=[Unreadable])
)
async def bill(event: OrderPlaced, delivery: Delivery) -> None:
    if event.number == "refused":
        raise CardRefused("the card was refused")
    if event.number == "unreadable":
        raise Unreadable("what is this")
    name = delivery.use(Gateway).name if event.number == "gateway" else event.number
    await delivery.tx.execute("INSERT INTO bill VALUES ($1)", name)
    await within(delivery.tx).publish(OrderBilled(number=event.number))
    await within(delivery.tx).enqueue(send_mail, Mail(receiver=f"customer of {event.number}"))


@consumer(Paid, name="payments")
def note_payment(event: PaymentSeen, delivery: Delivery[psycopg.Connection[Any]]) -> None:
    if event.number == "refused":
        raise CardRefused("the card was refused")
    delivery.tx.execute("INSERT INTO paid VALUES (%s)", [event.number])


async def lifespan():
    yield Gateway("the real one")


app = App("shop", publishes=[orders], consumers=[bill, note_payment], jobs=[send_mail, print_mail], lifespan=lifespan)
