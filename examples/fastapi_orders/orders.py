"""Orders: the event, the tables, and what follows when an order was placed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator

import asyncpg
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from postroad import App, Delivery, Producer, consumer
from postroad.sqlalchemy import AsyncSessions

orders = Producer("orders")


@orders.event("order.placed", version=1)
class OrderPlaced(BaseModel):
    """A customer placed an order."""

    number: str = Field(description="the order's number")
    cents: int = Field(description="what it costs, in euro cents")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "placed_order"

    number: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class Invoice(Base):
    __tablename__ = "invoice"

    number: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


async def connect() -> asyncpg.Connection:
    # Read when a connection is opened, not when this module is imported: each test has a database of its own.
    return await asyncpg.connect(os.environ["POSTROAD_DATABASE_URL"])


engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, pool_size=10)
sessions = async_sessionmaker(engine)


@consumer(OrderPlaced, name="orders.invoices", on=AsyncSessions(sessions))
async def write_invoice(event: OrderPlaced, delivery: Delivery[AsyncSession]) -> None:
    delivery.tx.add(Invoice(number=event.number, cents=event.cents))


async def resources() -> AsyncGenerator[AsyncEngine, None]:
    yield engine
    await engine.dispose()


app = App("orders", publishes=[orders], consumers=[write_invoice], lifespan=resources)


async def create_tables(url: str) -> None:
    owner = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url))
    async with owner.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await owner.dispose()


if __name__ == "__main__":
    asyncio.run(create_tables(os.environ["OWNER_URL"]))
