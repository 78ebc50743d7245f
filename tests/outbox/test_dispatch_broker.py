"""The dispatcher with RabbitMQ, and with servers that die under it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from dispatching import SCHEMA, Author, RealBroker, an_event, at_the_broker
from postroad.outbox.window import Window
from postroad.signals.catalog import OutboxCleared, PublishRefused, PublishResult
from postroad.sql.migrations import Roles, migrate
from postroad.transport.base import Settlement
from support import until

KEY = "flights.flight.departed.v1"


async def left(connection: asyncpg.Connection) -> int:
    return await connection.fetchval("SELECT count(*) FROM postroad.outbox")


@pytest.fixture
def believe(monkeypatch):
    """Take an answer for a confirm, as a dispatcher would that asks only whether the broker said something."""
    settle = Window.settle

    def start(settlement: Settlement) -> None:
        credit = {settlement: Settlement.CONFIRMED}

        def credulous(self, batch, now):
            fixed = [replace(one, settlement=credit.get(one.settlement, one.settlement)) for one in batch]
            return settle(self, fixed, now)

        monkeypatch.setattr(Window, "settle", credulous)

    return start


async def test_staged_events_reach_their_queue_once_and_in_order_per_key(
    author, process, real_broker, vhost, database_rows
):
    road: RealBroker = await real_broker(vhost)
    ids = await author.stage(*[an_event(f"k{number % 50}") for number in range(3000)])
    running = await process(road.publisher)
    await until(lambda: len(road.received) == 3000)
    await until(lambda: sum(each.deleted for each in running.heard.all(OutboxCleared)) == 3000)
    assert [[ids.index(one) for one in road.order if ids.index(one) % 50 == key] for key in range(3)] == [
        list(range(key, 3000, 50)) for key in range(3)
    ]
    assert set(road.received.values()) == {1}
    assert await left(database_rows) == 0
    await running.stop()


async def test_with_a_deleted_binding_the_event_stays_with_its_reason_and_goes_once_it_is_back(
    author, process, real_broker, vhost, database_rows
):
    road: RealBroker = await real_broker(vhost)
    pattern = "flights.flight.departed.*"
    await at_the_broker(vhost, lambda channel: channel.queue_unbind("board", "flights.events", pattern))
    [event] = await author.stage(an_event())
    running = await process(road.publisher)
    refused = await running.heard.wait(PublishRefused)
    assert refused.result is PublishResult.RETURNED
    assert "NO_ROUTE" in await database_rows.fetchval("SELECT reason FROM postroad.outbox")
    assert road.order == []
    await at_the_broker(vhost, lambda channel: channel.queue_bind("board", "flights.events", pattern))
    await until(lambda: road.order == [event])
    await running.heard.wait(OutboxCleared, lambda each: each.deleted == 1)
    assert await left(database_rows) == 0


@pytest.mark.sabotage
async def test_a_returned_event_taken_for_sent_would_be_lost(
    author, process, real_broker, vhost, database_rows, believe
):
    believe(Settlement.RETURNED)
    road: RealBroker = await real_broker(vhost)
    pattern = "flights.flight.departed.*"
    await at_the_broker(vhost, lambda channel: channel.queue_unbind("board", "flights.events", pattern))
    await author.stage(an_event())
    running = await process(road.publisher)
    await running.heard.wait(OutboxCleared, lambda each: each.deleted == 1)
    assert await left(database_rows) == 0
    assert road.order == []


async def test_a_full_queue_that_nacks_keeps_the_rest_in_the_outbox_until_it_has_room(
    author, process, real_broker, vhost, database_rows
):
    road: RealBroker = await real_broker(vhost)

    def fill(channel: Any) -> None:
        channel.queue_delete("board")
        arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
        channel.queue_declare("tight", durable=True, arguments=arguments)
        channel.queue_bind("tight", "flights.events", KEY)

    await at_the_broker(vhost, fill)
    ids = await author.stage(*[an_event(f"k{number}") for number in range(5)])
    running = await process(road.publisher)
    refused = await running.heard.wait(PublishRefused)
    assert refused.result is PublishResult.NACKED
    await running.heard.wait(OutboxCleared, lambda each: each.deleted > 0)
    assert (await database_rows.fetchval("SELECT max(reason) FROM postroad.outbox")).startswith("nacked")
    got: set[str] = set()

    def take(channel: Any) -> None:
        method, properties, _ = channel.basic_get("tight", auto_ack=True)
        if method is not None:
            got.add(properties.message_id)

    async with asyncio.timeout(20):
        while got != set(ids):
            await at_the_broker(vhost, take)
    await until(lambda: sum(each.deleted for each in running.heard.all(OutboxCleared)) == 5)
    assert await left(database_rows) == 0


async def test_a_publish_that_closes_the_channel_is_set_apart_and_the_others_arrive(
    author, process, real_broker, vhost, database_rows
):
    road: RealBroker = await real_broker(vhost)
    stranger = an_event("x", type="nobody.thing.happened", route="nobody.thing.happened.v1")
    before = await author.stage(*[an_event(f"a{number}") for number in range(30)])
    await author.stage(stranger)
    after = await author.stage(*[an_event(f"b{number}") for number in range(30)])
    running = await process(road.publisher)
    refused = await running.heard.wait(PublishRefused)
    assert refused.event_type == "nobody.thing.happened"
    await until(lambda: set(road.received) == {*before, *after})
    await until(lambda: sum(each.deleted for each in running.heard.all(OutboxCleared)) >= 60)
    row = await database_rows.fetchrow("SELECT route, reason FROM postroad.outbox")
    assert row["route"] == "nobody.thing.happened.v1"
    assert "NOT_FOUND" in row["reason"]
    assert await database_rows.fetchval("SELECT max(attempts) FROM postroad.outbox WHERE route = $1", KEY) is None


async def broker_killed_with_unconfirmed_publishes(author, process, real_broker, own_rabbit) -> tuple[Any, set[str]]:
    """Stage under load; pause the broker, let publishes go unanswered, kill and start it: the road, what was staged."""
    road: RealBroker = await real_broker(own_rabbit.add_vhost("flights"))
    running = await process(road.publisher)
    ids: set[str] = set()
    killed = asyncio.Event()

    async def staging() -> None:
        while not killed.is_set():
            ids.update(await author.stage(*[an_event(f"k{number}") for number in range(20)]))

    writing = asyncio.ensure_future(staging())
    await until(lambda: len(road.received) > 500)
    own_rabbit.pause()
    await until(lambda: running.dispatcher._window.unsettled > 200)
    await asyncio.to_thread(own_rabbit.kill)
    killed.set()
    await writing
    await asyncio.to_thread(own_rabbit.start)
    await until(lambda: road.publisher.writable)
    last = await author.stage(*[an_event(f"k{number}") for number in range(20)])
    await until(lambda: set(last) <= set(road.received), within=60)
    await until(lambda: not running.dispatcher._window.places())
    assert len(running.held) == 16
    return road, ids


@pytest.mark.heavy
async def test_a_broker_killed_with_unconfirmed_publishes_loses_nothing(
    author, process, real_broker, own_rabbit, database_rows
):
    road, ids = await broker_killed_with_unconfirmed_publishes(author, process, real_broker, own_rabbit)
    await until(lambda: ids <= set(road.received))
    assert await left(database_rows) == 0


@pytest.mark.heavy
@pytest.mark.sabotage
async def test_unanswered_publishes_taken_for_sent_would_be_lost(author, process, real_broker, own_rabbit, believe):
    believe(Settlement.UNKNOWN)
    road, ids = await broker_killed_with_unconfirmed_publishes(author, process, real_broker, own_rabbit)
    with pytest.raises(TimeoutError):
        await until(lambda: ids <= set(road.received), within=3)


@pytest.mark.heavy
async def test_a_database_restarted_under_load_loses_nothing(process, own_postgres, broker):
    await asyncio.to_thread(own_postgres.create_database, "road")
    roles = Roles(runtime="pr_runtime", author="pr_author")
    await migrate(own_postgres.url("road"), schema=SCHEMA, roles=roles, days_ahead=1)
    author = Author(own_postgres.url("road", "pr_author"))
    running = await process(broker, url=own_postgres.url("road", "pr_runtime"))
    ids: list[str] = []
    stop = asyncio.Event()

    async def staging() -> None:
        while not stop.is_set():
            events = [an_event(f"k{number}") for number in range(50)]
            try:
                ids.extend(await author.stage(*events))
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                await asyncio.sleep(0.05)

    writing = asyncio.ensure_future(staging())
    await until(lambda: len(broker.seen) > 500)
    for _ in range(2):
        seen = len(broker.seen)
        await asyncio.to_thread(own_postgres.kill)
        await until(lambda: not running.ready)
        await asyncio.to_thread(own_postgres.start)
        await until(lambda seen=seen: len(broker.seen) > seen + 500, within=40)  # type: ignore[misc]
    stop.set()
    await writing
    await until(lambda: set(ids) <= set(broker.ids()), within=30)
    await until(lambda: not running.dispatcher._window.places())
    connection = await asyncpg.connect(own_postgres.url("road"))
    assert await left(connection) == 0
    assert await connection.fetchval("SELECT count(*) FROM postroad.event") == len(set(broker.ids()))
    await connection.close()
    await running.stop()
