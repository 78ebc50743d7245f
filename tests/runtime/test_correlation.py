"""One story through everything: an event, its handler, the executor, a job, the event of that, its handler."""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest
from pydantic import BaseModel, Field

from postroad.asyncpg import within
from postroad.clock import seconds
from postroad.consume import Delivery, consumer
from postroad.events import Producer
from postroad.runtime import background
from postroad.runtime.app import App
from postroad.runtime.settings import ALL_ROLES, POSTGRES, Settings, TopologyMode
from postroad.work.job import job

if TYPE_CHECKING:
    from postroad.work.run import Run


@dataclass
class Story:
    """What each station was told: correlation and causation."""

    first: str = ""
    job: int = 0
    told: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    events: list[tuple[str, str | None]] = field(default_factory=list)


async def told(runtime_url: str, author_url: str, broker_url: str) -> Story:
    """An event is published as part of ``order-7``, and all that follows runs in one App."""
    story, ended = Story(), asyncio.Event()
    producer = Producer(f"p{uuid4().hex[:8]}")

    class Booked(BaseModel):
        """An order was booked."""

        number: int = Field(description="Which")

    class Rendered(BaseModel):
        """Its report was rendered."""

        number: int = Field(description="Which")

    producer.event("order.booked", version=1)(Booked)
    producer.event("report.rendered", version=1)(Rendered)

    @job(f"{producer.name}.render")
    async def render(request: int, run: Run) -> None:
        story.job = run.id
        story.told["job"] = (run.correlation_id, run.causation_id)
        async with run.transaction(finish=True) as tx:
            await within(tx).publish(Rendered(number=request))

    async def order(number: int) -> None:
        connection = await asyncpg.connect(author_url)
        async with connection.transaction():
            await within(connection).enqueue(render, number)
        await connection.close()

    @consumer(Booked, name=f"{producer.name}.desk")
    async def desk(event: Booked, delivery: Delivery[Any]) -> None:
        story.told["first handler"] = (delivery.correlation_id, delivery.causation_id)
        app.executor.submit(order, event.number)

    @consumer(Rendered, name=f"{producer.name}.post")
    async def post(event: Rendered, delivery: Delivery[Any]) -> None:
        story.told["second handler"] = (delivery.correlation_id, delivery.causation_id)
        ended.set()

    settings = Settings(
        database_url=runtime_url, direct_url=runtime_url, broker_url=broker_url, roles=ALL_ROLES,
        topology=TopologyMode.APPLY, grace=seconds(5),
    )  # fmt: skip
    app = App(producer.name, publishes=[producer], consumers=[desk, post], jobs=[render], settings=settings)
    async with app:
        await app.ready()
        author = await asyncpg.connect(author_url)
        async with author.transaction():
            story.first = str(await within(author).publish(Booked(number=7), correlation="order-7"))
        await author.close()
        await asyncio.wait_for(ended.wait(), 20)
    reader = await asyncpg.connect(runtime_url)
    rows = await reader.fetch("SELECT correlation, causation FROM postroad.event ORDER BY seq")
    story.events = [(row["correlation"], row["causation"]) for row in rows]
    await reader.close()
    return story


@pytest.fixture(params=["amqp", "postgres"])
def broker_url(request: pytest.FixtureRequest) -> str:
    return POSTGRES if request.param == "postgres" else str(request.getfixturevalue("vhost"))


async def test_a_story_goes_on_through_handlers_the_executor_and_jobs(runtime_url, author_url, broker_url) -> None:
    story = await told(runtime_url, author_url, broker_url)
    cause = f"job:{story.job}"
    assert story.told == {
        "first handler": ("order-7", None), "job": ("order-7", story.first), "second handler": ("order-7", cause),
    }  # fmt: skip
    assert story.events == [("order-7", None), ("order-7", cause)]


@pytest.mark.sabotage
async def test_without_the_submitters_context_the_story_ends_at_the_executor(
    runtime_url, author_url, monkeypatch
) -> None:
    monkeypatch.setattr(background, "contextvars", SimpleNamespace(copy_context=contextvars.Context))
    story = await told(runtime_url, author_url, POSTGRES)
    assert story.told["job"] == (f"job:{story.job}", None)
    assert story.told["second handler"] == (f"job:{story.job}", f"job:{story.job}")
