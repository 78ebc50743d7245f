"""The web side: what it publishes is in the transaction of the request, and it dispatches nothing."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from orders import Invoice, Order, OrderPlaced, app, sessions
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError

from postroad import Executor
from postroad.asgi import Correlation, lifespan
from postroad.errors import Overloaded
from postroad.sqlalchemy import within

api = FastAPI(title="Orders", lifespan=lifespan(app))
api.add_middleware(Correlation)

Background = Annotated[Executor, Depends(lambda: app.executor)]


class NewOrder(BaseModel):
    number: str
    cents: int


@api.post("/orders", status_code=201)
async def place(order: NewOrder) -> None:
    # The block ends, and so commits, before the answer is made: a commit that fails is never answered with 201.
    try:
        async with sessions.begin() as session:
            session.add(Order(number=order.number, cents=order.cents))
            await within(session).publish(OrderPlaced(number=order.number, cents=order.cents), key=order.number)
    except IntegrityError:
        raise HTTPException(409, "this order was placed before") from None


@api.get("/orders/{number}/invoice")
async def invoice(number: str) -> int:
    async with sessions() as session:
        found = await session.get(Invoice, number)
    if found is None:
        raise HTTPException(404, "not written yet")
    return found.cents


@api.get("/orders/{number}/label")
async def label(number: str, executor: Background) -> Response:
    # Work for a processor: on one of few threads, and refused rather than queued without end.
    return Response(await executor.submit_blocking(draw_label, number), media_type="image/svg+xml")


def draw_label(number: str) -> str:
    bars = "".join(f"<rect x='{4 * at}' width='{ord(sign) % 4}' height='20'/>" for at, sign in enumerate(number))
    return f"<svg xmlns='http://www.w3.org/2000/svg'>{bars}</svg>"


@api.exception_handler(Overloaded)
async def busy(_request: Request, _error: Exception) -> Response:
    return Response("busy", 503, headers={"Retry-After": "1"})
